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
from outrider.control.step_cost import StepCost
from outrider.control.survival import SurvivalBook
from outrider.types import Choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outrider.types import Offer, RequestState, RoundTrace, StepTrace

_CLEAR_GAIN = 1.01
"""A rate that is better by less is taken for noise, and plain decoding preferred."""
_SOONEST, _LATEST = 8, 128
"""Rounds that an offer is passed over before it is tried, doubled with every trial that changes nothing."""
_REMEMBERED = 256
_DRAFT_PACE = 0.1


@dataclass
class _Passed:
    """For how many rounds a sequence's offer was passed over, and after how many it is tried again."""

    rounds: int = 0
    patience: int = _SOONEST
    instead_of_none: bool = False
    """Whether the trial under way took the place of plain decoding."""


@dataclass(frozen=True)
class _Guess:
    """What one offer promises: survival by position, seconds a draft token, and the length and rate that are best."""

    offer: Offer | None = None
    survival: tuple[float, ...] = ()
    seconds: float = 0.0
    tokens: int = 0
    rate: float = 0.0


class GoodputController:
    """``most`` draft tokens at the most; ``draft_seconds``: of one token, by drafter, where it is known."""

    def __init__(
        self, cost: StepCost | None = None, draft_seconds: Mapping[str, float] | None = None, most: int = MOST_TOKENS
    ) -> None:
        self._cost, self._most = cost or StepCost(), most
        self._draft_seconds = dict(draft_seconds or {})
        self._book = SurvivalBook(most)
        self._passed: dict[int, dict[Offer, _Passed]] = {}

    def choose(self, sequences: Sequence[RequestState], offers: Sequence[Sequence[Offer]]) -> list[Choice]:
        """The best offer of each sequence, and as much of each as pays for all together."""
        self._forget_others({sequence.id for sequence in sequences})
        batch = len(sequences)
        guesses = [
            [self._guess(sequence.id, offer, batch) for offer in each]
            for sequence, each in zip(sequences, offers, strict=True)
        ]
        best = [max(each, key=lambda guess: guess.rate, default=_Guess()) for each in guesses]
        counts = self._admit([guess.survival for guess in best], [guess.seconds for guess in best])
        return [
            self._tried(sequence.id, Choice(count, guess.offer), each)
            for sequence, guess, count, each in zip(sequences, best, counts, guesses, strict=True)
        ]

    def observe(self, trace: StepTrace) -> None:
        for each in trace.rounds:
            self._book.observe(each)
            offer = each.choice.offer
            passed = self._passed.get(each.sequence_id, {}).get(offer) if offer is not None else None
            if passed is not None and passed.instead_of_none and each.kept:
                passed.patience = _SOONEST
        if trace.prompt_rows == 0 and trace.rounds:
            self._cost.observe(trace.rows, trace.seconds.total - trace.seconds.draft)
            self._observe_drafting(trace.rounds, trace.seconds.draft)

    def _guess(self, sequence: int, offer: Offer, batch: int) -> _Guess:
        """Its best rate where the step is shared with ``batch`` - 1 others that go on as they are."""
        survival, drafting = self._book.survival(sequence, offer), self._draft_seconds.get(offer.drafter, 0.0)
        share = self._cost.seconds(batch) / batch
        row = (self._cost.seconds(4 * batch) - self._cost.seconds(batch)) / (3 * batch)
        tokens, cost, best, best_rate = 1.0, share, 0, 1 / share
        for count, chance in enumerate(survival, start=1):
            tokens, cost = tokens + chance, cost + row + drafting
            if tokens / cost > best_rate:
                best, best_rate = count, tokens / cost
        return _Guess(offer, tuple(survival), drafting, best, best_rate)

    def _admit(self, survivals: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[int]:
        """Draft tokens of each sequence at the best rate of all."""
        batch = len(survivals)
        slots = sorted(((chance, i) for i, each in enumerate(survivals) for chance in each), reverse=True)
        step = self._cost.table(batch, batch + len(slots))
        tokens, drafting, taken, best_rate = float(batch), 0.0, 0, _CLEAR_GAIN * batch / max(step[0], 1e-12)
        for count, (chance, sequence) in enumerate(slots, start=1):
            tokens, drafting = tokens + chance, drafting + seconds[sequence]
            rate = tokens / (step[count] + drafting)
            if rate > best_rate:
                best_rate, taken = rate, count
        counts = [0] * batch
        for _, sequence in slots[:taken]:
            counts[sequence] += 1
        return counts

    def _tried(self, sequence: int, choice: Choice, guesses: Sequence[_Guess]) -> Choice:
        """The choice, or now and then an offer that was passed over: texts change, and so do the drafters' luck."""
        passed = self._passed.setdefault(sequence, {})
        for guess in guesses:
            assert guess.offer is not None
            here = passed.setdefault(guess.offer, _Passed())
            here.instead_of_none = False
            if choice.tokens and guess.offer == choice.offer:
                here.rounds, here.patience = 0, _SOONEST
                continue
            here.rounds += 1
            if here.rounds > here.patience:
                here.rounds, here.patience = 0, min(_LATEST, 2 * here.patience)
                here.instead_of_none = choice.tokens == 0
                return Choice(max(1, guess.tokens), guess.offer)
        return choice

    def _observe_drafting(self, rounds: Sequence[RoundTrace], seconds: float) -> None:
        drafters = {each.choice.offer.drafter for each in rounds if each.choice.offer and each.drafted}
        if len(drafters) != 1:
            return
        (drafter,), each = drafters, seconds / sum(trace.drafted for trace in rounds)
        before = self._draft_seconds.setdefault(drafter, each)
        self._draft_seconds[drafter] = before + _DRAFT_PACE * (min(each, 2 * before) - before)

    def _forget_others(self, sequences: set[int]) -> None:
        if len(self._passed) > _REMEMBERED + len(sequences):
            self._passed = {key: value for key, value in self._passed.items() if key in sequences}
            self._book.keep(sequences)
