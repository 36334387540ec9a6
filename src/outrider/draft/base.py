"""The drafter contract: guess, cheaply, what the target will say next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.types import Draft, RequestState


class Drafter(Protocol):
    """Proposes draft tokens for every sequence of a batch."""

    @property
    def name(self) -> str: ...

    def open(self, sequence: RequestState) -> None:
        """Take in a new sequence."""
        ...

    def close(self, sequence_id: int) -> None:
        """Forget a sequence; unknown ids are ignored."""
        ...

    def sync(self, sequences: Sequence[RequestState]) -> None:
        """Bring the drafter's state to exactly the committed tokens but the last.

        Called every round for the sequences that ``propose`` is not: those with budget 0 and those whose prompt is
        still being read. A long prompt may take several calls.
        """
        ...

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        """One draft per sequence, of at most its budget; fewer tokens, or none, is always allowed.

        First does what ``sync`` does, for these sequences: drafting from stale state would be exact, and slow.

        ``Draft.logq_KV`` is what each token was really drawn from, or None for a point mass.
        """
        ...
