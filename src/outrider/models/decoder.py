"""Our own decoder for the Llama family: exact, row-invariant, and fast at a few rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch

from outrider.errors import ConfigError
from outrider.models.attention import StepAttention, turns_of_rows
from outrider.models.base import Capabilities, Feed, Scores
from outrider.models.decoder_config import DecoderConfig, supports
from outrider.models.decoder_weights import Layer, WeightReader, Weights
from outrider.models.kv import KVSlots, allocate_kv
from outrider.models.ops_torch import LinearFactory, padded_rows, rms_norm
from outrider.models.rope import rotation_table
from outrider.models.tile_probe import find_tile_rule
from outrider.models.tiles import Span, TileRule

__all__ = ["DecoderConfig", "DecoderRunner", "supports"]


class DecoderRunner:
    """A TargetRunner on CPU whose rows have bits that depend on their own sequence only.

    Logits, keys and values have the model's dtype. A tied head costs one packed copy of the embedding table beside
    the table itself.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        rule: TileRule,
        *,
        deterministic: bool,
        max_num_seqs: int,
        max_model_len: int,
        name: str,
    ) -> None:
        self.config = config
        self._weights, self._rule, self._name = weights, rule, name
        self._max_num_seqs = max_num_seqs
        self._capabilities = Capabilities("truncate", hidden_states=True, deterministic_shape=deterministic)
        positions = rule.padded_keys(max_model_len)
        shape = (config.num_layers, 2, max_num_seqs, config.num_kv_heads, positions, config.head_dim)
        self._kv = allocate_kv(shape, weights.embedding_VD.dtype)
        self._slots = KVSlots(max_num_seqs, max_model_len)
        ropes = {True: config.rope_local, False: config.rope}
        self._turns = {kind: rotation_table(ropes[kind], config.head_dim, max_model_len) for kind in set(config.local)}
        self._dtype = weights.embedding_VD.dtype
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self._dtype)

    @classmethod
    def load(
        cls,
        config: DecoderConfig,
        tensors: Iterable[tuple[str, torch.Tensor]],
        *,
        dtype: torch.dtype,
        max_num_seqs: int,
        max_model_len: int,
        name: str,
    ) -> DecoderRunner:
        """Pack weights given by their Hugging Face names and try this machine's kernels for row independence.

        Raises ModelError when the tensors do not fit the configuration, ConfigError when the KV memory does not fit.
        """
        for what, value in (("max_num_seqs", max_num_seqs), ("max_model_len", max_model_len)):
            if value < 1:
                raise ConfigError(f"{what}={value} must be 1 or more")
        with torch.inference_mode():
            factory = LinearFactory(dtype, config.activation)
            weights = WeightReader(config, factory, dtype).read(tensors, name)
            rule = find_tile_rule(config)
            return cls(
                config,
                weights,
                rule,
                deterministic=factory.deterministic and rule.deterministic,
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                name=name,
            )

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

    @torch.inference_mode()
    def open(self, sequence_id: int) -> None:
        """Reserve a slot of ``max_model_len`` tokens, length 0."""
        slot, used = self._slots.open(sequence_id)
        # Nothing of the slot's last owner may survive: not even a NaN behind a mask.
        self._kv[:, :, slot, :, :used].zero_()

    def close(self, sequence_id: int) -> None:
        """Free the slot; unknown ids are ignored."""
        self._slots.close(sequence_id)

    def length(self, sequence_id: int) -> int:
        """Tokens whose KV the slot holds."""
        return self._slots.length(sequence_id)

    def commit(self, sequence_id: int, length: int) -> None:
        """Set the slot's length, absolute and idempotent. ValueError beyond what was fed."""
        self._slots.commit(sequence_id, length)

    @torch.inference_mode()
    def score(self, feeds: Sequence[Feed], hidden: bool = False) -> Scores:
        """Run every feed in one packed forward; if it raises, lengths are as before."""
        if not feeds:
            return Scores((), () if hidden else None)
        # Packed by size, then slot: sequences that share an attention product lie side by side.
        order = sorted(range(len(feeds)), key=lambda i: (len(feeds[i].tokens), self._slots.index(feeds[i].sequence_id)))
        packed = [feeds[i] for i in order]
        spans = self._spans(packed)
        state_ND = self._forward(packed, spans)
        wanted = [row for span, feed in zip(spans, packed, strict=True) for row in _last_rows(span, feed.rows)]
        logits, states = self._head(state_ND, wanted)
        for feed in packed:
            self._slots.grow(feed.sequence_id, len(feed.tokens))
        bounds = [0]
        for feed in packed:
            bounds.append(bounds[-1] + feed.rows)
        places = dict(zip(order, pairwise(bounds), strict=True))
        cuts = [slice(*places[i]) for i in range(len(feeds))]
        return Scores(tuple(logits[cut] for cut in cuts), tuple(states[cut] for cut in cuts) if hidden else None)

    def _spans(self, feeds: Sequence[Feed]) -> list[Span]:
        spans, row = [], 0
        for feed in feeds:
            count = len(feed.tokens)
            assert 0 <= feed.rows <= count > 0, "a feed needs tokens, and asks for rows of its own"
            slot, start = self._slots.begin(feed.sequence_id, count)
            spans.append(Span(row, slot, start, count))
            row += count
        return spans

    def _forward(self, feeds: Sequence[Feed], spans: Sequence[Span]) -> torch.Tensor:
        """The residual stream after the last layer, ``(N, hidden)`` with N padded."""
        tokens = [token for feed in feeds for token in feed.tokens]
        positions = [position for span in spans for position in range(span.start, span.end)]
        padding = [0] * (padded_rows(len(tokens)) - len(tokens))
        where = torch.tensor(positions + padding)
        turns = {kind: turns_of_rows(self.config, table[where]) for kind, table in self._turns.items()}
        attention = StepAttention(self.config, self._rule, self._kv, spans, len(where), turns, self._dtype)
        x_ND = self._weights.embedding_VD.index_select(0, torch.tensor(tokens + padding))
        if self.config.embedding_scale != 1.0:
            x_ND = x_ND * self._embedding_scale
        for index, layer in enumerate(self._weights.layers):
            x_ND = self._layer(index, layer, x_ND, attention)
        return x_ND

    def _layer(self, index: int, layer: Layer, x_ND: torch.Tensor, attention: StepAttention) -> torch.Tensor:
        eps = self.config.norm_eps
        qkv_NC = layer.qkv(rms_norm(x_ND, layer.input_norm, eps))
        attended = attention.attend(index, qkv_NC, layer.qk_norm_HD)
        if layer.post_attention_norm is None:
            x_ND = layer.out.plus(attended, x_ND)
        else:
            x_ND = x_ND + rms_norm(layer.out(attended), layer.post_attention_norm, eps)
        normed_ND = rms_norm(x_ND, layer.mlp_norm, eps)
        inner = layer.up.times(normed_ND, layer.gate.activated(normed_ND))
        if layer.post_mlp_norm is None:
            return layer.down.plus(inner, x_ND)
        return x_ND + rms_norm(layer.down(inner), layer.post_mlp_norm, eps)

    def _head(self, state_ND: torch.Tensor, wanted: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and final hidden states of the wanted packed rows."""
        if not wanted:
            return state_ND.new_empty(0, self.vocab_size), state_ND.new_empty(0, self.config.hidden_size)
        padded = wanted + [wanted[-1]] * (padded_rows(len(wanted)) - len(wanted))
        if padded != list(range(len(state_ND))):
            state_ND = state_ND.index_select(0, torch.tensor(padded))
        normed_ND = rms_norm(state_ND, self._weights.norm, self.config.norm_eps)
        return self._weights.head(normed_ND)[: len(wanted)], normed_ND[: len(wanted)]


def _last_rows(span: Span, rows: int) -> range:
    return range(span.row + span.count - rows, span.row + span.count)
