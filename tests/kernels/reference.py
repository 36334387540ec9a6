"""The kernels' semantics in numpy and fp64, with the extension's own API: what tests compare with, or run instead.

Every row is computed by itself, so that a row's bits depend on nothing beside it.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tests.kernels.checks import checked, in_range, instance, require
from tests.kernels.formats import (
    BLOCK_BYTES,
    GROUP,
    Activations,
    Array,
    GgufKind,
    as_activations,
    bfloat16_values,
    gguf_values,
    quantised,
)
from tests.kernels.reference_decoder import Decoder

__all__ = ["Decoder", "Matrix", "Pool", "levels"]

Gate = Literal["", "silu", "gelu_tanh"]


def levels() -> list[str]:
    """The one level a reference has."""
    return ["portable"]


class Pool:
    """Threads that a reference does not need."""

    def __init__(self, threads: int, level: str) -> None:
        instance(threads, int, "threads")
        require(threads >= 1, f"threads={threads} must be 1 or more")
        require(level in levels(), f"level {level!r} is none of {levels()}")
        self.threads, self.level = threads, level


def activated(gate: Array, kind: Gate) -> Array:
    """SiLU, or the tanh form of GELU."""
    if kind == "silu":
        with np.errstate(over="ignore"):
            silu: Array = gate / (1 + np.exp(-gate))
        return silu
    gelu: Array = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return gelu


class Matrix:
    """A weight in fp64, as its format holds it, and what its inputs are rounded to."""

    def __init__(
        self,
        pool: Pool,
        weight_OI: Array,
        bias_O: NDArray[np.float32] | None,
        gate: Gate,
        activations: Activations,
        group: int,
        nbytes: int,
    ) -> None:
        instance(pool, Pool, "pool")
        require(weight_OI.size > 0, "a matrix needs a row and a column")
        require(gate in ("", "silu", "gelu_tanh"), f"gate {gate!r}")
        require(not gate or len(weight_OI) % 2 == 0, "a gated matrix has an even number of rows")
        require(activations in ("float32", "bfloat16", "int8"), f"activations {activations!r}")
        bias = np.zeros(len(weight_OI)) if bias_O is None else checked(bias_O, "bias", np.float32, len(weight_OI))
        self.pool, self.weight_OI, self.bias_O = pool, weight_OI, bias.astype(np.float64)
        self.gate, self.activations, self.group, self.nbytes = gate, activations, group, nbytes

    @staticmethod
    def dense(
        pool: Pool,
        weight_OI: NDArray[np.float32] | NDArray[np.uint16],
        bias_O: NDArray[np.float32] | None = None,
        *,
        gate: Gate = "",
    ) -> Matrix:
        """fp32, or bfloat16 bits."""
        if isinstance(weight_OI, np.ndarray) and weight_OI.dtype == np.uint16:
            bits = checked(weight_OI, "weight", np.uint16, None, None)
            wide = bfloat16_values(bits).astype(np.float64)
            return Matrix(pool, wide, bias_O, gate, "bfloat16", 0, bits.nbytes)
        single = checked(weight_OI, "weight", np.float32, None, None)
        return Matrix(pool, single.astype(np.float64), bias_O, gate, "float32", 0, single.nbytes)

    @staticmethod
    def int8(
        pool: Pool,
        weight_OI: NDArray[np.float32],
        bias_O: NDArray[np.float32] | None = None,
        *,
        group: int,
        activations: Activations,
        gate: Gate = "",
    ) -> Matrix:
        """A scale for each output, or for each 32 inputs, the latter in half precision."""
        require(group in (0, GROUP), f"group={group} must be 0 or {GROUP}")
        weight = checked(weight_OI, "weight", np.float32, None, None)
        require(weight.size > 0, "a matrix needs a row and a column")
        codes, scales = quantised(weight, group, half_scales=group > 0)
        return Matrix(pool, codes * scales, bias_O, gate, activations, group, weight.size)

    @staticmethod
    def gguf(
        pool: Pool,
        blocks: NDArray[np.uint8],
        bias_O: NDArray[np.float32] | None = None,
        *,
        kind: GgufKind,
        activations: Activations,
        gate: Gate = "",
    ) -> Matrix:
        """Values of GGUF's blocks."""
        require(kind in BLOCK_BYTES, f"kind {kind!r} is none of {sorted(BLOCK_BYTES)}")
        raw = checked(blocks, "blocks", np.uint8, None, None)
        require(raw.size > 0 and raw.shape[1] % BLOCK_BYTES[kind] == 0, "a row is a whole number of blocks")
        return Matrix(pool, gguf_values(raw, kind), bias_O, gate, activations, GROUP, raw.nbytes)

    @property
    def outputs(self) -> int:
        return len(self.weight_OI) // (2 if self.gate else 1)

    @property
    def inputs(self) -> int:
        return int(self.weight_OI.shape[1])

    def product(self, x_NI: NDArray[np.floating]) -> Array:
        """The product in fp64, bias and gate included."""
        return np.array([self._row(x_I) for x_I in as_activations(x_NI, self.activations, self.group)]).reshape(
            len(x_NI), self.outputs
        )

    def multiply(self, x_NI: NDArray[np.float32]) -> NDArray[np.float32]:
        """The product rounded to fp32."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.product(checked(x_NI, "x", np.float32, None, self.inputs)).astype(np.float32)

    def rows(self, indices: NDArray[np.int32]) -> NDArray[np.float32]:
        """Weights of these outputs."""
        in_range(checked(indices, "indices", np.int32, None), 0, len(self.weight_OI), "indices")
        return self.weight_OI[indices].astype(np.float32)

    def _row(self, x_I: Array) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            product = self.weight_OI @ x_I + self.bias_O
            if not self.gate:
                return product
            return activated(product[: self.outputs], self.gate) * product[self.outputs :]
