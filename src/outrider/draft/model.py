"""A second, smaller model as drafter: any checkpoint with the target's tokenizer, with KV slots of its own.

Lengths of one sequence over a round, L committed tokens, k drafted (positions left to right):

    before propose   [0 ........ L-1)                     committed tokens but the last
    after propose    [0 ........ L-1) L-1 [d0 .. d(k-2)]   the last draft token is never fed
    next draft       the longest prefix that was committed stays; what lacks is fed with the pending token

What lacks is a token or two where every round drafts, and whatever was committed meanwhile after rounds that did not:
they cost nothing here, and their tokens are read in one go when a draft is wanted again. Where the runner's rows depend
on their own sequence only (``deterministic_shape``) its drafts are then those it would have made had it kept up; where
they depend on how a text was cut into passes, they are those up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.draft.drafting import Drafting, begin
from outrider.errors import CapabilityError
from outrider.models.base import Feed, TargetRunner
from outrider.types import Draft, Offer, RequestState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

_IN_STEP = 2
"""Tokens that lack where every round drafts: the pending one, and the last of a draft that was kept whole."""


@dataclass
class _Slot:
    """What the draft model's KV holds: ``committed`` tokens of the sequence, then ``guessed`` draft tokens."""

    committed: int = 0
    guessed: list[int] = field(default_factory=list)


