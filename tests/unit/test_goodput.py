"""The goodput controller: what it chooses by what it has seen, against the best choice that there is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from outrider.control.goodput import GoodputController, _Guess
from outrider.control.step_cost import StepCost
from outrider.control.survival import SurvivalBook
from outrider.testing import StubSequence
from outrider.types import Choice, Offer, PhaseSeconds, RoundTrace, StepTrace

DRAFT, LOOKUP = Offer("spire"), Offer("ngram", 3)
ROW = 0.05
DRAFTING = 0.06
LOOKING_UP = 0.0005


def cost(rows: int) -> float:
    """A pass of one row takes a second, and each further row a little more."""
    return 1 + ROW * (rows - 1)


class World:
    """Drafts that are kept position by position with a fixed chance, by offer, and steps that take what they take."""

    def __init__(self, chances: dict[Offer, float], *, batch: int = 1, noise: float = 0.0, seed: int = 0) -> None:
        self.chances, self.noise, self.random = chances, noise, random.Random(seed)
        self.sequences = [StubSequence(i, [1]) for i in range(batch)]
        self.controller = GoodputController(StepCost({1: cost(1), 9: cost(9), 129: cost(129)}))
        self.tokens, self.seconds = 0, 0.0

    def run(self, rounds: int) -> list[list[Choice]]:
        return [self.round() for _ in range(rounds)]

    def round(self) -> list[Choice]:
        choices = self.controller.choose(self.sequences, lambda _: tuple(self.chances))
        traces = []
        for sequence, choice in zip(self.sequences, choices, strict=True):
            kept = 0
            while kept < choice.tokens and choice.offer and self.random.random() < self.chances[choice.offer]:
                kept += 1
            traces.append(RoundTrace("req-0", sequence.id, "any", choice.tokens, kept, kept + 1, choice))
        rows = sum(1 + choice.tokens for choice in choices)
        drafting = sum(c.tokens * (DRAFTING if c.offer == DRAFT else LOOKING_UP) for c in choices)
        seconds = cost(rows) * (1 + self.noise * self.random.uniform(-1, 1))
        self.tokens, self.seconds = self.tokens + sum(t.emitted for t in traces), self.seconds + seconds + drafting
        self.controller.observe(StepTrace(tuple(traces), PhaseSeconds(draft=drafting, target=seconds), rows))
        return choices

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def rate_of(chance: float, k: int, drafting: float = DRAFTING) -> float:
    """Of a fixed draft length, by the closed form."""
    return sum(chance**j for j in range(k + 1)) / (cost(k + 1) + k * drafting)


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7, 0.85, 0.95])
def test_near_the_best_fixed_length(chance: float) -> None:
    world = World({DRAFT: chance}, noise=0.2)
    world.run(60)
    world.tokens, world.seconds = 0, 0.0
    world.run(4000)
    assert world.rate > 0.96 * max(rate_of(chance, k) for k in range(13))


def test_a_drafter_that_is_always_wrong_costs_next_to_nothing() -> None:
    world = World({DRAFT: 0.0}, noise=0.2)
    world.run(400)
    assert world.rate > 0.985, "plain decoding makes one token a second"
    assert sum(choices[0].tokens for choices in world.run(400)) <= 4, "and it is hardly asked any more"


def test_a_batch_tries_as_often_as_one_sequence() -> None:
    """All its sequences together: a trial is a step that all wait for."""
    tries = []
    for batch in (1, 8):
        world = World({DRAFT: 0.0}, batch=batch)
        world.run(400)
        tries.append(sum(choice.tokens > 0 for round_ in world.run(4000) for choice in round_))
    assert 0 < tries[1] <= 2 * tries[0]


def test_it_comes_back_and_goes_again() -> None:
    world = World({DRAFT: 0.0})
    world.run(300)
    world.chances[DRAFT] = 0.9
    back = [choices[0].tokens for choices in world.run(400)]
    assert sum(back[-50:]) > 3 * 50
    world.chances[DRAFT] = 0.0
    away = [choices[0].tokens for choices in world.run(120)]
    assert sum(away[-50:]) <= 4


def test_the_better_drafter_is_taken_whichever_is_preferred() -> None:
    for chances, better in (({LOOKUP: 0.2, DRAFT: 0.7}, DRAFT), ({LOOKUP: 0.7, DRAFT: 0.4}, LOOKUP)):
        world = World(chances)
        world.run(100)
        chosen = [choices[0].offer for choices in world.run(100)]
        assert chosen.count(better) >= 95


def test_what_drafting_costs_counts() -> None:
    """Of two drafters that are right as often, the one that costs nothing."""
    world = World({DRAFT: 0.6, LOOKUP: 0.6})
    world.run(100)
    assert [choices[0].offer for choices in world.run(100)].count(LOOKUP) >= 95


def test_nothing_offered_is_plain_decoding() -> None:
    controller = GoodputController()
    assert controller.choose([StubSequence(0, [1])], lambda _: ()) == [Choice()]
    assert controller.choose([], lambda _: ()) == []


def test_a_batch_gets_the_best_prefixes_of_all() -> None:
    """Against every possible choice, by survival known and costs known."""
    survivals = [[0.9, 0.8, 0.5], [0.6, 0.2, 0.1], [0.3, 0.25, 0.2]]
    # The last two have to catch up.
    drafting, late = [0.0, 0.03, 0.01], [0.0, 0.05, 0.3]
    for row in (0.02, 0.1, 0.2, 0.5, 2.0):
        controller = GoodputController(StepCost({1: 1.0, 129: 1.0 + 128 * row}), most=3)

        def rate(ks: Sequence[int], row: float = row) -> float:
            tokens = len(ks) + sum(sum(survivals[i][:k]) for i, k in enumerate(ks))
            spent = sum(k * drafting[i] + (late[i] if k else 0.0) for i, k in enumerate(ks))
            return tokens / (1 + row * (len(ks) + sum(ks) - 1) + spent)

        best = max(rate(ks) for ks in product(range(4), repeat=3))
        parts = zip(survivals, drafting, late, strict=True)
        chosen = controller._admit([_Guess(None, chances, seconds, first) for chances, seconds, first in parts])
        assert rate(chosen) > best / 1.012, f"row {row}: {chosen}"


def test_what_looks_hopeless_is_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken without a look at every slot only where that look would have taken nothing."""
    luck, looked = random.Random(0), 0
    for _ in range(300):
        seconds = {rows: 1 + rows * luck.uniform(0.01, 0.3) for rows in (1, 3, 5, 9, 17, 33, 129)}
        controller = GoodputController(StepCost(seconds))
        chances = [
            sorted((luck.random() ** 3 for _ in range(luck.randint(1, 6))), reverse=True)
            for _ in range(luck.randint(1, 12))
        ]
        guesses = [_Guess(DRAFT, each, luck.choice((0.0, 0.02)), luck.choice((0.0, 0.1))) for each in chances]
        chosen = controller._admit(guesses)
        with monkeypatch.context() as patch:
            patch.setattr(controller._cost, "least_row", lambda _: 0.0)
            assert controller._admit(guesses) == chosen
        looked += any(chosen)
    assert 50 < looked < 250


