"""Captured texts cut into segments of equal length, in an order that a step number determines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from outrider.train.capture import Captured, CaptureSettings, from_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Segments of S positions to learn, and the C positions before each (sink, then window)."""

    tokens_BS: torch.Tensor
    positions_BS: torch.Tensor
    final_BSD: torch.Tensor
    """The target's final normed state."""
    lse_BS: torch.Tensor
    valid_BS: torch.Tensor
    """Whether the position exists and is to be learnt."""
    states_LBTD: torch.Tensor
    """Target states of the C + S positions, for the layers of the capture."""
    key_positions_BT: torch.Tensor
    """Position of each, negative where there is none."""


class SegmentSampler:
    """Every position from which a token is learnt, once an epoch; each epoch cuts at other places."""

    def __init__(
        self,
        rows: NDArray[Any],
        documents: Sequence[Captured],
        settings: CaptureSettings,
        *,
        length: int,
        batch: int,
        k: int,
        seed: int,
    ) -> None:
        assert length % k == 0, "a segment is whole blocks"
        self._rows, self._documents, self._settings = rows, documents, settings
        self._length, self._batch, self._k, self._seed = length, batch, k, seed
        longest = max(document.length for document in documents)
        self._context = settings.sink + (longest if settings.window is None else settings.window)
        self._epoch, self._order = -1, list[tuple[int, int]]()
        self.steps_per_epoch = max(1, len(self._cuts(0)) // batch)

    def batch(self, epoch: int, index: int) -> Batch:
        """Batch ``index`` of an epoch; the same every time it is asked for."""
        cuts = self._shuffled(epoch)
        return self._gather([cuts[(index * self._batch + i) % len(cuts)] for i in range(self._batch)])

    def _shuffled(self, epoch: int) -> list[tuple[int, int]]:
        if self._epoch != epoch:
            self._order = self._cuts(epoch)
            np.random.default_rng((self._seed, epoch, 1)).shuffle(self._order)
            self._epoch = epoch
        return self._order

    def _cuts(self, epoch: int) -> list[tuple[int, int]]:
        """(document, first position) of every segment, shifted so that a position takes each place in a block."""
        shifts = np.random.default_rng((self._seed, epoch, 0)).integers(0, self._k, len(self._documents))
        return [
            (number, at)
            for number, (document, shift) in enumerate(zip(self._documents, shifts, strict=True))
            for at in range(document.start - int(shift), document.length, self._length)
        ]

    def _gather(self, cuts: Sequence[tuple[int, int]]) -> Batch:
        s, count = self._settings, self._context + self._length
        records = np.zeros((len(cuts), count), s.record)
        key_positions = np.full((len(cuts), count), -1, np.int64)
        valid = np.zeros((len(cuts), self._length), bool)
        positions = np.zeros((len(cuts), self._length), np.int64)
        for i, (number, at) in enumerate(cuts):
            document = self._documents[number]
            stored = self._rows[document.row : document.row + document.rows]
            low, high = max(document.first, at - self._context + s.sink), min(document.length, at + self._length)
            begin = self._context + low - at
            records[i, begin : begin + high - low] = stored[document.sink + low - document.first :][: high - low]
            key_positions[i, begin : begin + high - low] = np.arange(low, high)
            if low > 0:
                kept = min(s.sink, low)
                records[i, :kept] = stored[:kept]
                key_positions[i, :kept] = np.arange(kept)
            positions[i] = np.arange(at, at + self._length)
            valid[i] = (positions[i] >= document.start) & (positions[i] < document.length)
        own = records[:, self._context :]
        return Batch(
            torch.from_numpy(own["token"].astype(np.int64)),
            torch.from_numpy(positions),
            from_bits(own["final"]),
            torch.from_numpy(own["lse"].copy()),
            torch.from_numpy(valid),
            from_bits(records["states"].transpose(2, 0, 1, 3)),
            torch.from_numpy(key_positions),
        )
