"""What drafting costs, by drafter: a draft token, and a token that a drafter must catch up on before it drafts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from outrider.types import Offer, RoundTrace

_GUESSED_SHARE, _PACE = 0.02, 0.2
"""What a draft token costs of a plain step until it is seen, and how fast what is seen counts."""
_LARGEST_SURPRISE = 2.0
_TRIAL_SHARE = 0.01
"""Of all time, what may go into catching up for drafts that are only tried."""
_FIRST_SURPRISE = 10.0
"""Plain steps that a drafter may be found to take to catch up the first time."""


class DraftCost:
    """Learnt from steps. A drafter that was not asked for some rounds is behind, and reads first what it missed."""

    def __init__(self) -> None:
        self._token: dict[str, float] = {}
        self._behind: dict[str, float] = {}
        self._owed: dict[str, float] = {}

    def token(self, drafter: str, plain: float) -> float:
        """Seconds of one draft token, where a plain step takes ``plain``."""
        return self._token.get(drafter, _GUESSED_SHARE * plain)

    def catching_up(self, offer: Offer) -> float:
        """Seconds before its first token; nothing that is known of until a drafter was behind once."""
        return offer.behind * self._behind.get(offer.drafter, 0.0)

    def may_try(self, drafter: str) -> bool:
        """Whether what its trials took to catch up is made up for."""
        return drafter not in self._owed

    def pass_by(self, seconds: float) -> None:
        """A step was taken: part of its time makes up for trials."""
        if self._owed:
            paid = _TRIAL_SHARE * seconds
            self._owed = {drafter: owed - paid for drafter, owed in self._owed.items() if owed > paid}

    def observe(
        self, asked: Sequence[tuple[Offer, RoundTrace]], seconds: float, plain: float, tried: Collection[int]
    ) -> None:
        """Learn from a step. Who drafted shares its time by what each was expected to take; ``tried``: sequences whose
        draft is a trial."""
        expected: dict[str, float] = {}
        behind, in_trials = Counter[str](), Counter[str]()
        for offer, each in asked:
            # Where a draft ended early, the token that was doubted took its time too.
            tokens = min(each.choice.tokens, each.drafted + 1) * self.token(offer.drafter, plain)
            expected[offer.drafter] = expected.get(offer.drafter, 0.0) + tokens
            if offer.behind:
                behind[offer.drafter] += offer.behind
                in_trials[offer.drafter] += offer.behind * (each.sequence_id in tried)
        if not expected or seconds <= 0:
            return
        drafting = sum(expected.values())
        # With somebody behind, only much less than was expected says anything of what a draft token costs.
        if not behind or seconds < drafting / _LARGEST_SURPRISE:
            ratio = max(1 / _LARGEST_SURPRISE, min(_LARGEST_SURPRISE, seconds / drafting)) ** _PACE
            self._token |= {drafter: ratio * self.token(drafter, plain) for drafter in expected}
        if behind:
            tokens = sum(behind.values())
            seen = max(0.0, seconds - drafting) / tokens
            for drafter in behind:
                # One that was slow once, on a busy machine, must not wait for ever.
                known = self._behind.get(drafter, min(seen, _FIRST_SURPRISE * plain / tokens))
                likely = min(seen, _LARGEST_SURPRISE * known)
                self._behind[drafter] = known + _PACE * (likely - known)
                owed = self._owed.get(drafter, 0.0) + in_trials[drafter] * likely
                if owed > 0:
                    self._owed[drafter] = owed
