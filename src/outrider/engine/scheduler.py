"""Who runs next: admission by KV slots, and prompts cut into chunks that fit a forward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider.engine.sequence import Sequence


@dataclass(frozen=True)
class Batch:
    """One step's work. A ready sequence gets drafts and a verdict; a filling one only lengthens its KV."""

    ready: tuple[Sequence, ...]
    filling: tuple[tuple[Sequence, int], ...]
    """Sequences with the number of prompt tokens to feed this step."""


class Scheduler:
    """Two queues. A running sequence holds a KV slot of ``max_model_len`` tokens until it ends.

    The slot is the worst case of every later round, reserved at admission: nothing is preempted.
    """

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is queued; unknown ones are ignored."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def next_in_line(self) -> Sequence | None:
        """The longest-waiting sequence, if a slot is free for it; it keeps waiting until ``admit``."""
        if not self.waiting or len(self.running) >= self._max_num_seqs:
            return None
        return self.waiting[0]

    def admit(self, sequence: Sequence) -> None:
        """Count the first in line among the running ones; its slot is open by now."""
        assert self.waiting[0] is sequence, "sequences are admitted in order"
        self.running.append(self.waiting.popleft())

    def next_batch(self, kv_length: Callable[[int], int]) -> Batch:
        """Every decoding sequence, then prompts in order of arrival while the token budget lasts.

        A decoding sequence lacks the KV of its last token only. Its round is never cut by the budget, so that
        what it drafts does not depend on its neighbours.
        """
        lacking = [(seq, len(seq.tokens) - kv_length(seq.id)) for seq in self.running]
        ready = [seq for seq, missing in lacking if missing == 1]
        filling: list[tuple[Sequence, int]] = []
        # At least one prompt token a step: decoding neighbours cannot starve a prompt.
        budget = max(self._max_num_batched_tokens - len(ready), 1)
        for seq, missing in lacking:
            if missing == 1 or budget == 0:
                continue
            if missing <= budget:
                ready.append(seq)
            else:
                filling.append((seq, budget))
            budget -= min(missing, budget)
        return Batch(tuple(ready), tuple(filling))
