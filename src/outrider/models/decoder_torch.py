"""A decoder's forward pass in torch, on kernels that were tried for row independence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from outrider.models.attention import StepAttention, turns_of_rows
from outrider.models.decoder_config import DecoderConfig
from outrider.models.decoder_weights import Stored, WeightReader
from outrider.models.kv import allocate_kv
from outrider.models.ops_torch import LinearFactory, padded_rows, rms_norm
from outrider.models.rope import rotation_table
from outrider.models.tile_probe import find_tile_rule
from outrider.models.tiles import Span, TileRule
from outrider.models.weights_torch import TorchBuilder, TorchLayer, TorchWeights


class TorchForward:
    """Rows in the model's dtype: logits, keys and values too.

    A tied head costs one packed copy of the embedding table beside the table itself.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: TorchWeights,
        rule: TileRule,
        *,
        deterministic: bool,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.config, self.weights, self.rule = config, weights, rule
        self.deterministic = deterministic
        self._dtype = weights.embedding.dtype
        shape = (config.num_layers, 2, max_num_seqs, config.num_kv_heads, rule.padded_keys(max_model_len))
        self._kv = allocate_kv((*shape, config.head_dim), self._dtype)
        ropes = {True: config.rope_local, False: config.rope}
        self._turns = {kind: rotation_table(ropes[kind], config.head_dim, max_model_len) for kind in set(config.local)}
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self._dtype)
        self._qk_norms_HD = [_qk_norm(layer) for layer in weights.layers]

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        config: DecoderConfig,
        tensors: Iterable[tuple[str, Stored]],
        *,
        dtype: torch.dtype,
        max_num_seqs: int,
        max_model_len: int,
        name: str,
    ) -> TorchForward:
        """Pack weights and try this machine's kernels for row independence. Raises ModelError and ConfigError."""
        factory = LinearFactory(dtype, config.activation)
        weights = WeightReader(config, TorchBuilder(config, factory, dtype)).read(tensors, name)
        rule = find_tile_rule(config)
        return cls(
            config,
            weights,
            rule,
            deterministic=factory.deterministic and rule.deterministic,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        )

    @torch.inference_mode()
    def open(self, slot: int, used: int) -> None:
        """Nothing of the slot's last owner may survive: not even a NaN behind a mask."""
        self._kv[:, :, slot, :, :used].zero_()

    def close(self, slot: int) -> None:
        """Nothing to do: a slot is erased for its next owner."""

    @torch.inference_mode()
    def run(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        wanted: Sequence[int],
        hidden: bool,
        layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Logits, hidden states and states in the model's dtype (see ``Forward``)."""
        x_ND, states = self._layers(tokens, spans, layers)
        logits_MV, state_MD = self._head(x_ND, list(wanted))
        return logits_MV, state_MD if hidden else None, torch.stack(states) if states else None

    def _layers(
        self, tokens: Sequence[int], spans: Sequence[Span], layers: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The residual stream after the last layer, ``(N, hidden)`` with N padded, and without padding after others."""
        positions = [position for span in spans for position in range(span.start, span.end)]
        padding = [0] * (padded_rows(len(tokens)) - len(tokens))
        where = torch.tensor(positions + padding)
        turns = {kind: turns_of_rows(self.config, table[where]) for kind, table in self._turns.items()}
        attention = StepAttention(self.config, self.rule, self._kv, spans, len(where), turns, self._dtype)
        x_ND = self.weights.embedding.index_select(0, torch.tensor([*tokens, *padding]))
        if self.config.embedding_scale != 1.0:
            x_ND = x_ND * self._embedding_scale
        kept = {0: x_ND} if 0 in layers else {}
        for index, layer in enumerate(self.weights.layers):
            x_ND = self._layer(index, layer, x_ND, attention)
            if index + 1 in layers:
                kept[index + 1] = x_ND
        return x_ND, [kept[layer][: len(tokens)] for layer in layers]

    def _layer(self, index: int, layer: TorchLayer, x_ND: torch.Tensor, attention: StepAttention) -> torch.Tensor:
        eps = self.config.norm_eps
        qkv_NC = layer.qkv(rms_norm(x_ND, layer.input_norm, eps))
        attended = attention.attend(index, qkv_NC, self._qk_norms_HD[index])
        if layer.post_attention_norm is None:
            x_ND = layer.out.plus(attended, x_ND)
        else:
            x_ND = x_ND + rms_norm(layer.out(attended), layer.post_attention_norm, eps)
        inner = layer.gate_up(rms_norm(x_ND, layer.mlp_norm, eps))
        if layer.post_mlp_norm is None:
            return layer.down.plus(inner, x_ND)
        return x_ND + rms_norm(layer.down(inner), layer.post_mlp_norm, eps)

    def _head(self, state_ND: torch.Tensor, wanted: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and final hidden states of the wanted packed rows."""
        if not wanted:
            return state_ND.new_empty(0, self.config.vocab_size), state_ND.new_empty(0, self.config.hidden_size)
        padded = wanted + [wanted[-1]] * (padded_rows(len(wanted)) - len(wanted))
        if padded != list(range(len(state_ND))):
            state_ND = state_ND.index_select(0, torch.tensor(padded))
        normed_ND = rms_norm(state_ND, self.weights.norm, self.config.norm_eps)
        return self.weights.head(normed_ND)[: len(wanted)], normed_ND[: len(wanted)]


def _qk_norm(layer: TorchLayer) -> torch.Tensor | None:
    """Weights of the q and k norms by head, as the packed rows hold the heads."""
    if layer.q_norm is None or layer.k_norm is None:
        return None
    return torch.cat((layer.q_norm, layer.k_norm))