def test_a_length_is_the_best_of_all() -> None:
    """Where survival falls the search ends at the first token that does not pay: against every length."""
    luck = random.Random(1)
    for _ in range(300):
        controller = GoodputController(StepCost({1: 1.0, 129: 1 + 128 * luck.uniform(0.01, 0.3)}), most=8)
        for _ in range(30):
            kept = luck.randint(0, 6)
            controller._book.observe(DRAFT, RoundTrace("r", 0, "spire", 8, kept, kept + 1, Choice(8, DRAFT)), own=True)
        share, row = 1.0, luck.uniform(0.01, 0.3)
        drafting, survival = controller._draft_cost.token("spire", 1.0), controller._book.survival(0, DRAFT)
        rates = [(1 + sum(survival[:k])) / (share + k * (row + drafting)) for k in range(len(survival) + 1)]
        assert rates[controller._guess(0, DRAFT, share, row).tokens] == pytest.approx(max(rates), rel=1e-12)


def test_the_cheapest_row_is_known_after_every_step() -> None:
    luck, steps = random.Random(2), StepCost({1: 1.0, 129: 5.0})
    for _ in range(200):
        rows = luck.randint(1, 40)
        steps.observe(rows, cost(rows) * luck.uniform(0.5, 2))
        here = luck.choice((1, 8))
        more = [(steps.seconds(here + count) - steps.seconds(here)) / count for count in range(1, 2000)]
        assert steps.least_row(here) == pytest.approx(min(more), rel=1e-2)
        assert steps.least_row(here) <= min(more) * (1 + 1e-12)


