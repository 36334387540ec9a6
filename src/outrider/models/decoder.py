"""Our own decoder for the Llama family: exact, row-invariant, and fast at a few rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from outrider import kernels
from outrider.config import Quantization
from outrider.errors import ConfigError
from outrider.models.base import Capabilities, Feed, Scores
from outrider.models.decoder_config import DecoderConfig, supports
from outrider.models.decoder_weights import Stored
from outrider.models.forward import Forward
from outrider.models.kv import KVSlots
from outrider.models.tiles import Span

__all__ = ["DecoderConfig", "DecoderRunner", "supports"]


class DecoderRunner:
    """A TargetRunner on CPU whose rows have bits that depend on their own sequence only.

    It keeps the books: slots, lengths, and which rows are whose. A ``Forward`` computes. Logits are float32 from the
    native kernels, and have the model's dtype from torch.
    """

    def __init__(
        self, config: DecoderConfig, forward: Forward, *, max_num_seqs: int, max_model_len: int, name: str
    ) -> None:
        self.config, self.forward = config, forward
        self._name, self._max_num_seqs = name, max_num_seqs
        self._capabilities = Capabilities(
            "truncate", hidden_states=True, layer_states=True, deterministic_shape=forward.deterministic
        )
        self._slots = KVSlots(max_num_seqs, max_model_len)

    @classmethod
    def load(
        cls,
        config: DecoderConfig,
        tensors: Iterable[tuple[str, Stored]],
        *,
        dtype: torch.dtype,
        max_num_seqs: int,
        max_model_len: int,
        name: str,
        quantization: Quantization | None = None,
    ) -> DecoderRunner:
        """Pack weights given by their Hugging Face names, for the native kernels where there are any, else for torch.

        Raises ModelError when the tensors do not fit the configuration, ConfigError when the KV memory does not fit,
        CapabilityError for a ``quantization`` without native kernels.
        """
        for what, value in (("max_num_seqs", max_num_seqs), ("max_model_len", max_model_len)):
            if value < 1:
                raise ConfigError(f"{what}={value} must be 1 or more")
        forward = _load_forward(config, tensors, dtype, quantization, max_num_seqs, max_model_len, name)
        return cls(config, forward, max_num_seqs=max_num_seqs, max_model_len=max_model_len, name=name)

    @property
    def name(self) -> str:
        return self._name

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_model_len(self) -> int:
        return self._slots.max_model_len

    @property
    def max_num_seqs(self) -> int:
        return self._max_num_seqs

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def open(self, sequence_id: int) -> None:
        """Reserve a slot of ``max_model_len`` tokens, length 0."""
        reserved = self._slots.open(sequence_id)
        try:
            self.forward.open(*reserved)
        except BaseException:
            self._slots.close(sequence_id)
            raise

    def close(self, sequence_id: int) -> None:
        """Free the slot; unknown ids are ignored."""
        slot = self._slots.close(sequence_id)
        if slot is not None:
            self.forward.close(slot)

    def length(self, sequence_id: int) -> int:
        """Tokens whose KV the slot holds."""
        return self._slots.length(sequence_id)

    def commit(self, sequence_id: int, length: int) -> None:
        """Set the slot's length, absolute and idempotent. ValueError beyond what was fed."""
        self._slots.commit(sequence_id, length)

    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        """Run every feed in one packed forward; if it raises, lengths are as before."""
        assert all(0 <= layer <= self.config.num_layers for layer in layers), "states of layers that are not there"
        if not feeds:
            return Scores((), () if hidden else None, () if layers else None)
        # Packed by size, then slot: sequences that share an attention product lie side by side.
        order = sorted(range(len(feeds)), key=lambda i: (len(feeds[i].tokens), self._slots.index(feeds[i].sequence_id)))
        packed = [feeds[i] for i in order]
        spans = self._spans(packed)
        tokens = [token for feed in packed for token in feed.tokens]
        wanted = [row for span, feed in zip(spans, packed, strict=True) for row in _last_rows(span, feed.rows)]
        logits_MV, hidden_MD, states_LND = self.forward.run(tokens, spans, wanted, hidden, layers)
        for feed in packed:
            self._slots.grow(feed.sequence_id, len(feed.tokens))
        wanted_rows, all_rows = [feed.rows for feed in packed], [len(feed.tokens) for feed in packed]
        return Scores(
            _cut(logits_MV, wanted_rows, order),
            None if hidden_MD is None else _cut(hidden_MD, wanted_rows, order),
            None if states_LND is None else _cut(states_LND, all_rows, order),
        )

    def _spans(self, feeds: Sequence[Feed]) -> list[Span]:
        spans, row = [], 0
        for feed in feeds:
            count = len(feed.tokens)
            assert 0 <= feed.rows <= count > 0, "a feed needs tokens, and asks for rows of its own"
            slot, start = self._slots.begin(feed.sequence_id, count)
            spans.append(Span(row, slot, start, count))
            row += count
        return spans


def _load_forward(
    config: DecoderConfig,
    tensors: Iterable[tuple[str, Stored]],
    dtype: torch.dtype,
    quantization: Quantization | None,
    max_num_seqs: int,
    max_model_len: int,
    name: str,
) -> Forward:
    native = kernels.load().native if quantization is None else kernels.require(f"quantization={quantization!r}")
    if native is not None:
        from outrider.models.decoder_native import NativeForward

        return NativeForward.load(
            config,
            tensors,
            native,
            dtype=dtype,
            quantization=quantization,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            name=name,
        )
    from outrider.models.decoder_torch import TorchForward

    return TorchForward.load(
        config, tensors, dtype=dtype, max_num_seqs=max_num_seqs, max_model_len=max_model_len, name=name
    )


def _last_rows(span: Span, rows: int) -> range:
    return range(span.row + span.count - rows, span.row + span.count)


def _cut(packed: torch.Tensor, rows: Sequence[int], order: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Each feed's own rows of ``(..., rows, width)``, in the order in which the feeds were given."""
    parts = dict(zip(order, packed.split_with_sizes(list(rows), -2), strict=True))
    return tuple(parts[i] for i in range(len(order)))
