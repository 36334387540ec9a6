"""Whole captured texts in batches, for a draft that reads from the beginning; a step number determines each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from outrider.errors import ConfigError
from outrider.train.capture import Captured, from_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from outrider.train.continuations import Document

_POOL = 256
"""Texts that are sorted by length together: a batch of equal lengths has little padding."""


@dataclass(frozen=True)
class TextBatch:
    """B texts from their first token on, S the longest; R positions of them are learnt, text by text."""

    tokens_BS: torch.Tensor
    """Padded behind, where nothing before looks."""
    valid_BS: torch.Tensor
    """The R positions to learn."""
    final_RD: torch.Tensor
    """The target's final normed state."""
    lse_R: torch.Tensor


class TextSampler:
    """Every text once an epoch, but for less than a batch; ``positions`` is about how many a batch learns."""

    def __init__(
        self,
        rows: NDArray[Any],
        captured: Sequence[Captured],
        texts: Sequence[Document],
        *,
        positions: int,
        seed: int,
    ) -> None:
        """``captured``: of the texts, in their order; more may follow. Raises ConfigError for those of other texts."""
        for number, (place, text) in enumerate(zip(captured, texts, strict=False)):
            if place.length != len(text.tokens):
                raise ConfigError(f"text {number} has other words than were captured; remove the captured folder")
        self._rows, self._captured, self._texts, self._seed = rows, captured, texts, seed
        self._lengths = np.array([len(text.tokens) for text in texts])
        self._learnt = np.array([place.length - place.start for place in captured[: len(texts)]])
        # No text is longer than a batch, so every batch of an epoch has the beginning of one.
        self._positions = max(positions, int(self._learnt.max()))
        self.steps_per_epoch = max(1, int(self._learnt.sum()) // self._positions)
        self._epoch, self._batches = -1, list[list[int]]()

    def batch(self, epoch: int, index: int) -> TextBatch:
        """Batch ``index`` of an epoch; the same every time it is asked for."""
        if self._epoch != epoch:
            self._epoch, self._batches = epoch, self._shuffled(epoch)
        return self._gather(self._batches[index])

    def _shuffled(self, epoch: int) -> list[list[int]]:
        """Numbers of the texts of each batch: those whose first learnt position falls into its share of all."""
        random = np.random.default_rng((self._seed, epoch))
        order = random.permutation(len(self._texts))
        pools = (order[at : at + _POOL] for at in range(0, len(order), _POOL))
        order = np.concatenate([pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools])
        learnt = self._learnt[order]
        share = (np.cumsum(learnt) - learnt) // self._positions
        return [order[share == step].tolist() for step in random.permutation(self.steps_per_epoch)]

    def _gather(self, numbers: Sequence[int]) -> TextBatch:
        longest = int(self._lengths[numbers].max())
        tokens = np.zeros((len(numbers), longest), np.int64)
        valid = np.zeros((len(numbers), longest), bool)
        parts = []
        for row, number in enumerate(numbers):
            place, text = self._captured[number], self._texts[number]
            tokens[row, : len(text.tokens)] = text.tokens
            valid[row, place.start : place.length] = True
            parts.append(self._rows[place.row + place.sink + place.start - place.first : place.row + place.rows])
        final = np.concatenate([part["final"] for part in parts])
        lse = np.concatenate([part["lse"] for part in parts])
        return TextBatch(torch.from_numpy(tokens), torch.from_numpy(valid), from_bits(final), torch.from_numpy(lse))
