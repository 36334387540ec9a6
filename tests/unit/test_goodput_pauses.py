"""What the controller makes of the time that a drafter takes to catch up after a pause."""

from __future__ import annotations

import random

import pytest

from outrider.control.draft_cost import DraftCost
from outrider.control.goodput import GoodputController
from outrider.control.step_cost import StepCost
from outrider.testing import StubSequence
from outrider.types import Choice, Offer, PhaseSeconds, RoundTrace, StepTrace


class Timed:
    """A draft model whose passes take scripted times; a plain step takes a second."""

    def __init__(self, chance: float, *, token: float = 0.3, reading: float = 0.07) -> None:
        self.chance, self.token, self.reading = chance, token, reading
        self.controller = GoodputController(StepCost({1: 1.0, 9: 1.4, 129: 8.0}))
        self.sequence, self.random = StubSequence(0, [1]), random.Random(0)
        self.behind, self.seconds, self.tokens = 0, 0.0, 0

    def round(self) -> int:
        (choice,) = self.controller.choose([self.sequence], lambda _: (Offer("draft_model", behind=self.behind),))
        kept = 0
        while kept < choice.tokens and self.random.random() < self.chance:
            kept += 1
        drafting = choice.tokens * self.token + (self.behind * self.reading if choice.tokens else 0.0)
        self.behind = 0 if choice.tokens else self.behind + 1
        pass_ = 1 + 0.05 * choice.tokens
        trace = RoundTrace("r", 0, "draft_model", choice.tokens, kept, kept + 1, choice)
        self.controller.observe(StepTrace((trace,), PhaseSeconds(draft=drafting, target=pass_), 1 + choice.tokens))
        self.seconds, self.tokens = self.seconds + pass_ + drafting, self.tokens + kept + 1
        return choice.tokens

    def rate(self, rounds: int) -> float:
        """Tokens a second; plain decoding makes one."""
        self.seconds, self.tokens = 0.0, 0
        for _ in range(rounds):
            self.round()
        return self.tokens / self.seconds

    @property
    def learnt(self) -> float:
        return self.controller._draft_cost.token("draft_model", 1.0)


def test_what_a_draft_token_costs_does_not_rise_with_pauses() -> None:
    """However long the pause before a trial, and however many trials."""
    world = Timed(0.9)
    world.rate(60)
    assert world.learnt == pytest.approx(0.3, rel=0.1)
    before, world.chance = world.learnt, 0.0
    world.rate(60)
    for behind in (10, 100, 1000, 3000):
        world.behind = behind
        world.controller._draft_cost._owed.clear()
        assert any(world.round() for _ in range(200))
    assert world.learnt <= 1.05 * before
    cheap = Timed(0.9, token=0.01)
    cheap.controller._draft_cost._token["draft_model"] = 0.5
    for _ in range(6):
        choice = Choice(4, Offer("draft_model", behind=3))
        trace = RoundTrace("r", 0, "draft_model", 4, 0, 1, choice)
        cheap.controller.observe(StepTrace((trace,), PhaseSeconds(draft=0.1, target=1.0), 5))
    assert cheap.learnt < 0.3, "it cost less than was thought, catching up and all"


def test_catching_up_for_nothing_is_made_up_for_before_the_next_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of a draft model that is always wrong, and reads a token in 0.07 of a plain step."""
    world = Timed(0.0)
    world.rate(500)
    assert world.rate(4000) > 0.965
    with monkeypatch.context() as patch:
        patch.setattr("outrider.control.draft_cost._TRIAL_SHARE", 1e9)
        tireless = Timed(0.0)
        tireless.rate(500)
        assert tireless.rate(4000) < 0.95, "negative control: nothing is owed for long, a trial every 128 rounds"
    world.chance = 0.95
    assert any(world.round() for _ in range(6000)), "it is tried again all the same"
    assert world.rate(400) > 1.5


class BesideLookup(Timed):
    """Every other round n-grams are found, which nearly always are right; the draft model is behind after each."""

    alone = False
    """Whether there is no draft model."""

    def round(self) -> int:
        offers = () if self.alone else (Offer("draft_model", behind=self.behind),)
        self.turn = 1 - getattr(self, "turn", 0)
        (choice,) = self.controller.choose(
            [self.sequence], lambda _: (Offer("ngram", 3), *offers) if self.turn else offers
        )
        model = choice.offer is not None and choice.offer.drafter == "draft_model" and choice.tokens > 0
        chance, kept = (self.chance if model else 0.9), 0
        while kept < choice.tokens and self.random.random() < chance:
            kept += 1
        drafting = choice.tokens * self.token + self.behind * self.reading if model else 0.0
        self.behind = 0 if model else self.behind + kept + 1
        trace = RoundTrace("r", 0, "several", choice.tokens, kept, kept + 1, choice)
        pass_ = 1 + 0.05 * choice.tokens
        self.controller.observe(StepTrace((trace,), PhaseSeconds(draft=drafting, target=pass_), 1 + choice.tokens))
        self.seconds, self.tokens = self.seconds + pass_ + drafting, self.tokens + kept + 1
        return choice.tokens


@pytest.mark.parametrize(("token", "chance"), [(0.3, 0.6), (0.9, 0.6), (1.5, 0.7)])
def test_a_drafter_that_is_behind_whenever_it_is_used_has_its_price(token: float, chance: float) -> None:
    """Nearly as good as without it; when what it costs was never learnt, up to two thirds of the rate were lost."""
    world, without = (BesideLookup(chance, token=token, reading=0.002) for _ in range(2))
    without.alone = True
    assert world.rate(3000) > 0.92 * without.rate(3000)


def test_one_slow_time_says_little() -> None:
    """A machine that was busy for a minute is no reason to wait for hours."""
    cost = DraftCost()
    offer = Offer("draft_model", behind=10)
    asked = [(offer, RoundTrace("r", 7, "draft_model", 1, 0, 1, Choice(1, offer)))]
    cost.observe(asked, 0.7 + 0.02, 1.0, {7})
    assert cost.catching_up(Offer("draft_model", behind=10)) == pytest.approx(0.7)
    cost.pass_by(70.1)
    assert cost.may_try("draft_model")
    cost.observe(asked, 60.0, 1.0, {7})
    assert cost.catching_up(Offer("draft_model", behind=10)) < 0.85
    assert not cost.may_try("draft_model")
    cost.pass_by(141.0)
    assert cost.may_try("draft_model")
    first = DraftCost()
    first.observe(asked, 600.0, 1.0, {7})
    first.pass_by(2001.0)
    assert first.may_try("draft_model")


def test_only_trials_are_made_up_for() -> None:
    """A draft that was chosen for what it promises has catching up in its price."""
    cost = DraftCost()
    offer = Offer("draft_model", behind=10)
    asked = [(offer, RoundTrace("r", 7, "draft_model", 1, 0, 1, Choice(1, offer)))]
    cost.observe(asked, 0.7, 1.0, set())
    assert cost.may_try("draft_model")
