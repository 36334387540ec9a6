"""The seam between a decoder runner, which keeps the books, and what computes its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from outrider.models.tiles import Span


class Forward(Protocol):
    """A decoder's weights and its key/value slots."""

    @property
    def deterministic(self) -> bool:
        """Whether a row's bits depend on its own sequence only."""
        ...

    def open(self, slot: int, used: int) -> None:
        """Make a slot fit for a new owner; its earlier ones wrote ``used`` positions."""
        ...

    def close(self, slot: int) -> None:
        """The owner has left."""
        ...

    def run(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        wanted: Sequence[int],
        hidden: bool,
        layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Append the packed ``tokens`` to the slots of ``spans``; logits ``(M, V)`` of the ``wanted`` rows, and, when
        asked for, their final hidden states ``(M, D)`` and every row's states ``(L, N, D)`` after ``layers``."""
        ...
