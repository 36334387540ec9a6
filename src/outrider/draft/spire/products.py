"""A SPIRe draft's matrix products: on the native kernels in int8, or in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from outrider.draft.spire.weights import SpireWeights
    from outrider.kernels import Native
    from outrider.kernels._native import Gate

Product = Callable[[torch.Tensor], torch.Tensor]
"""Rows ``(N, I)`` to rows ``(N, O)``, float32; ``gate_up`` gives ``silu(gate) * up``."""

_GATED = "gate_up"


def torch_products(weights: SpireWeights) -> dict[str, Product]:
    """Every matrix by its name, as it is."""
    return {name: _torch_product(name, weight_OI) for name, weight_OI in _matrices(weights)}


def native_products(weights: SpireWeights, native: Native) -> dict[str, Product]:
    """Every matrix in int8 with int8 activations: a draft may be rough, it decides how fast and never what."""
    import numpy as np

    # Products this small take less time than it takes to wake a second thread.
    pool = native.module.Pool(1, native.level)

    def product(name: str, weight_OI: torch.Tensor) -> Product:
        gate: Gate = "silu" if name.endswith(_GATED) else ""
        values = np.ascontiguousarray(weight_OI.numpy())
        matrix = native.module.Matrix.int8(pool, values, None, group=0, activations="int8", gate=gate)
        return lambda x_NI: torch.from_numpy(matrix.multiply(x_NI.contiguous().numpy()))

    return {name: product(name, weight_OI) for name, weight_OI in _matrices(weights)}


def _matrices(weights: SpireWeights) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor) for name, tensor in weights.tensors.items() if tensor.dim() == 2 and name != "mix"]


def _torch_product(name: str, weight_OI: torch.Tensor) -> Product:
    def plain(x_NI: torch.Tensor) -> torch.Tensor:
        # One by one: a product of several rows rounds in another way than one of a single row.
        return torch.stack([weight_OI @ x_I for x_I in x_NI])

    def gated(x_NI: torch.Tensor) -> torch.Tensor:
        gate, up = plain(x_NI).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    return gated if name.endswith(_GATED) else plain
