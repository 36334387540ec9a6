"""Target states that wait until a draft wants them: of every slot the sink's and the latest ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.sampling.arrays import Floats


class WaitingStates:
    """Rows of positions by slot: of the first ``sink`` each its own, of the others the last ``recent``."""

    def __init__(self, sink: int, recent: int, *, layers: int, width: int) -> None:
        self._sink, self._recent, self._shape = sink, recent, (sink + recent, layers, width)
        self._states_RLD: dict[int, Floats] = {}

    def drop(self, slot: int) -> None:
        """Give back a slot's memory."""
        self._states_RLD.pop(slot, None)

    def put(self, slot: int, positions_N: Sequence[int], states_LND: Floats) -> None:
        """States of positions, the latest last, no two of which share a row."""
        states_RLD = self._states_RLD.get(slot)
        if states_RLD is None:
            states_RLD = self._states_RLD[slot] = np.empty(self._shape, np.float32)
        # Row by row: numpy's way of writing rows from a list takes several times as long for one.
        for at, position in enumerate(positions_N):
            states_RLD[self._row(position)] = states_LND[:, at]

    def get(self, slot: int, positions_N: Sequence[int]) -> torch.Tensor:
        """``(L, N, D)``, of positions that were put and not overwritten."""
        rows_N = [self._row(position) for position in positions_N]
        states_NLD = self._states_RLD[slot][rows_N]
        return torch.from_numpy(np.ascontiguousarray(states_NLD.transpose(1, 0, 2)))

    def _row(self, position: int) -> int:
        return position if position < self._sink else self._sink + (position - self._sink) % self._recent
