"""Open-loop load and sweeps: when requests are sent, which came in time, and what a range of k means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.harness import task_seed
from outrider.bench.load import Limits, measure_load, poisson_schedule
from outrider.bench.record import Answer, Arrival, Run, Sample, Settings, Task
from outrider.bench.subject import Interrupted, Request
from outrider.bench.summary import summarise
from outrider.bench.sweep import configuration_name, k_range, sweep_configs
from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError
from tests.unit.scripted_bench import RecordingSubject

SETTINGS = Settings(seed=3)
MANY = [Task(f"t/{i}", "c", "p") for i in range(2000)]


def test_a_schedule_sends_every_task_once_in_poisson_time() -> None:
    """The mean of 1999 gaps is within 4 of its standard deviations, and exponential gaps spread as wide as they are
    long: odds of a false alarm about 1e-4 for each. Evenly spaced requests would have no spread."""
    requests = poisson_schedule(MANY, 5.0, SETTINGS)
    assert [request.task for request in requests] == MANY
    assert requests[0].at == 0.0
    gaps = [b.at - a.at for a, b in pairwise(requests)]
    mean = math.fsum(gaps) / len(gaps)
    spread = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.2, rel=4 / math.sqrt(len(gaps)))
    assert spread == pytest.approx(mean, rel=0.1)


def test_a_schedule_is_the_same_for_every_subject() -> None:
    assert poisson_schedule(MANY, 5.0, SETTINGS) == poisson_schedule(MANY, 5.0, SETTINGS)
    assert poisson_schedule(MANY, 5.0, SETTINGS) != poisson_schedule(MANY, 5.0, Settings(seed=4))
    assert poisson_schedule(MANY, 5.0, SETTINGS)[7].seed == task_seed(3, "t/7")
    unseeded = poisson_schedule(MANY, 5.0, Settings(seed=None))
    assert unseeded == poisson_schedule(MANY, 5.0, Settings(seed=None))
    assert unseeded[7].seed is None


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-300, math.nan, math.inf])
def test_a_rate_is_one_that_can_be_waited_for(rate: float) -> None:
    with pytest.raises(ConfigError, match="requests per second"):
        poisson_schedule(MANY, rate, SETTINGS)


def test_load_is_one_serve_after_a_warm_up() -> None:
    calls: list[Any] = []
    samples = list(measure_load(RecordingSubject("a", calls), MANY[:5], SETTINGS, 2.0))
    assert [len(requests) for _, requests, _ in calls] == [1, 5]
    assert calls[1][1] == poisson_schedule(MANY[:5], 2.0, SETTINGS)
    assert [(s.task, s.rate, s.batch, s.at) for s in samples] == [(r.task, 2.0, 0, r.at) for r in calls[1][1]]


def test_an_interrupt_keeps_what_was_complete() -> None:
    class Stopped(RecordingSubject):
        def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
            answers = super().serve(requests, settings)
            if len(requests) > 1:
                raise Interrupted([answers[0], None, answers[2]])
            return answers

    samples = []
    with pytest.raises(KeyboardInterrupt):
        for sample in measure_load(Stopped("a", []), MANY[:3], SETTINGS, 2.0):
            samples.append(sample)
    assert [sample.task.id for sample in samples] == ["t/0", "t/2"]


def answer(*arrivals: tuple[float, int], error: str | None = None) -> Answer:
    return Answer("", None, None, tuple(Arrival(*each) for each in arrivals), "stop", error=error)


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        (Limits(), [True, True, True, False]),
        (Limits(ttft=0.5), [True, False, True, False]),
        (Limits(tpot=0.1), [True, False, True, False]),
        (Limits(tpot=0.3), [True, True, True, False]),
        (Limits(ttft=0.4, tpot=0.1), [False, False, True, False]),
    ],
)
def test_an_answer_is_in_time_or_late(limits: Limits, met: list[bool]) -> None:
    answers = [answer((0.5, 1), (0.7, 2)), answer((0.6, 1), (0.8, 1)), answer((0.4, 3)), answer((0.1, 1), error="x")]
    assert [limits.met(each) for each in answers] == met


def load_rows(answers: list[Answer], limits: Limits, rate: float = 4.0) -> list[dict[str, Any]]:
    samples = [
        Sample(Task(f"t/{i}", "c", "p"), "a", SETTINGS, 0, 0, each, rate=rate, at=1.0 + i)
        for i, each in enumerate(answers)
    ]
    rows: list[dict[str, Any]] = summarise(Run(tuple(samples), ("a",), "a", {}, {}), limits)["load"]
    return rows


def test_goodput_is_over_the_time_from_first_send_to_last_arrival() -> None:
    answers = [answer((0.5, 1), (1.5, 2)), answer((9.0, 1)), answer((0.1, 1)), answer((0.2, 1), error="gone")]
    (row,) = load_rows(answers, Limits(ttft=1.0))
    # Sent at 1, 2, 3, 4; the last token came at 2 + 9.
    assert row["seconds"] == pytest.approx(10.0)
    assert (row["requests"], row["errors"], row["met"], row["late"]) == (4, 1, 2, 1)
    assert row["goodput"] == pytest.approx(0.2)
    assert row["requests_per_second"] == pytest.approx(0.3)
    assert row["tokens_per_second"] == pytest.approx(5 / 10)
    assert row["limits"] == {"ttft": 1.0, "tpot": None}
    assert row["ttft"]["p50"] == pytest.approx(0.5)


def test_a_load_where_everything_fails_has_no_rates() -> None:
    (row,) = load_rows([answer(error="refused")], Limits())
    assert (row["errors"], row["met"], row["goodput"], row["ttft"]) == (1, 0, None, None)


# --- sweeps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ks"),
    [("0..3", (0, 1, 2, 3)), ("5", (5,)), ("0,2,4", (0, 2, 4)), ("0, 4..6,5", (0, 4, 5, 6)), ("8,1", (8, 1))],
)
def test_ranges_of_k(text: str, ks: tuple[int, ...]) -> None:
    assert k_range(text) == ks


@given(st.lists(st.integers(0, 64), min_size=1, unique=True))
def test_a_list_of_k_is_itself(ks: list[int]) -> None:
    assert k_range(",".join(map(str, ks))) == tuple(ks)


@pytest.mark.parametrize("text", ["", "a", "-1", "3..1", "1...3", "1,,2", "65", "0..999", "1.5", "٣", "9" * 5000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"such as '0\.\.8'") as caught:
        k_range(text)
    assert len(str(caught.value)) < 250


def test_a_sweep_keeps_all_but_k() -> None:
    base = SpeculativeConfig("ngram", 5, prompt_lookup_max=4)
    configs = sweep_configs(base, (0, 1, 7))
    assert configs[0] is None
    assert configs[1:] == [SpeculativeConfig("ngram", k, prompt_lookup_max=4) for k in (1, 7)]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (None, "plain"),
        (SpeculativeConfig("ngram", 0), "plain"),
        (SpeculativeConfig("ngram", 3), "ngram k=3"),
        (SpeculativeConfig("ngram", 3, prompt_lookup_max=4), "ngram k=3 prompt_lookup_max=4"),
        (SpeculativeConfig("draft_model", 2, "/home/me/draft", "float32"), "draft_model k=2 draft dtype=float32"),
        (SpeculativeConfig("ngram", rejection_sample_method="block"), "ngram rejection_sample_method=block"),
    ],
)
def test_names_tell_configurations_apart(config: SpeculativeConfig | None, name: str) -> None:
    assert configuration_name(config) == name
