"""Key/value memory: which sequence owns which slot and how long it is, and the tensor behind the slots."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from outrider.errors import ConfigError
from outrider.hardware import physical_memory

_ALIGNMENT = 64


@dataclass
class _Slot:
    index: int
    length: int = 0


class KVSlots:
    """Slots of ``max_model_len`` tokens by sequence id; the lowest free slot is taken first.

    Lowest first keeps open slots side by side, so that one batched product can serve several sequences.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.max_model_len = max_model_len
        self._free = list(range(max_num_seqs))
        self._slots: dict[int, _Slot] = {}
        self._used = [0] * max_num_seqs

    def open(self, sequence_id: int) -> tuple[int, int]:
        """Reserve a slot, length 0; returns its index and how many positions its earlier owners wrote."""
        assert sequence_id not in self._slots, f"sequence {sequence_id} is already open"
        assert self._free, "more sequences opened than max_num_seqs"
        index = min(self._free)
        self._free.remove(index)
        self._slots[sequence_id] = _Slot(index)
        used, self._used[index] = self._used[index], 0
        return index, used

    def close(self, sequence_id: int) -> int | None:
        """Free the slot and return its index; unknown ids are ignored."""
        slot = self._slots.pop(sequence_id, None)
        if slot is None:
            return None
        self._free.append(slot.index)
        return slot.index

    def index(self, sequence_id: int) -> int:
        return self._slots[sequence_id].index

    def length(self, sequence_id: int) -> int:
        """Tokens whose keys and values the slot holds."""
        return self._slots[sequence_id].length

    def begin(self, sequence_id: int, count: int) -> tuple[int, int]:
        """Announce that the next ``count`` positions will be written; returns the slot's index and its length.

        The length stays as it is until ``grow``, so a forward that fails changes nothing.
        """
        slot = self._slots[sequence_id]
        end = slot.length + count
        assert end <= self.max_model_len, f"sequence {sequence_id} would have {end} tokens of {self.max_model_len}"
        self._used[slot.index] = max(self._used[slot.index], end)
        return slot.index, slot.length

    def grow(self, sequence_id: int, count: int) -> None:
        """Count tokens as held, after the forward that wrote them has succeeded."""
        self._slots[sequence_id].length += count

    def commit(self, sequence_id: int, length: int) -> None:
        """Truncate to an absolute length; idempotent. ValueError beyond what the slot holds."""
        slot = self._slots[sequence_id]
        if not 0 <= length <= slot.length:
            raise ValueError(f"commit({sequence_id}, {length}): the slot holds {slot.length} tokens")
        slot.length = length


def check_kv_memory(shape: tuple[int, int, int, int, int, int], dtype: torch.dtype) -> int:
    """Bytes of keys and values of shape ``(layers, 2, slots, kv_heads, positions, head_dim)``.

    Raises ConfigError for a plan that this machine could not hold once every slot is full.
    """
    size, memory = math.prod(shape) * dtype.itemsize, physical_memory()
    if size > memory:
        raise ConfigError(
            f"max_num_seqs={shape[2]} slots of {shape[4]} tokens need {size / 1e9:.1f} GB for keys and values, "
            f"and this machine has {memory / 1e9:.1f} GB of memory; reduce max_model_len or max_num_seqs"
        )
    return size


def allocate_kv(shape: tuple[int, int, int, int, int, int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros of that shape, keys before values. Raises ConfigError (see ``check_kv_memory``).

    The system maps zero pages only when they are written, so unused slots cost address space, not memory; and a
    masked position always holds finite numbers, which zero weights erase.
    """
    size = check_kv_memory(shape, dtype)
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[skip : skip + size]).view(dtype).view(shape)
