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
    from collections.abc import Sequence

    from outrider.types import Offer, RequestState, RoundTrace, StepTrace

_CLEAR_GAIN = 1.01
"""A rate that is better by less is taken for noise, and plain decoding preferred."""
_SOONEST, _LATEST = 8, 128
"""Rounds that an offer is passed over before it is tried, doubled with every trial that changes nothing."""
_UNLIKELY, _UNLIKELY_PATIENCE = 0.2, 32
"""A first token less likely than this is not tried so soon, whoever asks first."""
_GUESSED_SHARE, _DRAFT_PACE = 0.02, 0.2
"""What a draft token costs of a plain step until it is seen, and how fast what is seen counts."""
_TRIAL_SHARE = 0.01
"""Of all time, what may go into catching up for drafts after a pause."""


@dataclass
class _Passed:
    """For how many rounds a sequence's offer was passed over, and after how many it is tried again."""

    rounds: int = 0
    patience: int = _SOONEST
    instead_of_none: bool = False
    """Whether the trial under way took the place of plain decoding."""


@dataclass(slots=True)
class _Guess:
    """What one offer promises: survival by position, seconds a draft token, and the length and rate that are best."""

    offer: Offer | None = None
    survival: Sequence[float] = ()
    seconds: float = 0.0
    tokens: int = 0
    rate: float = 0.0


class GoodputController:
    """``most`` draft tokens at the most."""

    def __init__(self, cost: StepCost | None = None, most: int = MOST_TOKENS) -> None:
        self._cost = cost or StepCost()
        self._draft_seconds: dict[str, float] = {}
        """Of one draft token, by drafter."""
        self._owed: dict[str, float] = {}
        """Seconds that a drafter took to catch up and that later steps have yet to make up for."""
        self._book = SurvivalBook(most)
        self._passed: dict[int, dict[Offer, _Passed]] = {}

    def choose(self, sequences: Sequence[RequestState], offers: Sequence[Sequence[Offer]]) -> list[Choice]:
        """The best offer of each sequence, and as much of each as pays for all together."""
        if not sequences:
            return []
        batch = len(sequences)
        plain, more = self._cost.seconds(batch), self._cost.seconds(4 * batch)
        # A share of the step, and what a row costs where the others go on as they are.
        share, row = plain / batch, (more - plain) / (3 * batch)
        guesses = [
            [self._guess(sequence.id, offer, share, row) for offer in each]
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
            if self._owed:
                paid = _TRIAL_SHARE * trace.seconds.total
                self._owed = {drafter: owed - paid for drafter, owed in self._owed.items() if owed > paid}
            self._observe_drafting(trace.rounds, trace.seconds.draft)

    def close(self, sequence_id: int) -> None:
        self._passed.pop(sequence_id, None)
        self._book.forget(sequence_id)

    def _guess(self, sequence: int, offer: Offer, share: float, row: float) -> _Guess:
        survival, drafting = self._book.survival(sequence, offer), self._drafting(offer.drafter)
        tokens, cost, best, best_rate = 1.0, share, 0, 1 / share
        for count, chance in enumerate(survival, start=1):
            tokens, cost = tokens + chance, cost + row + drafting
            if tokens / cost > best_rate:
                best, best_rate = count, tokens / cost
        return _Guess(offer, survival, drafting, best, best_rate)

    def _admit(self, survivals: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[int]:
        """Draft tokens of each sequence at the best rate of all."""
        batch = len(survivals)
        slots = sorted(((chance, i) for i, each in enumerate(survivals) for chance in each), reverse=True)
        step = self._cost.table(batch, batch + len(slots))
        tokens, drafting, taken, best_rate = float(batch), 0.0, 0, _CLEAR_GAIN * batch / step[0]
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
            patience = _SOONEST if guess.survival[0] >= _UNLIKELY else _UNLIKELY_PATIENCE
            here = passed.setdefault(guess.offer, _Passed(patience=patience))
            here.instead_of_none = False
            if choice.tokens and guess.offer == choice.offer:
                here.rounds, here.patience = 0, _SOONEST
                continue
            here.rounds += 1
            if here.rounds > here.patience and guess.offer.drafter not in self._owed:
                here.rounds, here.patience = 0, min(_LATEST, 2 * here.patience)
                here.instead_of_none = choice.tokens == 0
                return Choice(max(1, guess.tokens), guess.offer)
        return choice

    def _drafting(self, drafter: str) -> float:
        return self._draft_seconds.get(drafter, _GUESSED_SHARE * self._cost.seconds(1))

    def _observe_drafting(self, rounds: Sequence[RoundTrace], seconds: float) -> None:
        """Who drafted in a step shares its time by what each was expected to take."""
        expected: dict[str, float] = {}
        late: set[str] = set()
        for each in rounds:
            offer, asked = each.choice.offer, each.choice.tokens
            if offer is not None and asked:
                # Where a draft ended early, the token that was doubted took its time too.
                tokens = min(asked, each.drafted + 1)
                expected[offer.drafter] = expected.get(offer.drafter, 0.0) + tokens * self._drafting(offer.drafter)
                if offer.behind:
                    late.add(offer.drafter)
        if not expected or seconds <= 0:
            return
        excess = seconds - sum(expected.values())
        if late and excess > 0:
            # After a pause a drafter reads first what was said meanwhile. That is part of what trying it costs, so
            # trials wait until it is made up for; a draft token costs none of it while drafts are in use, and if it
            # were taken for dear now nothing would be learnt to the contrary while it is not used.
            self._owed |= {drafter: self._owed.get(drafter, 0.0) + excess / len(late) for drafter in late}
            return
        ratio = max(0.5, min(2.0, seconds / sum(expected.values()))) ** _DRAFT_PACE
        self._draft_seconds |= {drafter: ratio * self._drafting(drafter) for drafter in expected}
