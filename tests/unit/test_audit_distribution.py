"""End to end on toy models: a clean pair passes, a drafter that misreports does not, and a control shows why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

from outrider.audit.control import Misreporting, mistakes_for
from outrider.audit.distribution import HISTOGRAMS, compare_histograms, count_judged, draw
from outrider.audit.draws import PURPOSES
from outrider.audit.engine_sampler import EngineSampler
from outrider.audit.report import FALSE_ALARM
from outrider.audit.run import EngineAudit, alarm_each, compare_laws
from outrider.audit.samples import Answer, Job, Pair, Question, with_fresh_seed
from outrider.audit.text import paragraph
from outrider.draft.ngram import NgramDrafter
from outrider.errors import RequestError
from outrider.models.base import Feed, Scores
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
    assert report.failed == ("draws", "distribution")
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
    assert alarm_each(8) * (8 * len(HISTOGRAMS) + len(PURPOSES)) == pytest.approx(FALSE_ALARM)


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


def test_questions_take_turns_and_seeds_are_never_shared() -> None:
    asked: list[Job] = []

    class Recorder:
        def sample(self, jobs: Sequence[Job]) -> list[Answer]:
            asked.extend(jobs)
            return [Answer((i,)) for i in range(len(jobs))]

    compare_laws(Pair(Recorder(), Recorder()), QUESTIONS, SAMPLED, 10)
    assert [job.question for job in asked] == QUESTIONS * 20
    assert len({job.params.seed for job in asked}) == 60
    answers = draw(Recorder(), QUESTIONS, SAMPLED, 2, 0)
    assert answers == [[Answer((0,)), Answer((3,))], [Answer((1,)), Answer((4,))], [Answer((2,)), Answer((5,))]]


def test_a_slot_that_keeps_something_of_its_last_text_is_caught() -> None:
    """Only where slots are used again: fewer questions than slots do not show it token for token."""

    class Stale(ToyRunner):
        _left: list[int]

        def __init__(self) -> None:
            super().__init__(MODEL, 4, 64)
            self._left = []

        def open(self, sequence_id: int) -> None:
            super().open(sequence_id)
            self._stored[sequence_id] = self._left[:1]
            self._length[sequence_id] = 0

        def close(self, sequence_id: int) -> None:
            self._left = self._stored.get(sequence_id, self._left)
            super().close(sequence_id)

        def _write(self, feed: Feed) -> None:
            kept = self._stored[feed.sequence_id][:1] if self._length[feed.sequence_id] == 0 else []
            super()._write(feed)
            self._stored[feed.sequence_id][: len(kept)] = kept

    questions = [Question("a", "", (1, 2)), Question("b", "", (4, 5))]
    report = make_audit(RandomDrafter(VOCAB), rule="block", runner=Stale()).run(questions, SAMPLED, SAMPLES)
    assert "distribution" in report.failed


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
        draw(spoilt, QUESTIONS[:1], SAMPLED, 3, 0)
    assert (engine.drafter, engine.runner) == (drafter, runner)
    assert not engine.has_work


def test_the_mistakes_fit_the_rule() -> None:
    wrong_q, keeps = mistakes_for(verifier_named("block"), False, VOCAB)
    assert (wrong_q.drafter is None, wrong_q.verifier is None) == (False, True)
    for rule, greedy in (("coupled", False), ("greedy", True)):
        assert [mistake.words for mistake in mistakes_for(verifier_named(rule), greedy, VOCAB)] == [keeps.words]


@pytest.mark.parametrize("params", [replace(SAMPLED, top_k=1), replace(SAMPLED, temperature=0.02)])
def test_where_nothing_is_left_to_chance_a_wrong_q_is_no_control(params: SamplingParams) -> None:
    """A faultless engine must not fail for it: the other mistake is."""
    report = make_audit(RandomDrafter(VOCAB), rule="block").run(QUESTIONS, params, SAMPLES)
    assert report.failed == ()
    assert report.control is not None
    assert len(report.control.unseen) == 1
    assert "keeps the first draft token" in report.control.mistake
    assert "a smaller one" in paragraph(report)


def test_a_coupled_rule_without_a_seed_promises_no_tokens() -> None:
    report = make_audit(RandomDrafter(VOCAB), rule="coupled").run(QUESTIONS, replace(SAMPLED, seed=None), SAMPLES)
    assert report.failed == ()
    assert report.seeded is None


def test_an_interrupt_leaves_nothing_behind_in_whatever_part() -> None:
    """Every so many passes of the model, over a whole audit."""

    class Interrupted(ToyRunner):
        left = 0

        def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().score(feeds, hidden, layers)

    runner = Interrupted(MODEL, 4, 64)
    plain, speculative = make_engine(runner=runner), make_engine(RandomDrafter(VOCAB), K, runner=runner, rule="block")
    drafter, calls = speculative.drafter, count(1, 29)
    for runner.left in calls:
        try:
            EngineAudit(plain, speculative, K).run(QUESTIONS[:2], SAMPLED, 40)
        except KeyboardInterrupt:
            assert runner.open_slots == 0
            assert not plain.has_work
            assert not speculative.has_work
            assert speculative.drafter is drafter
        else:
            break
    assert next(calls) > 250, "the audit was interrupted in all of its parts"
