"""A SPIRe draft's step in the native kernels: one call for one token of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from outrider.draft.spire.rotation import rotations

if TYPE_CHECKING:
    from outrider.draft.spire.weights import SpireWeights
    from outrider.kernels import Native
    from outrider.kernels._native import Gate, Matrix, Pool


class NativeSpireStep:
    """As ``TorchSpireStep``, in int8 with int8 activations: a draft may be rough, it decides how fast and never what.

    ``pool`` and ``embedding``: the target's, whose threads are awake when a draft is wanted.
    """

    def __init__(
        self,
        weights: SpireWeights,
        native: Native,
        pool: Pool,
        embedding: Matrix,
        *,
        slots: int,
        ring: int,
        max_model_len: int,
    ) -> None:
        c = self.config = weights.config
        cos_PE, sin_PE = rotations(c, max_model_len)
        self._draft = native.module.SpireDraft(
            pool,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            norm_eps=c.norm_eps,
            window=c.window or 0,
            sink=c.sink,
            sees_itself=c.sees_itself,
            slots=slots,
            ring=ring,
            embedding=embedding,
            head=_matrix(native, pool, weights.tensors["head"]),
            norm_D=weights.tensors["norm"].numpy(),
            mix_LS=weights.shares().numpy(),
            cos_SP=cos_PE.numpy(),
            sin_SP=sin_PE.numpy(),
        )
        for i in range(c.num_layers):
            layer = {name: weights.tensors[f"layers.{i}.{name}"] for name in ("q", "kv", "out", "gate_up", "down")}
            self._draft.add_layer(
                input_norm_D=weights.tensors[f"layers.{i}.input_norm"].numpy(),
                mlp_norm_D=weights.tensors[f"layers.{i}.mlp_norm"].numpy(),
                q=_matrix(native, pool, layer["q"]),
                kv=_matrix(native, pool, layer["kv"]),
                out=_matrix(native, pool, layer["out"]),
                gate_up=_matrix(native, pool, layer["gate_up"], "silu"),
                down=_matrix(native, pool, layer["down"]),
            )
        for slot in range(slots):
            self._draft.open(slot)

    def close(self, slot: int) -> None:
        """Forget everything of the slot."""
        self._draft.close(slot)
        self._draft.open(slot)

    def remember(self, slot: int, positions: Sequence[int], states_LND: torch.Tensor) -> None:
        """Keys and values of committed positions, made from the target's states."""
        slots_N = np.full(len(positions), slot, np.int32)
        states = states_LND.float().contiguous().numpy()
        self._draft.remember(slots_N, np.array(positions, np.int32), states)

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """One own position for each of N slots: logits ``(N, V)`` over the draft's vocabulary."""
        logits_NV = np.empty((len(tokens), self.config.draft_vocab_size), np.float32)
        tokens_N, slots_N, positions_N = (np.array(each, np.int32) for each in (tokens, slots, positions))
        self._draft.step(tokens_N, slots_N, positions_N, logits_NV)
        return torch.from_numpy(logits_NV)


def _matrix(native: Native, pool: Pool, weight_OI: torch.Tensor, gate: Gate = "") -> Matrix:
    values = np.ascontiguousarray(weight_OI.numpy())
    return native.module.Matrix.int8(pool, values, None, group=0, activations="int8", gate=gate)
