"""A SPIRe draft in numpy and fp64: one row after another, and every position ever stored kept by its number.

There is no ring here: what the extension's loses must never have been in sight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.kernels.formats import Array
from tests.kernels.reference import Matrix, Pool

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Held = tuple[Array, Array]
"""Turned keys and values of a position in one layer, each ``(kv_heads, head_dim)``."""


@dataclass(frozen=True)
class _Layer:
    input_norm_D: Float32
    q: Matrix
    kv: Matrix
    out: Matrix
    mlp_norm_D: Float32
    gate_up: Matrix
    down: Matrix


class SpireDraft:
    """The API of the extension's ``SpireDraft``; what that refuses is not refused here."""

    def __init__(
        self,
        pool: Pool,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norm_eps: float,
        window: int,
        sink: int,
        sees_itself: bool,
        slots: int,
        ring: int,
        embedding: Matrix,
        head: Matrix,
        norm_D: Float32,
        mix_LS: Float32,
        cos_SP: Float32,
        sin_SP: Float32,
    ) -> None:
        self.heads, self.kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.eps, self.window, self.sink, self.sees_itself = norm_eps, window, sink, sees_itself
        self.embedding, self.head, self.norm_D = embedding, head, norm_D
        self.mix_LS = mix_LS.astype(np.float64)
        self.turns_SP = cos_SP + 1j * sin_SP
        self.layers: list[_Layer] = []
        self.held: list[dict[int, list[Held]]] = [{} for _ in range(slots)]

    def add_layer(
        self,
        *,
        input_norm_D: Float32,
        q: Matrix,
        kv: Matrix,
        out: Matrix,
        mlp_norm_D: Float32,
        gate_up: Matrix,
        down: Matrix,
    ) -> None:
        """Append a layer."""
        self.layers.append(_Layer(input_norm_D, q, kv, out, mlp_norm_D, gate_up, down))

    @property
    def nbytes(self) -> int:
        matrices = [self.head]
        for layer in self.layers:
            matrices += [layer.q, layer.kv, layer.out, layer.gate_up, layer.down]
        return sum({id(matrix): matrix.nbytes for matrix in matrices}.values())

    def open(self, slot: int) -> None:
        """Nothing to do."""

    def close(self, slot: int) -> None:
        """Forget a slot."""
        self.held[slot].clear()

    @np.errstate(invalid="ignore", over="ignore")
    def remember(self, slots_N: Int32, positions_N: Int32, states_LND: Float32) -> None:
        """Keys and values of positions from the layers' states."""
        for row, (slot, position) in enumerate(zip(slots_N.tolist(), positions_N.tolist(), strict=True)):
            self._store(slot, position, [state_ND[row].astype(np.float64) for state_ND in states_LND])

    @np.errstate(invalid="ignore", over="ignore")
    def step(self, tokens_N: Int32, slots_N: Int32, positions_N: Int32, logits_NV: Float32) -> None:
        """Logits of one own position of each slot, which is remembered."""
        for row, slot in enumerate(slots_N.tolist()):
            streams = self._forward(int(tokens_N[row]), slot, int(positions_N[row]))
            self._store(slot, int(positions_N[row]), [shares_S @ np.array(streams) for shares_S in self.mix_LS])
            logits_NV[row] = self.head.product(self._norm(streams[-1], self.norm_D)[None])[0]

    def _forward(self, token: int, slot: int, position: int) -> list[Array]:
        x_D: Array = self.embedding.rows(np.array([token], np.int32))[0].astype(np.float64)
        streams = [x_D]
        for index, layer in enumerate(self.layers):
            query_D = layer.q.product(self._norm(x_D, layer.input_norm_D)[None])[0]
            held = {p: layers[index] for p, layers in self.held[slot].items() if self._sees(position, p)}
            if self.sees_itself:
                held[position] = self._keys_values(layer, x_D, position)
            attended_D = self._attend(query_D.reshape(self.heads, -1), held, position)
            x_D = x_D + layer.out.product(attended_D[None])[0]
            inner_D = layer.gate_up.product(self._norm(x_D, layer.mlp_norm_D)[None])[0]
            x_D = x_D + layer.down.product(inner_D[None])[0]
            streams.append(x_D)
        return streams

    def _attend(self, query_HD: Array, held: dict[int, Held], position: int) -> Array:
        out_HD = np.zeros_like(query_HD)
        if held:
            query_HD = self._turned(query_HD, position)
            keys_PHD, values_PHD = (np.array([held[p][i] for p in sorted(held)]) for i in (0, 1))
            for head in range(self.heads):
                shared = head * self.kv_heads // self.heads
                scores_P = keys_PHD[:, shared] @ query_HD[head] / np.sqrt(self.head_dim)
                weights_P = np.exp(scores_P - scores_P.max())
                out_HD[head] = weights_P @ values_PHD[:, shared] / weights_P.sum()
        return out_HD.reshape(-1)

    def _sees(self, position: int, key: int) -> bool:
        near = self.window == 0 or position - key <= self.window
        return key < position and (key < self.sink or near)

    def _store(self, slot: int, position: int, memories: list[Array]) -> None:
        pairs = zip(self.layers, memories, strict=True)
        self.held[slot][position] = [self._keys_values(layer, memory_D, position) for layer, memory_D in pairs]

    def _keys_values(self, layer: _Layer, x_D: Array, position: int) -> Held:
        kv = layer.kv.product(self._norm(x_D, layer.input_norm_D)[None])[0]
        keys_HD, values_HD = kv.reshape(2, self.kv_heads, self.head_dim)
        return self._turned(keys_HD, position), values_HD

    def _turned(self, heads_HD: Array, position: int) -> Array:
        half = self.head_dim // 2
        turned_HP = (heads_HD[:, :half] + 1j * heads_HD[:, half:]) * self.turns_SP[position]
        return np.concatenate((turned_HP.real, turned_HP.imag), axis=-1)

    def _norm(self, x_D: Array, weight_D: Float32) -> Array:
        normed_D: Array = x_D / np.sqrt((x_D * x_D).mean() + self.eps) * weight_D.astype(np.float64)
        return normed_D
