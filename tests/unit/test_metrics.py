"""Figures of a request, by hand: tau, survival, accepted tokens that were really committed, times."""

from __future__ import annotations

import pytest

from outrider.engine.metrics import RequestCounter
from outrider.testing import ScheduledController
from outrider.types import PhaseSeconds, RequestMetrics, RoundTrace
from tests.support import GREEDY, MODEL, VOCAB, make_engine, oracle, run_one


def round_(drafted: int, kept: int, emitted: int | None = None) -> RoundTrace:
    return RoundTrace("req-0", 0, "ngram", drafted, kept, kept + 1 if emitted is None else emitted)


def counted(*rounds: RoundTrace, answers: int = 1) -> RequestMetrics:
    """One round a second, the first two seconds after arrival."""
    counter = RequestCounter(100.0, "ngram")
    for second, trace in enumerate(rounds):
        counter.observe(trace, 102.0 + second)
    return counter.metrics(answers)


def test_rounds_add_up() -> None:
    metrics = counted(round_(4, 4), round_(4, 0), round_(4, 2), round_(0, 0))
    assert (metrics.rounds, metrics.drafted, metrics.accepted, metrics.emitted) == (4, 12, 6, 10)
    assert metrics.tau == 10 / 4
    assert metrics.acceptance_rate == 6 / 12
    assert metrics.survival == (2 / 4, 2 / 4, 1 / 4, 1 / 4), "a share of all rounds, also of those that drafted less"
    assert metrics.drafter == "ngram"


@pytest.mark.parametrize(("emitted", "accepted"), [(1, 1), (3, 3), (4, 4), (5, 4)])
def test_tokens_verified_beyond_a_stop_are_not_accepted(emitted: int, accepted: int) -> None:
    metrics = counted(round_(4, 4, emitted))
    assert (metrics.accepted, metrics.emitted) == (accepted, emitted)
    assert metrics.survival == (1.0,) * accepted


def test_times() -> None:
    metrics = counted(round_(2, 1), round_(2, 2), round_(2, 0))
    assert metrics.ttft == 2.0
    assert metrics.tpot == 2.0 / 4, "two seconds after the first round brought four tokens"
    assert counted(round_(2, 1)).tpot is None, "one round has no time between tokens"
    assert counted(round_(2, 2), round_(2, 2), answers=3).tpot == 1.0 * 3 / 3, "per answer, not per request"


def test_a_request_that_never_ran_has_no_figures() -> None:
    assert counted() == RequestMetrics(drafter="ngram")
    assert (RequestMetrics().tau, RequestMetrics().acceptance_rate) == (0.0, 0.0)


def test_phase_seconds_add_up() -> None:
    total = PhaseSeconds(1, 2, 3, 4, 5) + PhaseSeconds(target=1)
    assert total == PhaseSeconds(1, 2, 4, 4, 5)
    assert total.total == 16


def test_the_engine_reports_what_it_did() -> None:
    text = [3, *MODEL.greedy([3], 40)]
    wrong = [*text[:6], (text[6] + 1) % VOCAB, *text[7:]]
    output = run_one(make_engine(oracle(wrong), ScheduledController([4])), [3], GREEDY)
    # 16 tokens: 5, then position 6 of the text is refused at once, then 5 and the last 5.
    metrics = output.metrics
    assert (metrics.rounds, metrics.drafted, metrics.accepted, metrics.emitted) == (4, 16, 12, 16)
    assert metrics.survival == (0.75,) * 4
    assert metrics.drafter == "scripted"
    assert metrics.ttft is not None
    assert metrics.tpot is not None
    assert 0 < metrics.seconds.target < metrics.seconds.total
