"""The controller contract: what to draft for each sequence, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from outrider.types import Choice, Offer, RequestState, StepTrace

Offers: TypeAlias = Callable[[RequestState], Sequence[Offer]]
"""What is offered for a sequence in this round: the drafter's preference first, or nothing. Each asking takes time."""


class Controller(Protocol):
    """Chooses draft lengths from past rounds only, so that the output law is untouched."""

    def choose(self, sequences: Sequence[RequestState], offers: Offers) -> list[Choice]:
        """One choice per sequence, from what is offered for it; whoever decodes plainly anyway need not look."""
        ...

    def observe(self, trace: StepTrace) -> None:
        """Learn from a finished step."""
        ...

    def close(self, sequence_id: int) -> None:
        """Forget a sequence that ended; unknown ids are ignored."""
        ...
