"""A SPIRe draft's step in plain torch: what it remembers of each sequence, and one position's logits from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from outrider.draft.spire.rotation import rotations, turn

if TYPE_CHECKING:
    from outrider.draft.spire.weights import SpireWeights

Held = tuple[torch.Tensor, torch.Tensor]
"""Keys and values ``(T, G, E)``."""


class TorchSpireStep:
    """Keys and values slot by slot, float32: the sink's places, then a ring of ``ring`` positions.

    ``embed``: rows of the target's embedding table for token ids. Each place knows which position it holds, so what a
    refused draft left there is simply not seen: it stands at or behind the position that asks.
    """

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
        self._share_LS = weights.shares()
        self._cos_PE, self._sin_PE = rotations(c, max_model_len)
        heads = (slots, c.num_layers, c.sink + ring, c.num_kv_heads, c.head_dim)
        self._keys, self._values = torch.zeros(heads), torch.zeros(heads)
        self._position = torch.full((slots, c.sink + ring), -1)

    def close(self, slot: int) -> None:
        """Forget everything of the slot."""
        self._position[slot] = -1

    @torch.inference_mode()
    def remember(self, slot: int, positions: Sequence[int], states_LND: torch.Tensor) -> None:
        """Keys and values of committed positions, made from the target's states."""
        if positions:
            slots = torch.full((len(positions),), slot)
            self._store(slots, torch.tensor(positions), [states_ND.float() for states_ND in states_LND])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """One own position for each of N slots: logits ``(N, V)`` over the draft's vocabulary.

        A position sees what its slot remembers of earlier ones, and is then remembered itself.
        """
        slots_N, positions_N = torch.tensor(slots), torch.tensor(positions)
        seen = [self._seen(slot, position) for slot, position in zip(slots, positions, strict=True)]
        stream = [self._embed(tokens).float()]
        for i in range(self.config.num_layers):
            held = [(self._keys[slot, i, at], self._values[slot, i, at]) for slot, at in zip(slots, seen, strict=True)]
            stream.append(self._layer(i, stream[-1], positions_N, held))
        self._store(slots_N, positions_N, [self._memory(i, stream) for i in range(self.config.num_layers)])
        return self._product("head", self._norm("norm", stream[-1]))

    def _seen(self, slot: int, position: int) -> torch.Tensor:
        """Places of the slot that a position sees."""
        c, held = self.config, self._position[slot]
        seen = (held >= 0) & (held < position)
        if c.window is not None:
            seen &= (held < c.sink) | (position - held <= c.window)
        return seen.nonzero()[:, 0]

    def _layer(self, index: int, x_ND: torch.Tensor, positions_N: torch.Tensor, held: Sequence[Held]) -> torch.Tensor:
        c, at = self.config, f"layers.{index}."
        normed_ND = self._norm(at + "input_norm", x_ND)
        if c.sees_itself:
            key_NGE, value_NGE = self._keys_values(index, normed_ND, positions_N)
            held = [
                (torch.cat((k, key_NGE[i, None])), torch.cat((v, value_NGE[i, None]))) for i, (k, v) in enumerate(held)
            ]
        query_NHE = self._turn(self._product(at + "q", normed_ND).view(len(x_ND), -1, c.head_dim), positions_N)
        attended_NA = torch.stack([self._attend(query_NHE[i], *each) for i, each in enumerate(held)])
        x_ND = x_ND + self._product(at + "out", attended_NA)
        gate_NI, up_NI = self._product(at + "gate_up", self._norm(at + "mlp_norm", x_ND)).chunk(2, -1)
        return x_ND + self._product(at + "down", F.silu(gate_NI) * up_NI)

    def _attend(self, query_HE: torch.Tensor, keys_TGE: torch.Tensor, values_TGE: torch.Tensor) -> torch.Tensor:
        c = self.config
        query_GRE = query_HE.view(c.num_kv_heads, -1, c.head_dim)
        # Of no keys at all the softmax is empty and what it weighs is zero.
        weights_GRT = torch.softmax(query_GRE @ keys_TGE.permute(1, 2, 0) * c.head_dim**-0.5, -1)
        return (weights_GRT @ values_TGE.transpose(0, 1)).reshape(-1)

    def _memory(self, layer: int, stream: Sequence[torch.Tensor]) -> torch.Tensor:
        return (self._share_LS[layer, :, None, None] * torch.stack(list(stream))).sum(0)

    def _store(self, slots_N: torch.Tensor, positions_N: torch.Tensor, memories_LND: Sequence[torch.Tensor]) -> None:
        c = self.config
        where_N = torch.where(positions_N < c.sink, positions_N, c.sink + (positions_N - c.sink) % self._ring)
        self._position[slots_N, where_N] = positions_N
        for i, memory_ND in enumerate(memories_LND):
            normed_ND = self._norm(f"layers.{i}.input_norm", memory_ND)
            key_NGE, value_NGE = self._keys_values(i, normed_ND, positions_N)
            self._keys[slots_N, i, where_N], self._values[slots_N, i, where_N] = key_NGE, value_NGE

    def _keys_values(self, layer: int, normed_ND: torch.Tensor, positions_N: torch.Tensor) -> Held:
        c = self.config
        kv = self._product(f"layers.{layer}.kv", normed_ND).view(-1, 2, c.num_kv_heads, c.head_dim)
        return self._turn(kv[:, 0], positions_N), kv[:, 1]

    def _turn(self, heads_NGE: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        return turn(heads_NGE, self._cos_PE[positions_N], self._sin_PE[positions_N])

    def _product(self, name: str, x_NI: torch.Tensor) -> torch.Tensor:
        # One by one: a product of several rows rounds in another way than one of a single row.
        return torch.stack([self._tensors[name] @ x_I for x_I in x_NI])

    def _norm(self, name: str, x_ND: torch.Tensor) -> torch.Tensor:
        weight_D = self._tensors[name]
        return F.rms_norm(x_ND, weight_D.shape, weight_D, self.config.norm_eps)
