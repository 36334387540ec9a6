"""Target states that wait until a draft wants them: of a sequence the sink's and the latest ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.sampling.arrays import Floats


class WaitingStates:
    """A row for each position of the sink, and for the last ``recent`` of the others."""

    def __init__(self, sink: int, recent: int, *, layers: int, width: int) -> None:
        self._sink, self._recent = sink, recent
        self._states_RLD = np.empty((sink + recent, layers, width), np.float32)

    def put(self, positions_N: Sequence[int], states_LND: Floats) -> None:
        """States of positions, the latest last, no two of which share a row."""
        # Row by row: numpy's way of writing rows from a list takes several times as long for one.
        for at, position in enumerate(positions_N):
            self._states_RLD[self._row(position)] = states_LND[:, at]

    def get(self, positions_N: Sequence[int]) -> torch.Tensor:
        """``(L, N, D)``, of positions that were put and not overwritten."""
        states_NLD = self._states_RLD[[self._row(position) for position in positions_N]]
        return torch.from_numpy(np.ascontiguousarray(states_NLD.transpose(1, 0, 2)))

    def _row(self, position: int) -> int:
        return position if position < self._sink else self._sink + (position - self._sink) % self._recent
