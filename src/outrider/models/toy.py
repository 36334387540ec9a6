"""A tabular language model small enough to enumerate, behind the same runner contract as a real one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import torch

from outrider.models.base import Capabilities, Feed, Scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ToyModel:
    """Next-token logits as a fixed function of the last ``context`` tokens.

    Logits of a context not in ``table`` are normal noise of standard deviation ``scale``, seeded by a hash of
    (seed, context): the same in every process and in any order of asking.
    """

    def __init__(
        self,
        vocab_size: int,
        context: int = 2,
        *,
        seed: int = 0,
        scale: float = 1.5,
        dtype: torch.dtype = torch.float32,
        table: Mapping[tuple[int, ...], Sequence[float]] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context = context
        self.dtype = dtype
        self._seed = seed
        self._scale = scale
        self._rows = {key: torch.tensor(row, dtype=dtype) for key, row in (table or {}).items()}

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits (V,) of the token after ``tokens``; do not write to the result."""
        key = tuple(tokens[max(0, len(tokens) - self.context) :])
        if key not in self._rows:
            self._rows[key] = self._noise(key)
        return self._rows[key]

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The ``count`` tokens that greedy decoding adds to ``tokens``."""
        out = list(tokens)
        for _ in range(count):
            out.append(int(self.logits(out).argmax()))
        return out[len(tokens) :]

    def _noise(self, key: tuple[int, ...]) -> torch.Tensor:
        digest = hashlib.blake2b(repr((self._seed, key)).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        row_V = torch.randn(self.vocab_size, generator=generator, dtype=torch.float64) * self._scale
        return row_V.to(self.dtype)


class ToyRunner:
    """Target runner over a ``ToyModel``; a slot's stored tokens are its KV.

    Rows are computed from the slot alone, stale entries included, so a wrong length gives wrong logits just as
    stale KV would. ``vocab_size`` other than the model's imitates padded embeddings: more columns hold
    ``padding_logit`` (real padding is untrained, not -inf), fewer cut the last ids off, and feeding an id at or
    above it fails like an embedding lookup. ``fail_on_call=n`` makes the n-th ``score`` (from 1) raise midway.
    """

    def __init__(
        self,
        model: ToyModel,
        max_num_seqs: int = 8,
        max_model_len: int = 256,
        *,
        name: str = "toy",
        vocab_size: int | None = None,
        padding_logit: float = 50.0,
        rollback: Literal["truncate", "none"] = "truncate",
        fail_on_call: int | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.vocab_size = model.vocab_size if vocab_size is None else vocab_size
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.capabilities = Capabilities(rollback=rollback, deterministic_shape=True)
        self.fail_on_call = fail_on_call
        self.calls: list[tuple[Feed, ...]] = []
        self._padding_logit = padding_logit
        self._stored: dict[int, list[int]] = {}
        self._length: dict[int, int] = {}

    @property
    def open_slots(self) -> int:
        """Slots in use; 0 once every sequence was closed."""
        return len(self._stored)

    def open(self, sequence_id: int) -> None:
        assert sequence_id not in self._stored, f"sequence {sequence_id} is open already"
        assert len(self._stored) < self.max_num_seqs, f"more than {self.max_num_seqs} slots opened"
        self._stored[sequence_id] = []
        self._length[sequence_id] = 0

    def close(self, sequence_id: int) -> None:
        self._stored.pop(sequence_id, None)
        self._length.pop(sequence_id, None)

    def length(self, sequence_id: int) -> int:
        return self._length[sequence_id]

    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        assert not any((hidden, layers)), "the toy model has no hidden states"
        ids = [feed.sequence_id for feed in feeds]
        assert len(set(ids)) == len(ids), f"one feed per sequence, got {ids}"
        self.calls.append(tuple(feeds))
        for feed in feeds:
            self._write(feed)
        if len(self.calls) == self.fail_on_call:
            raise RuntimeError(f"toy runner: injected failure of call {self.fail_on_call}")
        logits = tuple(self._rows(feed) for feed in feeds)
        for feed in feeds:
            self._length[feed.sequence_id] += len(feed.tokens)
        return Scores(logits)

    def commit(self, sequence_id: int, length: int) -> None:
        now = self._length[sequence_id]
        assert 0 <= length <= now, f"commit({length}) of a slot that holds {now}"
        assert length == now or self.capabilities.rollback == "truncate", "this runner cannot roll back"
        self._length[sequence_id] = length

    def _write(self, feed: Feed) -> None:
        assert 0 <= feed.rows <= len(feed.tokens), f"{feed.rows} rows of {len(feed.tokens)} tokens"
        assert all(0 <= token < self.vocab_size for token in feed.tokens), f"token outside {self.vocab_size}"
        start = self._length[feed.sequence_id]
        assert start + len(feed.tokens) <= self.max_model_len, f"slot of {self.max_model_len} tokens overrun"
        # Only the entries written are replaced: what lies beyond stays, as in a real KV slot.
        self._stored[feed.sequence_id][start : start + len(feed.tokens)] = feed.tokens

    def _rows(self, feed: Feed) -> torch.Tensor:
        stored = self._stored[feed.sequence_id]
        end = self._length[feed.sequence_id] + len(feed.tokens)
        if feed.rows == 0:
            return torch.empty(0, self.vocab_size, dtype=self.model.dtype)
        shown = self.model.context
        rows = [self.model.logits(stored[max(0, at - shown) : at]) for at in range(end - feed.rows + 1, end + 1)]
        return self._fit(torch.stack(rows))

    def _fit(self, logits_TV: torch.Tensor) -> torch.Tensor:
        extra = self.vocab_size - logits_TV.shape[1]
        if extra <= 0:
            return logits_TV[:, : self.vocab_size]
        return torch.nn.functional.pad(logits_TV, (0, extra), value=self._padding_logit)
