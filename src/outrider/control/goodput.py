"""Draft as much as pays: the choice that emits most tokens a second, by what past rounds kept and past steps cost.

Expected tokens of a round are 1 + the sum of the survivals of its draft tokens, its cost that of a pass over one more
row a token and of drafting them. In a batch all (sequence, position) slots are ranked by survival and taken while the
rate grows: survival falls from position to position, so what is taken of a sequence is a prefix.
Sources: Leviathan et al., arXiv 2211.17192; SmartSpec, arXiv 2406.14066 (goodput).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.config import MOST_TOKENS
from outrider.control.draft_cost import DraftCost
from outrider.control.step_cost import StepCost
from outrider.control.survival import SurvivalBook
from outrider.types import Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.control.base import Offers
    from outrider.types import Offer, RequestState, StepTrace

_CLEAR_GAIN = 1.01
"""A rate that is better by less is taken for noise, and plain decoding preferred."""
_SOONEST, _LATEST = 8, 128
"""Rounds that an offer is passed over before it is tried, doubled with every trial that changes nothing."""
_UNLIKELY, _UNLIKELY_PATIENCE = 0.2, 32
"""A first token less likely than this is not tried so soon, whoever asks first."""

_DOZE_AFTER, _DOZE = 8, 4
"""Rounds in which no draft paid before a batch is looked at only once in so many: a look is a per cent of a step."""


@dataclass
class _Passed:
    """For how many rounds a sequence's offer was passed over, and after how many it is tried again."""

    rounds: int = 0
    patience: int = _SOONEST
    instead_of_none: bool = False
    """Whether the trial under way took the place of plain decoding."""


@dataclass(slots=True)
class _Guess:
    """What one offer promises: survival by position, seconds a draft token and, to catch up, before the first; the
    length and rate that are best."""

    offer: Offer | None = None
    survival: Sequence[float] = ()
    seconds: float = 0.0
    late: float = 0.0
    tokens: int = 0
    rate: float = 0.0


class GoodputController:
    """``most`` draft tokens at the most."""

    def __init__(self, cost: StepCost | None = None, most: int = MOST_TOKENS) -> None:
        self._cost = cost or StepCost()
        self._draft_cost = DraftCost()
        self._book = SurvivalBook(most)
        self._passed: dict[int, dict[Offer, _Passed]] = {}
        self._trials: set[int] = set()
        self._plain_rounds = 0
        self._unseen = 0

    def choose(self, sequences: Sequence[RequestState], offers: Offers) -> list[Choice]:
        """The best offer of each sequence, and as much of each as pays for all together."""
        if not sequences:
            return []
        batch = len(sequences)
        self._unseen += 1
        if self._dozes(batch):
            return [Choice()] * batch
        plain, more = self._cost.seconds(batch), self._cost.seconds(4 * batch)
        # A share of the step, and what a row costs where the others go on as they are.
        share, row = plain / batch, (more - plain) / (3 * batch)
        guesses = [
            [self._guess(sequence.id, offer, share, row) for offer in each]
            for sequence, each in zip(sequences, map(offers, sequences), strict=True)
        ]
        best = [max(each, key=lambda guess: guess.rate, default=_Guess()) for each in guesses]
        counts = self._admit(best)
        self._trials.clear()
        choices = [
            self._tried(sequence.id, Choice(count, guess.offer), each, batch)
            for sequence, guess, count, each in zip(sequences, best, counts, guesses, strict=True)
        ]
        self._plain_rounds = 0 if any(counts) else self._plain_rounds + self._unseen
        self._unseen = 0
        return choices

    def observe(self, trace: StepTrace) -> None:
        asked = trace.asked
        for offer, each in asked:
            # One that ended with this round, or has a length of its own, will not be chosen for.
            self._book.observe(offer, each, own=each.sequence_id in self._passed)
            passed = self._passed.get(each.sequence_id, {}).get(offer)
            if passed is not None and passed.instead_of_none and each.kept:
                passed.patience = _SOONEST
        self._draft_cost.pass_by(trace.seconds.total)
        if trace.prompt_rows == 0 and trace.rounds:
            self._cost.observe(trace.rows, trace.seconds.total - trace.seconds.draft)
            self._draft_cost.observe(asked, trace.seconds.draft, self._cost.seconds(1), self._trials)

    def close(self, sequence_id: int) -> None:
        self._passed.pop(sequence_id, None)
        self._book.forget(sequence_id)

    def _dozes(self, batch: int) -> bool:
        """Whether the batch goes on as it did, unseen."""
        return self._plain_rounds >= _DOZE_AFTER and self._unseen < min(batch, _DOZE)

    def _guess(self, sequence: int, offer: Offer, share: float, row: float) -> _Guess:
        survival = self._book.survival(sequence, offer)
        drafting = self._draft_cost.token(offer.drafter, self._cost.seconds(1))
        late = self._draft_cost.catching_up(offer)
        tokens, cost, best, best_rate = 1.0, share + late, 0, 1 / share
        for count, chance in enumerate(survival, start=1):
            # Survival falls: what does not raise the rate here does not further on.
            if chance * cost <= tokens * (row + drafting):
                break
            tokens, cost = tokens + chance, cost + row + drafting
            if tokens / cost > best_rate:
                best, best_rate = count, tokens / cost
        return _Guess(offer, survival, drafting, late, best, best_rate)

    def _admit(self, guesses: Sequence[_Guess]) -> list[int]:
        """Draft tokens of each sequence at the best rate of all. Whoever is behind catches up before its first."""
        batch = len(guesses)
        plain, row = self._cost.seconds(batch), self._cost.least_row(batch)
        # Where no first token pays for the cheapest row there is, nothing does.
        if all(each.survival[0] * plain <= batch * (row + each.seconds) for each in guesses if each.survival):
            return [0] * batch
        slots = sorted(
            (
                (chance, i, each.seconds + (0.0 if place else each.late))
                for i, each in enumerate(guesses)
                for place, chance in enumerate(each.survival)
            ),
            reverse=True,
        )
        step = self._cost.table(batch, batch + len(slots))
        tokens, drafting, taken, best_rate = float(batch), 0.0, 0, _CLEAR_GAIN * batch / step[0]
        for count, (chance, _, seconds) in enumerate(slots, start=1):
            tokens, drafting = tokens + chance, drafting + seconds
            rate = tokens / (step[count] + drafting)
            if rate > best_rate:
                best_rate, taken = rate, count
        counts = [0] * batch
        for _, sequence, _ in slots[:taken]:
            counts[sequence] += 1
        return counts

    def _tried(self, sequence: int, choice: Choice, guesses: Sequence[_Guess], batch: int) -> Choice:
        """The choice, or now and then an offer that was passed over: texts change, and so do the drafters' luck."""
        passed = self._passed.setdefault(sequence, {})
        for guess in guesses:
            assert guess.offer is not None
            patience = _SOONEST if guess.survival[0] >= _UNLIKELY else _UNLIKELY_PATIENCE
            here = passed.setdefault(guess.offer, _Passed(patience=patience))
            here.instead_of_none = False
            if choice.tokens and guess.offer == choice.offer:
                here.rounds, here.patience = 0, _SOONEST
                continue
            here.rounds += self._unseen
            # All of a batch together try as often as one alone would: each trial is a step that all wait for.
            if here.rounds > here.patience * batch and self._draft_cost.may_try(guess.offer.drafter):
                here.rounds, here.patience = 0, min(_LATEST, 2 * here.patience)
                here.instead_of_none = choice.tokens == 0
                self._trials.add(sequence)
                return Choice(max(1, guess.tokens), guess.offer)
        return choice
