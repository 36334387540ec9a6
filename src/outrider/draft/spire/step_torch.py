"""A SPIRe draft's rows in plain torch, float32, where there are no native kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from outrider.draft.spire.weights import SpireWeights
from outrider.models.decoder_config import RopeConfig
from outrider.models.rope import rotation_table


class TorchStep:
    """Sequences one by one. ``embed``: rows of the target's embedding table for token ids."""

    def __init__(
        self,
        weights: SpireWeights,
        embed: Callable[[Sequence[int]], torch.Tensor],
        *,
        slots: int,
        ring: int,
        max_model_len: int,
    ) -> None:
        c = self.config = weights.config
        self._tensors, self._embed, self._ring = weights.tensors, embed, ring
        self._share_LS = torch.softmax(weights.tensors["mix"], -1)
        turns_PE = rotation_table(RopeConfig(c.rope_theta), c.head_dim, max_model_len)
        self._cos_PE, self._sin_PE = turns_PE.real.contiguous(), turns_PE.imag.contiguous()
        heads = (slots, c.num_layers, c.sink + ring, c.num_kv_heads, c.head_dim)
        self._keys, self._values = torch.zeros(heads), torch.zeros(heads)
        self._held = torch.full((slots, c.sink + ring), -1)

    def open(self, slot: int) -> None:
        self._held[slot] = -1

    def close(self, slot: int) -> None:
        self._held[slot] = -1

    @torch.inference_mode()
    def remember(self, slot: int, positions: Sequence[int], states_LND: torch.Tensor) -> None:
        if positions:
            where = torch.tensor(positions)
            self._store(slot, where, [states_LND[i].float() for i in range(self.config.num_layers)])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        rows = zip(self._embed(tokens).float(), slots, positions, strict=True)
        return torch.stack([self._one(x_D, slot, position) for x_D, slot, position in rows])

    def _one(self, x_D: torch.Tensor, slot: int, position: int) -> torch.Tensor:
        c, held = self.config, self._held[slot]
        seen = (held >= 0) & (held < position)
        if c.window is not None:
            seen &= (held < c.sink) | (position - held <= c.window)
        where = seen.nonzero()[:, 0]
        stream = [x_D]
        for i in range(c.num_layers):
            x_D = self._layer(i, x_D, position, self._keys[slot, i, where], self._values[slot, i, where])
            stream.append(x_D)
        self._store(slot, torch.tensor([position]), [self._memory(i, stream)[None] for i in range(c.num_layers)])
        return self._tensors["head"] @ _norm(x_D, self._tensors["norm"], c.norm_eps)

    def _layer(
        self, index: int, x_D: torch.Tensor, position: int, keys_TGE: torch.Tensor, values_TGE: torch.Tensor
    ) -> torch.Tensor:
        c, where = self.config, torch.tensor([position])
        if c.sees_itself:
            key_1GE, value_1GE = self._keys_values(index, x_D[None], where)
            keys_TGE, values_TGE = torch.cat((keys_TGE, key_1GE)), torch.cat((values_TGE, value_1GE))
        if len(keys_TGE):
            query = self._weight(index, "q") @ _norm(x_D, self._weight(index, "input_norm"), c.norm_eps)
            query_GRE = self._turn(query.view(1, -1, c.head_dim), where).view(c.num_kv_heads, -1, c.head_dim)
            scores_GRT = query_GRE @ keys_TGE.permute(1, 2, 0) * c.head_dim**-0.5
            attended = torch.softmax(scores_GRT, -1) @ values_TGE.transpose(0, 1)
            x_D = x_D + self._weight(index, "out") @ attended.reshape(-1)
        inner = self._weight(index, "gate_up") @ _norm(x_D, self._weight(index, "mlp_norm"), c.norm_eps)
        gate, up = inner.chunk(2)
        return x_D + self._weight(index, "down") @ (F.silu(gate) * up)

    def _memory(self, layer: int, stream: Sequence[torch.Tensor]) -> torch.Tensor:
        if not self.config.feedback:
            return stream[layer]
        return self._share_LS[layer] @ torch.stack(list(stream))

    def _store(self, slot: int, positions: torch.Tensor, memories_LND: Sequence[torch.Tensor]) -> None:
        c = self.config
        where = torch.where(positions < c.sink, positions, c.sink + (positions - c.sink) % self._ring)
        self._held[slot, where] = positions
        for i, memory_ND in enumerate(memories_LND):
            self._keys[slot, i, where], self._values[slot, i, where] = self._keys_values(i, memory_ND, positions)

    def _keys_values(
        self, layer: int, memory_ND: torch.Tensor, positions_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.config
        kv = _norm(memory_ND, self._weight(layer, "input_norm"), c.norm_eps) @ self._weight(layer, "kv").T
        key, value = kv.view(-1, 2, c.num_kv_heads, c.head_dim).unbind(1)
        return self._turn(key, positions_N), value

    def _turn(self, heads_NGE: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """Rotary embedding; pairs are (i, i + E / 2)."""
        cos, sin = self._cos_PE[positions_N][:, None], self._sin_PE[positions_N][:, None]
        low, high = heads_NGE.chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def _weight(self, layer: int, name: str) -> torch.Tensor:
        return self._tensors[f"layers.{layer}.{name}"]


def _norm(x: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight_D.shape, weight_D, eps)
