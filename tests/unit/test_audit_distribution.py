"""End to end on toy models: a clean pair passes, a drafter that misreports does not, and a control shows why."""

from __future__ import annotations

import pytest

from outrider.audit.control import KeepsFirst, Misreporting, choose_mistake
from outrider.audit.distribution import HISTOGRAMS, compare_histograms, count_judged, draw
from outrider.audit.engine_sampler import EngineSampler
from outrider.audit.report import FALSE_ALARM
from outrider.audit.rule import RACES
from outrider.audit.run import alarm_each, compare_laws
from outrider.audit.samples import Answer, Job, Pair, Question, with_fresh_seed
from outrider.audit.warm import WarmRunner
from outrider.draft.ngram import NgramDrafter
from outrider.errors import RequestError
from outrider.models.base import Feed
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import RandomDrafter
from outrider.types import Draft, RequestState
from outrider.verify import verifier_named
from tests.support import MODEL, make_engine
from tests.unit.audits import QUESTIONS, SAMPLED, VOCAB, K, make_audit

SAMPLES = 150


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the rule check only has to agree."""
    monkeypatch.setattr("outrider.audit.run.ROUNDS", 6)


def test_a_clean_pair_passes_every_part_and_the_control_is_caught() -> None:
    report = make_audit(RandomDrafter(VOCAB), rule="block").run(QUESTIONS, SAMPLED, SAMPLES)
    assert report.failed == ()
    assert report.seeded is None, "block verification keeps the law, not the tokens"
    assert report.distribution is not None
    assert len(report.distribution.tests) == 2 * len(QUESTIONS)
    judged = report.distribution.judged
    assert judged.told
    assert judged.of == len(QUESTIONS) * SAMPLES
    assert judged.first == judged.of, "every first token met a draft"
    assert judged.second == judged.of, "and so did the second ones, kept or in the next round"
    assert report.control is not None
    assert report.control.caught


def test_a_clean_coupled_pair_passes_too() -> None:
    report = make_audit(NgramDrafter()).run(QUESTIONS[:2], SAMPLED, SAMPLES)
    assert report.failed == ()
    assert report.seeded is not None
    assert report.control is not None
    assert "accept rule" in report.control.mistake


def test_a_drafter_that_misreports_is_caught_end_to_end_and_not_by_the_rule() -> None:
    drafter = Misreporting(RandomDrafter(VOCAB), VOCAB)
    report = make_audit(drafter, rule="standard").run(QUESTIONS, SAMPLED, SAMPLES)
    assert report.failed == ("distribution",)
    assert report.rule is not None
    assert report.rule.worst < 1e-12, "the rule does right by what it is told"


def test_a_control_that_shows_nothing_fails_the_audit() -> None:
    """Drafts of what the target always says: no mistake about them can bias anything."""

    class Silent(RandomDrafter):
        def _draft(self, sequence: RequestState, budget: int) -> Draft:
            # The first two tokens are never drafted for, so nothing about them is shown.
            return Draft() if len(sequence.tokens) < sequence.prompt_length + 2 else super()._draft(sequence, budget)

    report = make_audit(Silent(VOCAB), rule="block").run(QUESTIONS, SAMPLED, SAMPLES)
    assert report.failed == ("control",)
    assert report.distribution is not None
    assert (report.distribution.judged.first, report.distribution.judged.second) == (0, 0)


def test_false_alarms_end_to_end_keep_to_their_odds() -> None:
    """Six of 48 tests below 0.01 would come with odds below 1e-5, even if all were independent."""
    p_values = []
    for seed in range(12):
        audit = make_audit(NgramDrafter(), rule="block")
        params = SamplingParams(seed=seed * 10_000_000, max_tokens=8)
        pair = Pair(EngineSampler(audit.plain, ""), EngineSampler(audit.speculative, ""))
        p_values += [test.test.p_value for test in compare_laws(pair, QUESTIONS[:2], params, 100)[0].tests]
    assert len(p_values) == 48
    assert sum(p < 0.01 for p in p_values) < 6
    assert 12 < sum(p < 0.5 for p in p_values) < 40, "the test does look: p-values are spread out"


def test_all_tests_together_keep_to_the_stated_odds() -> None:
    assert alarm_each(8) * (8 * len(HISTOGRAMS) + RACES) == pytest.approx(FALSE_ALARM)


def test_histograms_name_what_they_compare() -> None:
    same = [Answer((i % 3, i % 2)) for i in range(120)]
    other = [Answer((i % 3, (i // 3) % 3)) for i in range(120)]
    first, both = compare_histograms(QUESTIONS[0], same, other, 1e-3)
    assert (first.prompt, first.histogram, both.histogram) == ("prompt 0", "first token", "first two tokens")
    assert not first.rejected
    assert both.rejected
    assert first.smallest_bias < both.smallest_bias < 1


def test_seeds_are_fresh_and_unseeded_requests_stay_unseeded() -> None:
    assert with_fresh_seed(SamplingParams(seed=2**64 - 1), 3).seed == 2
    assert with_fresh_seed(SamplingParams(), 3).seed is None


def test_judged_tokens_are_counted_by_place() -> None:
    answers = [Answer((1, 2), (True, True)), Answer((1, 2), (True, False)), Answer((1,), (False,)), Answer((), ())]
    counted = count_judged(answers)
    assert (counted.first, counted.second, counted.of, counted.told) == (2, 1, 4, True)
    assert not count_judged([Answer((1, 2))]).told


def test_a_bonus_token_was_not_judged() -> None:
    engine = make_engine(NgramDrafter(), 1)
    prompt = (1, 2, 3, *MODEL.greedy((1, 2, 3), 1), 1, 2, 3)
    drafted = MODEL.greedy(prompt, 1)[0] == prompt[3]
    (answer,) = EngineSampler(engine, "").sample([Job(Question("", "", prompt), SamplingParams(temperature=0.0), 2)])
    assert drafted, "the toy model looks at two tokens, so it says the same again"
    assert answer.judged == (True, False)


@pytest.mark.parametrize("asked", [1, 2, None])
def test_an_answer_ends_when_it_is_enough_and_leaves_nothing_behind(asked: int | None) -> None:
    engine = make_engine(RandomDrafter(VOCAB), K)
    jobs = [Job(QUESTIONS[i % 3], SAMPLED, asked) for i in range(9)]
    answers = EngineSampler(engine, "").sample(jobs)
    assert {len(answer.tokens) for answer in answers} == {asked or 24}
    assert all(answer.judged is not None and len(answer.judged) == len(answer.tokens) for answer in answers)
    assert not engine.has_work
    assert engine.collect() == []


def test_a_prompt_read_once_is_answered_as_ever() -> None:
    runner = ToyRunner(MODEL, 4, 64)
    engine = make_engine(NgramDrafter(), K, runner=runner)
    jobs = [Job(QUESTIONS[0], with_fresh_seed(SAMPLED, i), 5) for i in range(20)]
    together = EngineSampler(engine, "").sample(jobs)
    read = sum(len(feed.tokens) for call in runner.calls for feed in call if feed.rows == 0)
    assert read == 4 * (len(QUESTIONS[0].ids) - 1), "once a slot"
    alone = [EngineSampler(engine, "").sample([job])[0] for job in jobs]
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert runner.open_slots == 0
    assert engine.runner is runner


def test_a_warm_slot_starts_where_the_prompt_ends() -> None:
    runner = ToyRunner(MODEL, 2, 64)
    warm = WarmRunner(runner, (1, 2, 3))
    for _ in range(3):
        warm.open(7)
        assert warm.length(7) == 2
        logits_V = warm.score([Feed(7, (3, 5), 2)]).logits[0][0]
        assert int(logits_V.argmax()) == MODEL.greedy((1, 2, 3), 1)[0]
        warm.close(7)
        warm.close(7)
    assert runner.open_slots == 1
    warm.discard()
    assert runner.open_slots == 0


def test_a_prompt_that_cannot_be_served_is_named_before_any_work() -> None:
    runner = ToyRunner(MODEL, 4, 64)
    engine = make_engine(runner=runner)
    with pytest.raises(RequestError, match="too long: the prompt has 70 tokens"):
        EngineSampler(engine, "").sample(
            [Job(QUESTIONS[0], SAMPLED), Job(Question("too long", "", (1,) * 70), SAMPLED)]
        )
    assert runner.calls == []
    assert not engine.has_work


def test_the_drafter_is_put_back_after_a_failure() -> None:
    engine = make_engine(RandomDrafter(VOCAB), K, runner=ToyRunner(MODEL, 4, 64, fail_on_call=2))
    drafter, runner = engine.drafter, engine.runner
    spoilt = EngineSampler(engine, "", drafter=lambda inner: Misreporting(inner, VOCAB))
    with pytest.raises(RuntimeError, match="injected"):
        draw(spoilt, QUESTIONS[0], SAMPLED, 3, 0)
    assert (engine.drafter, engine.runner) == (drafter, runner)
    assert not engine.has_work


def test_the_mistake_fits_the_rule() -> None:
    assert choose_mistake(verifier_named("block"), False, VOCAB).drafter is not None
    for rule, greedy in (("coupled", False), ("greedy", True)):
        mistake = choose_mistake(verifier_named(rule), greedy, VOCAB)
        assert mistake.drafter is None
        assert mistake.verifier is KeepsFirst
