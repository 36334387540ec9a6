"""The same draft length for every sequence, every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.config import is_whole
from outrider.errors import ConfigError
from outrider.types import Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.control.base import Offers
    from outrider.types import RequestState, StepTrace


@dataclass(frozen=True)
class FixedController:
    """``k`` draft tokens for every sequence, from what its drafter prefers; 0 is plain decoding."""

    k: int

    def __post_init__(self) -> None:
        if not is_whole(self.k) or self.k < 0:
            raise ConfigError(f"num_speculative_tokens={self.k!r} must be a whole number, 0 or more")

    def choose(self, sequences: Sequence[RequestState], offers: Offers) -> list[Choice]:
        offered = [offers(sequence) for sequence in sequences]
        return [Choice(self.k, each[0]) if each else Choice() for each in offered]

    def observe(self, trace: StepTrace) -> None:
        """Nothing to learn: the budget is fixed."""

    def close(self, sequence_id: int) -> None:
        """Nothing to forget."""
