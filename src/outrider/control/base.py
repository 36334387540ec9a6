"""The controller contract: how many tokens to draft for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.types import RequestState, StepTrace


class Controller(Protocol):
    """Chooses draft lengths from past rounds only, so that the output law is untouched."""

    def budgets(self, sequences: Sequence[RequestState]) -> list[int]:
        """Draft tokens to ask for, one number per sequence; 0 is plain decoding."""
        ...

    def observe(self, trace: StepTrace) -> None:
        """Learn from a finished step."""
        ...
