"""The seam between the SPIRe drafter, which keeps the books, and what computes its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class SpireStep(Protocol):
    """A draft's weights and the keys and values it remembers, slot by slot."""

    def open(self, slot: int) -> None:
        """Take a slot that remembers nothing."""
        ...

    def close(self, slot: int) -> None:
        """Forget everything of the slot."""
        ...

    def remember(self, slot: int, positions: Sequence[int], states_LND: torch.Tensor) -> None:
        """Keys and values of committed positions, made from the target's states."""
        ...

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """One own position for each of N slots: logits ``(N, V)`` over the draft's vocabulary.

        A position sees what its slot remembers of earlier ones, and is then remembered itself.
        """
        ...