def test_a_batch_that_decodes_plainly_is_hardly_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for batch, share in ((1, 1.0), (8, 0.4)):
        world, looked = World({DRAFT: 0.0}, batch=batch), 0
        world.run(400)
        guess = world.controller._guess

        def counted(*given: Any, guess: Any = guess) -> Any:
            nonlocal looked
            looked += 1
            return guess(*given)

        monkeypatch.setattr(world.controller, "_guess", counted)
        world.run(1000)
        assert looked <= share * 1000 * batch
        world.chances[DRAFT] = 0.9
        world.run(1500)
        awake = [choice.tokens > 0 for choices in world.run(400) for choice in choices]
        assert sum(awake) > 0.5 * len(awake)


def test_one_bad_sequence_does_not_spoil_the_others() -> None:
    """In company each sequence has its own survival."""
    sequences = [StubSequence(i, [1]) for i in range(4)]
    controller = GoodputController(StepCost({1: 1.0, 129: 1 + 128 * ROW}))
    for _ in range(60):
        choices = controller.choose(sequences, lambda _: (DRAFT,))
        kept = [0 if seq.id == 0 else choice.tokens for seq, choice in zip(sequences, choices, strict=True)]
        traces = tuple(
            RoundTrace("req-0", seq.id, "spire", choice.tokens, k, k + 1, choice)
            for seq, choice, k in zip(sequences, choices, kept, strict=True)
        )
        rows = sum(choice.tokens + 1 for choice in choices)
        controller.observe(StepTrace(traces, PhaseSeconds(target=cost(rows)), rows))
    ks = [choice.tokens for choice in controller.choose(sequences, lambda _: (DRAFT,))]
    assert ks[0] <= 1, "at most a trial"
    assert min(ks[1:]) >= 8


def test_a_machine_that_slows_down_does_not_change_the_choice() -> None:
    """Its speed is no property of the draft length that was in use meanwhile."""
    steps = StepCost({1: cost(1), 9: cost(9), 129: cost(129)})
    for _ in range(100):
        steps.observe(5, 2 * cost(5))
    assert steps.seconds(5) == pytest.approx(2 * cost(5), rel=0.04)
    for rows in (1, 4, 6, 17):
        assert steps.seconds(rows) / steps.seconds(5) == pytest.approx(cost(rows) / cost(5), rel=0.03)


def test_a_new_speed_is_approached_and_not_passed() -> None:
    steps, seen = StepCost({1: 1.0, 9: 1.4}), []
    for _ in range(60):
        steps.observe(1, 1.5)
        seen.append(steps.seconds(1))
    assert seen == pytest.approx(sorted(seen), rel=0.03)
    assert max(seen) < 1.58
    assert seen[-1] == pytest.approx(1.5, rel=0.03)


def test_the_first_step_sets_the_scale_where_nothing_was_measured() -> None:
    steps = StepCost()
    steps.observe(5, 0.07 * 1.16)
    assert steps.seconds(1) == pytest.approx(0.07, rel=0.01)
    for _ in range(100):
        steps.observe(1, 0.07)
    assert steps.seconds(5) / steps.seconds(1) == pytest.approx(1.16, rel=0.05), "nothing was seen of five rows since"


