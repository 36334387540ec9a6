"""Tokens compared: where answers part, what measured noise explains, and a KV cache that is off by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from outrider.audit.engine_sampler import EngineSampler
from outrider.audit.greedy import Compared, Noise, Split, TokenComparison, compare_tokens, first_split, is_near_tie
from outrider.audit.noise import RunnerExplainer, forced_logits
from outrider.audit.samples import Answer, Pair, Question
from outrider.draft.ngram import NgramDrafter
from outrider.models.base import Feed, Scores
from outrider.models.toy import ToyModel, ToyRunner
from outrider.testing import AdversarialDrafter, RandomDrafter
from tests.support import MODEL, LetterTokenizer, make_engine
from tests.unit.audits import GREEDY, QUESTIONS, SAMPLED, VOCAB, K, NoisyRunner, WrongCommit, make_audit


@pytest.mark.parametrize(
    ("plain", "speculative", "split"),
    [
        ((1, 2, 3), (1, 2, 3), None),
        ((1, 2, 3), (1, 9, 3), Split(1, 2, 9)),
        ((1, 2), (1, 2, 3), Split(2, None, 3)),
        ((1, 2), (1,), Split(1, 2, None)),
        ((), (), None),
    ],
)
def test_first_split(plain: tuple[int, ...], speculative: tuple[int, ...], split: Split | None) -> None:
    assert first_split(plain, speculative) == split


def test_a_near_tie_is_a_margin_that_noise_can_close_from_both_sides() -> None:
    noise = Noise(0.05, 0.1, 0.02, 1)
    assert is_near_tie(0.19, noise, exact=False)
    assert not is_near_tie(0.21, noise, exact=False)
    assert not is_near_tie(0.0, noise, exact=True), "a runner that promises bits has no ties to lose"
    assert not is_near_tie(None, noise, exact=False)
    assert not is_near_tie(0.19, replace(noise, overall=1.1), exact=False), "that is no rounding"
    assert not is_near_tie(0.1, None, exact=False)


@pytest.mark.parametrize("width", [1, 2, 4, 100])
@pytest.mark.parametrize("neighbour", [None, (3, 4)])
def test_forced_logits_are_those_of_the_answers_own_places(width: int, neighbour: tuple[int, ...] | None) -> None:
    runner = ToyRunner(MODEL, 4, 200)
    prompt = (1, 2, 3)
    answer = MODEL.greedy(prompt, 30)
    for places in (range(30), range(7, 19), range(29, 30), range(1)):
        rows = forced_logits(runner, prompt, answer, places, width, neighbour)
        assert rows.argmax(-1).tolist() == [answer[i] for i in places]
    assert max(feed.rows for call in runner.calls for feed in call) == min(width, 30)
    assert {len(call) for call in runner.calls} == {1 if neighbour is None else 2}
    assert runner.open_slots == 0


def test_long_prompts_are_read_in_chunks() -> None:
    runner = ToyRunner(MODEL, 4, 2000)
    for length in (511, 512, 513, 1024, 1100):
        prompt = [i % VOCAB for i in range(length)]
        runner.calls.clear()
        rows = forced_logits(runner, prompt, MODEL.greedy(prompt, 4), range(4), 2)
        assert rows.argmax(-1).tolist() == MODEL.greedy(prompt, 4)
        assert max(len(feed.tokens) for call in runner.calls for feed in call) <= 513


def test_noise_is_looked_for_where_answers_part() -> None:
    """Only rows at one place are noisy, far from the start."""

    class LateNoise(ToyRunner):
        def _rows(self, feed: Feed) -> torch.Tensor:
            at = self._length[feed.sequence_id] + len(feed.tokens)
            return super()._rows(feed) + (0.5 if feed.rows > 1 and at > 100 else 0.0)

    runner = LateNoise(MODEL, 4, 256)
    plain = Answer(tuple(MODEL.greedy((1, 2), 120)))
    other = Answer((*plain.tokens[:110], 99))
    explainer = RunnerExplainer(runner, LetterTokenizer(), K + 1)
    noise = [explainer.noise([Compared(Question("", "", (1, 2)), plain, each)]) for each in (plain, other)]
    assert [each.largest for each in noise if each is not None] == pytest.approx([0.0, 0.5])


def compared(runner: ToyRunner, model: ToyModel = MODEL) -> TokenComparison:
    """Both engines over one runner, as they are in use."""
    pair = Pair(
        EngineSampler(make_engine(runner=runner), "plain"),
        EngineSampler(make_engine(RandomDrafter(VOCAB), K, runner=runner), "speculative"),
    )
    explainer = RunnerExplainer(runner, LetterTokenizer(), K + 1)
    return compare_tokens(pair, QUESTIONS, GREEDY, explainer, runner.capabilities.deterministic_shape)


def test_equal_tokens_on_an_exact_runner() -> None:
    found = compared(ToyRunner(MODEL, 4, 64))
    assert (found.prompts, found.tokens, found.divergences) == (3, 72, ())
    assert found.noise is not None
    assert found.noise == Noise(0.0, 0.0, 0.0, 72)
    assert found.passed
    assert found.judged is not None
    assert 0 < found.judged <= 72


def near_tie_model(gap: float) -> ToyModel:
    """Says 1 everywhere; token 0 is ``gap`` behind."""
    table = {key: [1.0 - gap, 1.0, *[-3.0] * 10] for key in [(), *((a,) for a in range(12))]}
    return ToyModel(12, 1, table=table)


def test_noise_that_closes_a_gap_is_a_near_tie() -> None:
    runner = NoisyRunner(0.01, near_tie_model(0.008))
    found = compared(runner)
    assert found.noise is not None
    assert found.noise.rows == pytest.approx(0.01, abs=1e-6)
    assert len(found.divergences) == 3
    first = found.divergences[0]
    assert (first.split.position, first.split.plain, first.split.speculative) == (0, 1, 0)
    assert (first.plain_text, first.speculative_text) == ("b", "a")
    assert first.margin == pytest.approx(0.008, abs=1e-6)
    assert first.factor == pytest.approx(0.8, abs=1e-3)
    assert first.near_tie
    assert found.passed


def test_noise_of_company_alone_is_measured_too() -> None:
    class Crowded(ToyRunner):
        def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
            scores = super().score(feeds, hidden, layers)
            return Scores(tuple(rows + 0.25 * (len(feeds) - 1) for rows in scores.logits))

    compare = [Compared(question, Answer((1,)), Answer((1,))) for question in QUESTIONS[:2]]
    noise = RunnerExplainer(Crowded(MODEL, 4, 64), LetterTokenizer(), K + 1).noise(compare)
    assert noise is not None
    assert noise.rows == 0.0
    assert noise.company == pytest.approx(0.25)
    alone = RunnerExplainer(Crowded(MODEL, 1, 64), LetterTokenizer(), K + 1).noise(compare)
    assert alone is not None
    assert alone.company == 0.0, "there is no room for company"


def test_tokens_that_are_ruled_out_hide_no_noise() -> None:
    table = {key: [0.9, 1.0, *[-torch.inf] * 10] for key in [(), *((a,) for a in range(12))]}
    found = compared(NoisyRunner(0.01, ToyModel(12, 1, table=table)))
    assert found.noise is not None
    assert found.noise.largest == pytest.approx(0.01, abs=1e-6)


def test_what_is_ruled_out_in_wide_passes_only_is_endless_noise() -> None:
    found = compared(NoisyRunner(-math.inf))
    assert found.noise is not None
    assert found.noise.overall > 1e6
    assert math.isfinite(found.noise.overall), "JSON has no infinity"
    assert not found.passed


def test_a_fault_of_wide_passes_is_no_noise_that_explains_itself() -> None:
    """With more than one row, each is computed from one token of context too few."""

    class Shortsighted(NoisyRunner):
        def _rows(self, feed: Feed) -> torch.Tensor:
            if feed.rows < 2:
                return super()._rows(feed)
            end = self._length[feed.sequence_id] + len(feed.tokens)
            seen = self._stored[feed.sequence_id]
            return torch.stack([MODEL.logits(seen[at - 1 : at]) for at in range(end - feed.rows + 1, end + 1)])

    found = compared(Shortsighted(0.0))
    assert found.noise is not None
    assert found.noise.overall > 1.0
    assert len(found.faults) == 3
    assert all(each.factor is not None and each.factor <= 2 for each in found.faults), "or they would be near-ties"


def test_a_gap_wider_than_the_noise_stays_closed_to_it() -> None:
    assert compared(NoisyRunner(0.01, near_tie_model(0.05))).divergences == ()


def test_the_same_near_tie_is_a_fault_where_bits_are_promised() -> None:
    found = compared(NoisyRunner(0.01, near_tie_model(0.008), promises=True))
    assert len(found.faults) == 3
    assert not found.passed


def test_a_broken_promise_of_bits_fails_even_where_no_token_changed() -> None:
    found = compared(NoisyRunner(0.01, near_tie_model(0.05), promises=True))
    assert found.divergences == ()
    assert not found.passed


@pytest.mark.parametrize("off", [1, -1])
def test_a_cache_that_is_off_by_one_after_a_rollback_is_a_fault_of_tokens(off: int) -> None:
    report = make_audit(AdversarialDrafter(VOCAB, 0), runner=WrongCommit(off)).run(QUESTIONS, GREEDY, 100)
    assert report.failed == ("greedy", "rows"), "the accept rule is in order"
    assert report.greedy.faults


def test_the_off_by_one_is_no_near_tie_on_a_runner_with_noise() -> None:
    """The margin tells: rounding of 1e-3 does not close a gap of tenths."""
    runner = WrongCommit(1)
    runner.capabilities = NoisyRunner(1e-3).capabilities
    explainer = RunnerExplainer(NoisyRunner(1e-3), LetterTokenizer(), K + 1)
    pair = Pair(
        EngineSampler(make_engine(), "plain"),
        EngineSampler(make_engine(AdversarialDrafter(VOCAB, 0), K, runner=runner), "speculative"),
    )
    found = compare_tokens(pair, QUESTIONS, GREEDY, explainer, exact=False)
    assert found.faults
    assert found.faults[0].factor is not None
    assert found.faults[0].factor > 10


def test_seeded_tokens_are_compared_too() -> None:
    clean = make_audit(NgramDrafter()).tokens(QUESTIONS, SAMPLED)
    assert clean.passed
    assert (clean.tokens, clean.noise) == (72, None)
    faulty = make_audit(AdversarialDrafter(VOCAB, 0), runner=WrongCommit(1)).tokens(QUESTIONS, SAMPLED)
    assert faulty.faults
    assert all(not each.near_tie and each.margin is None for each in faulty.divergences)
