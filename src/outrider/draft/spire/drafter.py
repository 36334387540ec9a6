"""The SPIRe drafter: drafts from the target's own activations of the committed positions.

Positions of one sequence, L committed tokens, before a round: the target's states of 0 .. L-2 are remembered; the last
token has none yet. It is the draft's first input, at position L-1, and what the draft made of it is remembered in its
place until the target's states of that position come with the round.

States that come are put by, and made into keys and values when a draft is wanted. So a round without a draft costs a
copy of a row of states, and of a long stretch only what a draft can still see is ever worked on. What a position is
remembered as does not depend on those it is remembered with: drafts are those of a drafter that never waited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from outrider.draft.drafting import Drafting, begin
from outrider.draft.spire.waiting import WaitingStates
from outrider.sampling.arrays import as_floats
from outrider.types import Draft, Offer, RequestState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outrider.draft.spire.config import SpireConfig
    from outrider.types import CommittedStates


class SpireStep(Protocol):
    """A draft's forward pass and what it remembers, by slot."""

    def close(self, slot: int) -> None: ...

    def remember(self, slot: int, positions: Sequence[int], states_LND: torch.Tensor) -> None: ...

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor: ...


_UNNOTICED = 16
"""Positions whose remembering hardly shows beside a draft, and more than a round of usual drafts leaves."""
_AT_ONCE = 128
"""Positions that a draft which sees everything remembers together."""


@dataclass
class _Slot:
    index: int
    waiting: WaitingStates
    known: int = 0
    """Positions 0 .. known-1 have come from the target."""
    remembered: int = 0
    """Positions 0 .. remembered-1 of them need not be remembered any more; the others wait."""


class SpireDrafter:
    """``draft_ids``: the target's id of each token of the draft's vocabulary; other tokens have q = 0.

    ``most``: longest draft that the step's ring has room for. ``floor``: see ``Drafting``.
    """

    name = "spire"

    def __init__(
        self,
        config: SpireConfig,
        step: SpireStep,
        draft_ids: torch.Tensor,
        *,
        max_num_seqs: int,
        max_model_len: int,
        most: int,
        floor: float = 0.0,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._config, self._step, self._max_model_len, self._eos_ids = config, step, max_model_len, eos_ids
        self._most, self._floor = most, floor
        self._recent = min(_AT_ONCE if config.window is None else config.window, max_model_len)
        self._offer = Offer(self.name)
        self._ids_W = draft_ids.numpy()
        self._free = list(range(max_num_seqs))
        self._slots: dict[int, _Slot] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        return self._config.reads

    def open(self, sequence: RequestState) -> None:
        if sequence.id not in self._slots and self._free:
            # Its last owner's memories were forgotten when it left.
            c = self._config
            sink = min(c.sink, self._max_model_len)
            waiting = WaitingStates(sink, self._recent, layers=len(c.reads), width=c.hidden_size)
            self._slots[sequence.id] = _Slot(self._free.pop(), waiting)

    def close(self, sequence_id: int) -> None:
        slot = self._slots.pop(sequence_id, None)
        if slot is not None:
            self._step.close(slot.index)
            self._free.append(slot.index)

    def sync(self, sequences: Sequence[RequestState]) -> None:
        """Nothing to do: states come with every target pass (``remember``)."""

    def remember(self, committed: Sequence[CommittedStates]) -> None:
        for sequence_id, start, states_LND in committed:
            slot, end = self._slots.get(sequence_id), start + states_LND.shape[1]
            if slot is None or start > slot.known:
                continue
            self._make_room(slot, start, end)
            if end - start > self._recent and self._config.window is None:
                self._step.remember(slot.index, range(start, end), states_LND)
                slot.remembered = end
            else:
                seen = self._in_sight(start, end)
                every_LND = as_floats(states_LND)
                seen_LND = every_LND if len(seen) == end - start else every_LND[:, [p - start for p in seen]]
                slot.waiting.put(seen, seen_LND)
            slot.known = end

    def _make_room(self, slot: _Slot, start: int, end: int) -> None:
        """Remember now what waits, where its rows are wanted."""
        if start < slot.known:
            # Of a position that comes twice the later states count.
            self._catch_up(slot)
            # Should anything raise before they have come again, nothing is known of them.
            slot.known = slot.remembered = start
        elif self._config.window is None and end - slot.remembered > self._recent:
            self._catch_up(slot)

    def _in_sight(self, start: int, end: int) -> list[int]:
        """Positions from ``start`` on that a draft behind position ``end`` can see."""
        window, sink = self._config.window, self._config.sink
        recent = start if window is None else max(start, end - window)
        return [*range(start, min(sink, recent)), *range(recent, end)]

    def _catch_up(self, slot: _Slot) -> None:
        positions = self._in_sight(slot.remembered, slot.known)
        if positions:
            self._step.remember(slot.index, positions, slot.waiting.get(positions))
        slot.remembered = slot.known

    def offers(self, sequence: RequestState) -> tuple[Offer, ...]:
        """Nothing before the target has read the prompt: its states are what drafts are made from."""
        if not self._ready(sequence):
            return ()
        slot = self._slots[sequence.id]
        late = len(self._in_sight(slot.remembered, slot.known)) - _UNNOTICED
        return (self._offer if late <= 0 else Offer(self.name, behind=late),)

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        rows: dict[int, Drafting] = {}
        for sequence, budget in zip(sequences, budgets, strict=True):
            length = len(sequence.tokens)
            room = min(budget, self._most, self._max_model_len - length + 1)
            if self._ready(sequence) and room > 0:
                slot = self._slots[sequence.id]
                self._catch_up(slot)
                assert slot.known == length - 1, "states of tokens that are not committed"
                vocab_size = self._config.vocab_size
                rows[sequence.id] = begin(
                    sequence, room, self._eos_ids, vocab_size, ids_W=self._ids_W, floor=self._floor
                )
        self._extend(rows)
        return [rows[sequence.id].draft() if sequence.id in rows else Draft() for sequence in sequences]

    def _ready(self, sequence: RequestState) -> bool:
        slot = self._slots.get(sequence.id)
        return slot is not None and slot.known >= len(sequence.tokens) - 1

    def _extend(self, rows: Mapping[int, Drafting]) -> None:
        """One more token for every row that wants another, until none does."""
        going = list(rows.values())
        while going:
            inputs = [(row.tokens or row.sequence.tokens)[-1] for row in going]
            positions = [len(row.sequence.tokens) - 1 + len(row.tokens) for row in going]
            slots = [self._slots[row.sequence.id].index for row in going]
            for row, logits_V in zip(going, self._step.step(inputs, slots, positions), strict=True):
                if not row.doubtful(logits_V):
                    row.draw(logits_V)
            going = [row for row in going if row.wants_more]
