"""A decoder step in numpy and fp64: one row after another, nothing fused, nothing shared between rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.kernels.checks import checked, in_range, instance, require
from tests.kernels.formats import Array, rounded

if TYPE_CHECKING:
    from tests.kernels.reference import Matrix, Pool

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class _Layer:
    local: bool
    input_norm_D: Float32
    qkv: Matrix
    q_norm: Float32 | None
    k_norm: Float32 | None
    out: Matrix
    post_attention_norm_D: Float32 | None
    mlp_norm_D: Float32
    gate_up: Matrix
    down: Matrix
    post_mlp_norm_D: Float32 | None


@dataclass(frozen=True)
class _Row:
    """One packed row: where its key goes, its position, and the places of the keys it sees, itself last."""

    slot: int
    place: int
    position: int
    seen: list[int]
    positions_seen: list[int]


class Decoder:
    """The API of the extension's ``Decoder``."""

    def __init__(
        self,
        pool: Pool,
        *,
        vocab_size: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_layers: int,
        norm_eps: float,
        attention_scale: float,
        window: int,
        embedding_scale: float,
        slots: int,
        positions: int,
        kv_dtype: Literal["float32", "bfloat16"],
        embedding: Matrix,
        head: Matrix,
        norm_D: Float32,
        cos_SP: Float32,
        sin_SP: Float32,
        local_cos_SP: Float32,
        local_sin_SP: Float32,
    ) -> None:
        sizes = (vocab_size, hidden_size, num_heads, num_kv_heads, head_dim, num_layers, slots, positions)
        require(min(sizes) >= 1 and window >= 0, "sizes must be 1 or more")
        require(num_heads % num_kv_heads == 0 and head_dim % 2 == 0, "heads do not divide evenly")
        require(kv_dtype in ("float32", "bfloat16"), f"kv_dtype {kv_dtype!r}")
        self.pool, self.hidden, self.vocab, self.num_layers = pool, hidden_size, vocab_size, num_layers
        self.heads, self.kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.eps, self.attention_scale, self.embedding_scale = norm_eps, attention_scale, embedding_scale
        self.window, self.positions, self.kv_dtype = window, positions, kv_dtype
        self.embedding, self.head = embedding, head
        for matrix, name in ((embedding, "embedding"), (head, "head")):
            self._fits(matrix, name, vocab_size, hidden_size)
            require(not matrix.gate, f"{name} is gated")
        self.norm_D = checked(norm_D, "norm", np.float32, hidden_size).copy()
        tables = {"cos": cos_SP, "sin": sin_SP, "local cos": local_cos_SP, "local sin": local_sin_SP}
        for name, table in tables.items():
            checked(table, name, np.float32, positions, head_dim // 2)
        self.turns = {False: cos_SP + 1j * sin_SP, True: local_cos_SP + 1j * local_sin_SP}
        self.layers: list[_Layer] = []
        self.keys_LSPHD = np.zeros((num_layers, slots, positions, num_kv_heads, head_dim))
        self.values_LSPHD = np.zeros_like(self.keys_LSPHD)
        self.written: list[int | None] = [None] * slots

    def add_layer(self, **parts: Any) -> None:
        """Append a layer; the parts are ``_Layer``'s fields."""
        layer = _Layer(**{name: _copied(part) for name, part in parts.items()})
        require(len(self.layers) < self.num_layers, "more layers than num_layers")
        width, heads = self.hidden, self.heads * self.head_dim
        self._fits(layer.qkv, "qkv", heads + 2 * self.kv_heads * self.head_dim, width)
        self._fits(layer.out, "out", width, heads)
        self._fits(layer.gate_up, "gate_up", layer.down.inputs, width)
        self._fits(layer.down, "down", width, layer.gate_up.outputs)
        require(bool(layer.gate_up.gate), "gate_up has no gate")
        require(not (layer.qkv.gate or layer.out.gate or layer.down.gate), "only gate_up is gated")
        for norm_D in (layer.input_norm_D, layer.mlp_norm_D):
            checked(norm_D, "norm", np.float32, width)
        for norm, size in (
            (layer.q_norm, self.head_dim),
            (layer.k_norm, self.head_dim),
            (layer.post_attention_norm_D, width),
            (layer.post_mlp_norm_D, width),
        ):
            if norm is not None:
                checked(norm, "norm", np.float32, size)
        self.layers.append(layer)

    @property
    def nbytes(self) -> int:
        matrices = [self.embedding, self.head]
        for layer in self.layers:
            matrices += [layer.qkv, layer.out, layer.gate_up, layer.down]
        return sum({id(matrix): matrix.nbytes for matrix in matrices}.values())

    def open(self, slot: int) -> None:
        """Take a closed slot."""
        require(0 <= slot < len(self.written) and self.written[slot] is None, f"slot {slot} is open, or does not exist")
        self.written[slot] = 0

    def close(self, slot: int) -> None:
        """Erase and free an open slot."""
        self._written(slot)
        self.keys_LSPHD[:, slot] = self.values_LSPHD[:, slot] = 0
        self.written[slot] = None

    def step(
        self,
        tokens_N: Int32,
        slots_F: Int32,
        starts_F: Int32,
        counts_F: Int32,
        wanted_M: Int32,
        logits_MV: Float32,
        *,
        hidden_MD: Float32 | None = None,
        layers_L: Int32 | None = None,
        states_LND: Float32 | None = None,
        parents_N: Int32 | None = None,
    ) -> None:
        """One packed forward, everything checked before anything is written."""
        require(len(self.layers) == self.num_layers, f"{len(self.layers)} layers of {self.num_layers}")
        rows = self._plan(tokens_N, slots_F, starts_F, counts_F, parents_N)
        in_range(checked(wanted_M, "wanted", np.int32, None), 0, len(rows), "wanted")
        count = len(wanted_M)
        checked(logits_MV, "logits", np.float32, count, self.vocab, writeable=True)
        if hidden_MD is not None:
            checked(hidden_MD, "hidden", np.float32, count, self.hidden, writeable=True)
        require((layers_L is None) == (states_LND is None), "layers and states go together")
        if layers_L is not None:
            in_range(checked(layers_L, "layers", np.int32, None), 0, self.num_layers + 1, "layers")
            checked(states_LND, "states", np.float32, len(layers_L), len(rows), self.hidden, writeable=True)

        streams = self._forward(tokens_N, rows)
        normed_MD = _norm(streams[-1][wanted_M], self.norm_D, self.eps)
        with np.errstate(over="ignore"):
            logits_MV[:] = self.head.product(normed_MD)
            if hidden_MD is not None:
                hidden_MD[:] = normed_MD
            if layers_L is not None and states_LND is not None:
                for i, after in enumerate(layers_L):
                    states_LND[i] = streams[after]
        for slot, start, rows_fed in zip(slots_F, starts_F, counts_F, strict=True):
            self.written[slot] = int(start + rows_fed)

    def move(self, slot: int, sources: Int32, target: int) -> None:
        """Copy keys and values to where a plain feed would have put them."""
        written = self._written(slot)
        checked(sources, "sources", np.int32, None)
        in_range(sources, 0, written, "sources")
        require(target >= 0, f"target={target}")
        targets = np.arange(target, target + len(sources))
        require(np.all(np.diff(sources) > 0) and np.all(sources >= targets), "sources ascend, none before its target")
        for store in (self.keys_LSPHD, self.values_LSPHD):
            store[:, slot, targets] = store[:, slot, sources]

    def _fits(self, matrix: Matrix, name: str, outputs: int, inputs: int) -> None:
        from tests.kernels.reference import Matrix as Own

        instance(matrix, Own, name)
        require(matrix.pool is self.pool, f"{name} belongs to another pool")
        require((matrix.outputs, matrix.inputs) == (outputs, inputs), f"{name} has another shape")

    def _written(self, slot: int) -> int:
        written = self.written[slot] if 0 <= slot < len(self.written) else None
        if written is None:
            raise ValueError(f"slot {slot} is not open")
        return written

    def _plan(
        self, tokens_N: Int32, slots_F: Int32, starts_F: Int32, counts_F: Int32, parents_N: Int32 | None
    ) -> list[_Row]:
        in_range(checked(tokens_N, "tokens", np.int32, None), 0, self.vocab, "tokens")
        feeds = len(checked(slots_F, "slots", np.int32, None))
        checked(starts_F, "starts", np.int32, feeds)
        checked(counts_F, "counts", np.int32, feeds)
        require(np.all(counts_F >= 1) and counts_F.sum() == len(tokens_N), "counts do not add up to the tokens")
        require(len(set(slots_F.tolist())) == feeds, "a slot is fed twice")
        if parents_N is None:
            parents_N = np.concatenate([np.arange(-1, count - 1, dtype=np.int32) for count in [*counts_F, 0]])
        checked(parents_N, "parents", np.int32, len(tokens_N))
        rows: list[_Row] = []
        for slot, start, count in zip(slots_F.tolist(), starts_F.tolist(), counts_F.tolist(), strict=True):
            require(0 <= start <= self._written(slot), f"start {start} is beyond what slot {slot} holds")
            require(start + count <= self.positions, "a slot overflows")
            parents = parents_N[len(rows) : len(rows) + count].tolist()
            rows += _rows_of_feed(slot, start, parents)
        return rows

    def _forward(self, tokens_N: Int32, rows: list[_Row]) -> list[Array]:
        """The residual stream before the first layer and after each."""
        x_ND: Array = self.embedding.rows(tokens_N).astype(np.float64) * self.embedding_scale
        streams = [x_ND]
        with np.errstate(invalid="ignore", over="ignore"):
            for index, layer in enumerate(self.layers):
                attended = self._attend(index, layer, _norm(x_ND, layer.input_norm_D, self.eps), rows)
                x_ND = x_ND + self._post(layer.out.product(attended), layer.post_attention_norm_D)
                inner = layer.gate_up.product(_norm(x_ND, layer.mlp_norm_D, self.eps))
                x_ND = x_ND + self._post(layer.down.product(inner), layer.post_mlp_norm_D)
                streams.append(x_ND)
        return streams

    def _post(self, x_ND: Array, norm_D: Float32 | None) -> Array:
        return x_ND if norm_D is None else _norm(x_ND, norm_D, self.eps)

    def _attend(self, index: int, layer: _Layer, x_ND: Array, rows: list[_Row]) -> Array:
        """Heads side by side, ``(N, heads * head_dim)``; keys and values of all rows are stored first."""
        qkv_NHD = layer.qkv.product(x_ND).reshape(len(rows), -1, self.head_dim)
        turns_NP = self.turns[layer.local][[row.position for row in rows]]
        q_NHD, k_NHD, v_NHD = np.split(qkv_NHD, (self.heads, self.heads + self.kv_heads), axis=1)
        q_NHD, k_NHD = (
            _rotated(states if norm is None else _norm(states, norm, self.eps), turns_NP)
            for states, norm in ((q_NHD, layer.q_norm), (k_NHD, layer.k_norm))
        )
        keys_SPHD, values_SPHD = self.keys_LSPHD[index], self.values_LSPHD[index]
        for row, k_HD, v_HD in zip(rows, k_NHD, v_NHD, strict=True):
            keys_SPHD[row.slot, row.place] = rounded(k_HD, self.kv_dtype)
            values_SPHD[row.slot, row.place] = rounded(v_HD, self.kv_dtype)
        out_NHD = np.zeros_like(q_NHD)
        for row, q_HD, out_HD in zip(rows, q_NHD, out_NHD, strict=True):
            far = row.position - self.window if layer.local and self.window else -1
            seen = [place for place, at in zip(row.seen, row.positions_seen, strict=True) if at > far]
            keys_PHD, values_PHD = keys_SPHD[row.slot][seen], values_SPHD[row.slot][seen]
            for head in range(self.heads):
                shared = head * self.kv_heads // self.heads
                scores_P = keys_PHD[:, shared] @ q_HD[head] * self.attention_scale
                weights_P = np.exp(scores_P - scores_P.max())
                out_HD[head] = weights_P @ values_PHD[:, shared] / weights_P.sum()
        return out_NHD.reshape(len(rows), -1)


def _copied(part: Any) -> Any:
    """An array's copy, of the same dtype and layout, so that mistakes are still seen."""
    return part.copy(order="K") if isinstance(part, np.ndarray) else part


def _rows_of_feed(slot: int, start: int, parents: list[int]) -> list[_Row]:
    rows: list[_Row] = []
    for i, parent in enumerate(parents):
        require(-1 <= parent < i, f"row {i} of a feed follows row {parent}")
        committed = list(range(start))
        seen = committed if parent < 0 else rows[parent].seen
        positions = committed if parent < 0 else rows[parent].positions_seen
        position = positions[-1] + 1 if positions else 0
        rows.append(_Row(slot, start + i, position, [*seen, start + i], [*positions, position]))
    return rows


def _norm(x: Array, weight_D: Float32, eps: float) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight_D.astype(np.float64)
    return normed


def _rotated(states_NHD: Array, turns_NP: NDArray[np.complexfloating]) -> Array:
    half = states_NHD.shape[-1] // 2
    turned = (states_NHD[..., :half] + 1j * states_NHD[..., half:]) * turns_NP[:, None]
    return np.concatenate((turned.real, turned.imag), axis=-1)
