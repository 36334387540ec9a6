"""How far an fp32 product may lie from the fp64 reference: its own sums' rounding and nothing more."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.kernels.formats import Array, as_activations, quantised
from tests.kernels.reference import Matrix, activated

UNIT = 2.0**-24
# Dot products of bfloat16 pairs flush subnormal numbers.
TINY = 1e-35


def product_bound(matrix: Matrix, x_NI: NDArray[np.float32]) -> Array:
    """Largest error of every entry of ``matrix.multiply(x_NI)``, ``(N, outputs)``."""
    seen_NI = as_activations(x_NI, matrix.activations, matrix.group)
    weights_OI = np.abs(matrix.weight_OI)
    sizes_NO = np.abs(seen_NI) @ weights_OI.T + np.abs(matrix.bias_O)
    # Sums of integers are exact, and only the groups' results are added in fp32.
    terms = matrix.inputs if matrix.activations != "int8" else -(-matrix.inputs // (matrix.group or matrix.inputs))
    bound_NO = (terms + 8) * UNIT * sizes_NO + TINY
    if matrix.activations == "int8":
        bound_NO = bound_NO + _ties(x_NI, matrix.group) @ weights_OI.T
    return _through_gate(matrix, seen_NI, bound_NO) if matrix.gate else bound_NO


def _ties(x_NI: NDArray[np.float32], group: int) -> Array:
    """A whole step for every input so near to a tie that one rounding of its quotient may choose either code."""
    _, scales = quantised(x_NI, group)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(scales > 0, np.abs(x_NI / scales), 0)
    return np.where(np.abs(quotient % 1 - 0.5) < 4 * UNIT * quotient, scales, 0)


def _through_gate(matrix: Matrix, seen_NI: Array, bound_NO: Array) -> Array:
    product_NO = seen_NI @ matrix.weight_OI.T + matrix.bias_O
    gate, up = np.split(product_NO, 2, axis=1)
    gate_error, up_error = np.split(bound_NO, 2, axis=1)
    size = np.abs(activated(gate, matrix.gate))
    # Both activations' slopes stay below 1.13; their own evaluation is allowed some roundings of its argument, and an
    # exponential that stops where single precision ends.
    inner = 1.13 * gate_error + 16 * UNIT * (size + np.minimum(np.abs(gate), 1)) + 1e-38 * np.abs(gate)
    return inner * (np.abs(up) + up_error) + size * up_error