class ModelDrafter:
    """Drafts autoregressively with a ``TargetRunner`` of its own, all sequences together.

    ``vocab_size`` is the target model's: draft logits beyond it are cut, and tokens that the draft lacks are never
    drafted. ``eos_ids`` are the ids that ``min_tokens`` holds back; ``floor``: see ``Drafting``. A sequence for which
    the runner has no slot, no room left (its context is shorter than the target model's) or no embedding (a padded id)
    is simply not drafted for. Raises ``CapabilityError`` for a runner that cannot roll back.
    """

    name = "draft_model"

    def __init__(
        self,
        runner: TargetRunner,
        vocab_size: int,
        eos_ids: frozenset[int] = frozenset(),
        max_num_batched_tokens: int = 512,
        floor: float = 0.0,
    ) -> None:
        if runner.capabilities.rollback == "none":
            raise CapabilityError(
                f"{runner.name}: its cache cannot be rolled back, so it cannot draft; "
                "use an attention-only draft model, or method='ngram'"
            )
        self._runner = runner
        self._offer = Offer(self.name)
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._chunk, self._floor = max_num_batched_tokens, floor
        self._slots: dict[int, _Slot] = {}

    def open(self, sequence: RequestState) -> None:
        self._seat(sequence)

    def close(self, sequence_id: int) -> None:
        self._release(sequence_id)

    def sync(self, sequences: Sequence[RequestState]) -> None:
        """Bring every KV to the committed tokens but the last, at the cost of a forward where any is behind.

        A long prompt takes a chunk a call, so that it does not hold up its neighbours. ``propose`` catches up with
        its own sequences within its first forward and needs no ``sync`` before it.
        """
        goals: dict[int, tuple[RequestState, int, int]] = {}
        for sequence in sequences:
            if self._ready(sequence):
                reach = self._slots[sequence.id].committed + self._chunk
                goals[sequence.id] = (sequence, min(len(sequence.tokens) - 1, reach), 0)
        self._feed_committed(goals)

    def offers(self, sequence: RequestState) -> tuple[Offer, ...]:
        """Itself where it has room, with what it must read first."""
        if not self._seat(sequence):
            return ()
        lacking = len(sequence.tokens) - self._agreed(sequence) - _IN_STEP
        return (self._offer if lacking <= 0 else Offer(self.name, behind=lacking),)

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        goals: dict[int, tuple[RequestState, int, int]] = {}
        rows: dict[int, Drafting] = {}
        for sequence, budget in zip(sequences, budgets, strict=True):
            if self._ready(sequence):
                length = len(sequence.tokens)
                room = self._runner.max_model_len - length + 1
                drafting = min(budget, room) > 0
                goals[sequence.id] = (sequence, length, 1) if drafting else (sequence, length - 1, 0)
                if drafting:
                    rows[sequence.id] = begin(
                        sequence, min(budget, room), self._eos_ids, self._vocab_size, floor=self._floor
                    )
        self._extend(rows, self._feed_committed(goals))
        return [rows[sequence.id].draft() if sequence.id in rows else Draft() for sequence in sequences]

    def _extend(self, rows: Mapping[int, Drafting], logits_V: Mapping[int, torch.Tensor]) -> None:
        """Draw a token for every row, feed the rows that want another, until none does."""
        while logits_V:
            feeds = []
            for sequence_id, row_V in logits_V.items():
                row = rows[sequence_id]
                if row.doubtful(row_V):
                    continue
                token = row.draw(row_V)
                if token is not None and row.wants_more:
                    feeds.append(Feed(sequence_id, (token,), 1))
            logits_V = self._score(feeds)
            for feed in feeds:
                self._slots[feed.sequence_id].guessed.extend(feed.tokens)

    def _feed_committed(self, goals: Mapping[int, tuple[RequestState, int, int]]) -> dict[int, torch.Tensor]:
        """Feed each sequence's tokens up to its goal length; the last row's logits (V,) where one is asked for."""
        share = max(1, self._chunk // max(1, len(goals)))
        feeds = []
        for sequence_id, (sequence, goal, rows) in goals.items():
            slot = self._slots[sequence_id]
            # Long prompts go ahead in chunks of their own, so that the common forward stays within the chunk size.
            while goal - slot.committed > share:
                end = slot.committed + min(self._chunk, goal - slot.committed - share)
                self._score([Feed(sequence_id, tuple(sequence.tokens[slot.committed : end]), 0)])
                slot.committed = end
            if slot.committed < goal:
                feeds.append(Feed(sequence_id, tuple(sequence.tokens[slot.committed : goal]), rows))
        logits_V = self._score(feeds)
        for feed in feeds:
            self._slots[feed.sequence_id].committed += len(feed.tokens)
        return logits_V

    def _score(self, feeds: Sequence[Feed]) -> dict[int, torch.Tensor]:
        if not feeds:
            return {}
        scores = self._runner.score(feeds)
        return {feed.sequence_id: at[-1] for feed, at in zip(feeds, scores.logits, strict=True) if feed.rows}

    def _ready(self, sequence: RequestState) -> bool:
        """Whether the sequence has a slot and may keep it; rewinds the slot to what was committed."""
        if not self._seat(sequence):
            return False
        self._rewind(sequence)
        if max(sequence.tokens[self._slots[sequence.id].committed :]) < self._runner.vocab_size:
            return True
        self._release(sequence.id)
        return False

    def _rewind(self, sequence: RequestState) -> None:
        """Drop guesses that were not committed; at least the last committed token is left to feed."""
        slot = self._slots[sequence.id]
        slot.committed = min(self._agreed(sequence), len(sequence.tokens) - 1)
        slot.guessed.clear()
        self._runner.commit(sequence.id, slot.committed)

    def _agreed(self, sequence: RequestState) -> int:
        """How many of the sequence's tokens the slot holds, with the guesses that came true."""
        slot, tokens = self._slots[sequence.id], sequence.tokens
        kept = slot.committed
        for guess in slot.guessed:
            if kept >= len(tokens) or tokens[kept] != guess:
                break
            kept += 1
        return kept

    def _seat(self, sequence: RequestState) -> bool:
        if len(sequence.tokens) > self._runner.max_model_len:
            self._release(sequence.id)
            return False
        if sequence.id not in self._slots:
            if len(self._slots) >= self._runner.max_num_seqs:
                return False
            self._runner.open(sequence.id)
            self._slots[sequence.id] = _Slot()
        return True

    def _release(self, sequence_id: int) -> None:
        if self._slots.pop(sequence_id, None) is not None:
            self._runner.close(sequence_id)
