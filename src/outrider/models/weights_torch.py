"""Weights packed for torch's matrix kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.models.attention import packed_width
from outrider.models.decoder_config import DecoderConfig
from outrider.models.decoder_weights import Layer, Stored, Weights
from outrider.models.ops_torch import Linear, LinearFactory, norm_weight
from outrider.models.rope import pair_order


class GatedLinear:
    """``activation(gate) * up``."""

    def __init__(self, gate: Linear, up: Linear) -> None:
        self._gate, self._up = gate, up

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        return self._up.times(x_NI, self._gate.activated(x_NI))


TorchLayer = Layer[Linear, GatedLinear, torch.Tensor]
TorchWeights = Weights[torch.Tensor, Linear, GatedLinear, torch.Tensor]
"""Norms as ``ops_torch.norm_weight`` makes them; those of heads are fp32, ``(heads, head_dim)``."""


class TorchBuilder:
    """Packs linears and orders the rows of q and k for ``rope``: pairs that rotate together become neighbours."""

    def __init__(self, config: DecoderConfig, factory: LinearFactory, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._config, self._factory = config, factory
        self._order = pair_order(config.head_dim)

    def tied(self, table_VD: Stored) -> tuple[torch.Tensor, Linear]:
        # The head is packed on its own: it reads at memory speed, the table serves lookups.
        return self.table(table_VD), self._factory.build(_dense(table_VD))

    def table(self, table_VD: Stored) -> torch.Tensor:
        return _dense(table_VD).clone()

    def linear(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Linear:
        (weight_OI,) = weights
        return self._factory.build(_dense(weight_OI), biases[0].clone() if biases else None)

    def qkv(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Linear:
        weight_OI = self._fuse([_dense(weight) for weight in weights])
        return self._factory.build(weight_OI, self._fuse(biases) if biases else None)

    def gate_up(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> GatedLinear:
        gate, up = (self.linear([weight], biases[i : i + 1]) for i, weight in enumerate(weights))
        return GatedLinear(gate, up)

    def norm(self, weight_D: torch.Tensor) -> torch.Tensor:
        return norm_weight(weight_D, self._config.norm_offset)

    def head_norm(self, weight_D: torch.Tensor, heads: int) -> torch.Tensor:
        return (weight_D.float()[self._order] + self._config.norm_offset).expand(heads, -1)

    def _fuse(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """q, k and v one below the other, padded to ``packed_width``."""
        c = self._config
        fused = torch.zeros(packed_width(c), *parts[0].shape[1:], dtype=self.dtype)
        row = 0
        for name, part in zip("qkv", parts, strict=True):
            heads = part.view(-1, c.head_dim, *part.shape[1:])
            fused[row : row + len(part)] = (heads if name == "v" else heads[:, self._order]).reshape(part.shape)
            row += len(part)
        return fused


def _dense(tensor: Stored) -> torch.Tensor:
    assert isinstance(tensor, torch.Tensor), "packed rows are for the native kernels"
    return tensor