def test_costs_are_learnt_where_nothing_was_measured() -> None:
    steps = StepCost()
    dear = [1.0, 1.0, 1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4]
    for turn in range(600):
        rows = (1, 2, 5, 9)[turn % 4]
        steps.observe(rows, dear[rows - 1])
    for rows in (1, 2, 5, 9):
        assert steps.seconds(rows) == pytest.approx(dear[rows - 1], rel=0.15)


def test_costs_never_fall_with_rows_and_go_on_beyond_the_table() -> None:
    steps = StepCost({1: 1.0, 5: 1.5, 9: 1.4})
    table = [steps.seconds(rows) for rows in range(1, 400)]
    assert table == sorted(table)
    assert steps.table(120, 140) == table[119:140]
    assert steps.table(200, 205) == table[199:205]
    for rows, seconds in ((0, 1.0), (3, 0.0), (3, -1.0)):
        steps.observe(rows, seconds)
    assert [steps.seconds(rows) for rows in range(1, 400)] == table


def test_prompt_steps_teach_no_costs() -> None:
    controller = GoodputController(StepCost({1: 1.0, 9: 1.4}))
    trace = RoundTrace("req-0", 0, "spire", 0, 0, 1)
    for _ in range(20):
        controller.observe(StepTrace((trace,), PhaseSeconds(target=50.0), rows=300, prompt_rows=299))
    assert controller._cost.seconds(1) == 1.0


def test_a_sequence_of_a_used_name_starts_afresh() -> None:
    book = SurvivalBook(4)
    fresh = book.survival(0, DRAFT)
    for _ in range(9):
        book.observe(DRAFT, RoundTrace("r", 1, "spire", 4, 4, 5, Choice(4, DRAFT)), own=False)
    shared = book.survival(0, DRAFT)
    book.observe(DRAFT, RoundTrace("r", 0, "spire", 4, 0, 1, Choice(4, DRAFT)), own=True)
    own = book.survival(0, DRAFT)
    book.forget(0)
    assert own[0] < book.survival(0, DRAFT)[0] < shared[0]
    assert fresh[0] < shared[0]


def test_sequences_that_ended_are_forgotten() -> None:
    controller = GoodputController()
    for number in range(50):
        sequence = StubSequence(number, [1])
        (choice,) = controller.choose([sequence], lambda _: (DRAFT,))
        controller.observe(
            StepTrace((RoundTrace("r", number, "spire", choice.tokens, 0, 1, choice),), PhaseSeconds(target=1.0), 3)
        )
        controller.close(number)
        controller.close(number)
    for number in range(50):
        # An engine lets a sequence go before it hands in the step that ended it; it has no memory then.
        last = RoundTrace("r", number, "spire", 4, 0, 1, Choice(4, DRAFT))
        controller.observe(StepTrace((last,), PhaseSeconds(target=1.0), 5))
    assert not controller._passed
    assert not controller._book._own


def test_who_drafts_is_charged_for_it() -> None:
    """Two drafters in one step share its time by what each was expected to take; a doubted token took its time too."""
    controller = GoodputController(StepCost({1: 1.0, 9: 1.4}))
    for _ in range(60):
        alone = RoundTrace("r", 0, "spire", 0, 0, 1, Choice(4, DRAFT))
        controller.observe(StepTrace((alone,), PhaseSeconds(draft=0.1, target=1.0), 1))
    assert controller._draft_cost.token("spire", 1.0) == pytest.approx(0.1, rel=0.05)
    for _ in range(60):
        both = (RoundTrace("r", 0, "s", 2, 0, 1, Choice(2, DRAFT)), RoundTrace("r", 1, "n", 4, 0, 1, Choice(4, LOOKUP)))
        controller.observe(StepTrace(both, PhaseSeconds(draft=0.2, target=1.0), 8))
    assert controller._draft_cost.token("ngram", 1.0) < 0.02
