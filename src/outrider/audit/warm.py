"""Many answers to one prompt, which is read once: slots that still hold it when they are opened again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from outrider.config import EngineConfig
from outrider.models.base import Capabilities, Feed, Scores, TargetRunner


class WarmRunner:
    """A ``TargetRunner`` over another, for sequences that all start with ``prompt``.

    A slot is opened at the length that a prompt but its last token leaves behind, and ``close`` cuts it back to that.
    Needs a runner that can truncate. ``discard`` frees all slots.
    """

    def __init__(self, inner: TargetRunner, prompt: Sequence[int]) -> None:
        assert inner.capabilities.rollback == "truncate", "a slot is cut back before it is used again"
        self._inner = inner
        self._known = tuple(prompt[:-1])
        self._slots: dict[int, int] = {}
        self._warm: list[int] = []
        # Negative: no engine gives these out.
        self._ids = count(-1, -1)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def vocab_size(self) -> int:
        return self._inner.vocab_size

    @property
    def max_model_len(self) -> int:
        return self._inner.max_model_len

    @property
    def max_num_seqs(self) -> int:
        return self._inner.max_num_seqs

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def open(self, sequence_id: int) -> None:
        self._slots[sequence_id] = self._warm.pop() if self._warm else self._read()

    def close(self, sequence_id: int) -> None:
        slot = self._slots.pop(sequence_id, None)
        if slot is not None:
            self._inner.commit(slot, len(self._known))
            self._warm.append(slot)

    def length(self, sequence_id: int) -> int:
        return self._inner.length(self._slots[sequence_id])

    def score(self, feeds: Sequence[Feed], hidden: bool = False) -> Scores:
        return self._inner.score([replace(feed, sequence_id=self._slots[feed.sequence_id]) for feed in feeds], hidden)

    def commit(self, sequence_id: int, length: int) -> None:
        self._inner.commit(self._slots[sequence_id], length)

    def discard(self) -> None:
        """Free every slot of the runner inside."""
        for slot in (*self._slots.values(), *self._warm):
            self._inner.close(slot)
        self._slots.clear()
        self._warm.clear()

    def _read(self) -> int:
        slot = next(self._ids)
        self._inner.open(slot)
        chunk = EngineConfig.max_num_batched_tokens
        for start in range(0, len(self._known), chunk):
            self._inner.score([Feed(slot, self._known[start : start + chunk], 0)])
        return slot
