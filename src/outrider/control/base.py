"""The controller contract: what to draft for each sequence, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.types import Choice, Offer, RequestState, StepTrace


class Controller(Protocol):
    """Chooses draft lengths from past rounds only, so that the output law is untouched."""

    def choose(self, sequences: Sequence[RequestState], offers: Sequence[Sequence[Offer]]) -> list[Choice]:
        """One choice per sequence, from what is offered for it: the drafter's preference first, or nothing."""
        ...

    def observe(self, trace: StepTrace) -> None:
        """Learn from a finished step."""
        ...

    def close(self, sequence_id: int) -> None:
        """Forget a sequence that ended; unknown ids are ignored."""
        ...
