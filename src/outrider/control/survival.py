"""How likely a draft's tokens are to be kept, by position, learnt from past rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.types import Offer, RoundTrace

_SHARED_MEMORY, _OWN_MEMORY = 200.0, 24.0
"""Rounds in which an observation loses most of its weight: topics of one text change sooner than a workload."""
_GUESS, _GUESS_WEIGHT = 0.6, 2.0
"""Chance of a first position of which nothing is known, and the rounds that it counts as."""
_NEGLIGIBLE = 0.02
_SHARED_WEIGHT = 4.0
"""Rounds of its own that weigh as much in a sequence as what is known of all."""


class Chances:
    """Of each draft position, given that those before it were kept: the chance to be kept too.

    A position that was asked for and not drafted was not kept. Counts fade: what was true long ago is forgotten.
    """

    def __init__(self, most: int, memory: float) -> None:
        self._fade = 1 - 1 / memory
        self._kept, self._tried = [0.0] * most, [0.0] * most
        self._alone: list[float] | None = None

    def observe(self, asked: int, kept: int) -> None:
        """A round that asked for so many draft tokens and kept so many."""
        self._alone = None
        # Positions out of reach fade too: bad luck with a few trials must not rule out a length for good.
        self._tried = [self._fade * tried for tried in self._tried]
        self._kept = [self._fade * count for count in self._kept]
        for position in range(min(asked, kept + 1, len(self._tried))):
            self._tried[position] += 1
            self._kept[position] += position < kept

    def alone(self) -> list[float]:
        """Chances by these rounds only: a position that was hardly tried is as good as the one before it."""
        if self._alone is None:
            self._alone, chance = [], _GUESS
            for kept, tried in zip(self._kept, self._tried, strict=True):
                chance = (_GUESS_WEIGHT * chance + kept) / (_GUESS_WEIGHT + tried)
                self._alone.append(chance)
        return self._alone

    def among(self, shared: Sequence[float]) -> Iterator[float]:
        """Chances of a sequence, where those of all count as some rounds: what is better or worse with it at one
        position is expected to be so at the next."""
        against = 1.0
        for guess, kept, tried in zip(shared, self._kept, self._tried, strict=True):
            chance = (_SHARED_WEIGHT * min(1.0, guess * against) + kept) / (_SHARED_WEIGHT + tried)
            yield chance
            against = chance / guess


class SurvivalBook:
    """Survival by offer, shared by all requests, and by offer and sequence where a sequence has rounds of its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._shared: dict[Offer, Chances] = {}
        self._own: dict[int, dict[Offer, Chances]] = {}
        self._known: dict[tuple[int, Offer], list[float]] = {}

    def observe(self, offer: Offer, trace: RoundTrace, own: bool) -> None:
        """Learn from a round for which drafts were asked; ``own``: also of its sequence, which goes on."""
        asked = trace.choice.tokens
        self._known.clear()
        self._shared.setdefault(offer, Chances(self._most, _SHARED_MEMORY)).observe(asked, trace.kept)
        if own:
            mine = self._own.setdefault(trace.sequence_id, {})
            mine.setdefault(offer, Chances(self._most, _OWN_MEMORY)).observe(asked, trace.kept)

    def survival(self, sequence_id: int, offer: Offer) -> list[float]:
        """Chance of each position, the first at least, to be reached and kept; falls, and ends where it is not worth a
        thought."""
        # Asked for in every round; where nobody drafts nothing is learnt between.
        survival = self._known.get((sequence_id, offer))
        if survival is None:
            survival = self._known[sequence_id, offer] = self._survival(sequence_id, offer)
        return survival

    def forget(self, sequence_id: int) -> None:
        """Drop what is a sequence's own."""
        self._own.pop(sequence_id, None)
        self._known.clear()

    def _survival(self, sequence_id: int, offer: Offer) -> list[float]:
        shared = self._shared.get(offer)
        known = [_GUESS] * self._most if shared is None else shared.alone()
        own = self._own.get(sequence_id, {}).get(offer)
        chances = iter(known) if own is None else own.among(known)
        survival = [next(chances)]
        for chance in chances:
            if survival[-1] * chance < _NEGLIGIBLE:
                break
            survival.append(survival[-1] * chance)
        return survival
