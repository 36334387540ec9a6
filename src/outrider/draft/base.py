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
        """Bring the drafter's state to exactly the committed tokens but the last; also at budget 0."""
        ...

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        """One draft per sequence, of at most its budget; fewer tokens, or none, is always allowed.

        ``Draft.logq_KV`` is what each token was really drawn from, or None for a point mass.
        """
        ...
