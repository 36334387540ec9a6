"""Number formats of the kernels in plain numpy: bfloat16 bits, symmetric int8, and GGUF's blocks of 32 values."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Activations = Literal["float32", "bfloat16", "int8"]
GgufKind = Literal["Q8_0", "Q4_0", "Q4_1"]

GROUP = 32
BLOCK_BYTES: dict[GgufKind, int] = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}


def bfloat16_bits(values: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even; a NaN stays a NaN."""
    exact = np.ascontiguousarray(values, dtype=np.float32)
    bits = exact.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(exact), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def bfloat16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers behind bfloat16 bits, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: NDArray[np.floating[Any]], kind: Literal["float32", "bfloat16"]) -> Array:
    """Values as a memory or a product of this type sees them."""
    single = values.astype(np.float32)
    return (single if kind == "float32" else bfloat16_values(bfloat16_bits(single))).astype(np.float64)


def quantised(values_NI: NDArray[np.floating[Any]], group: int, *, half_scales: bool = False) -> tuple[Array, Array]:
    """Symmetric int8 codes and scales, each ``(N, I)``: a scale for every row (group 0) or every ``group`` of a row.

    Codes are the nearest to ``value / scale``, ties to even, in [-127, 127]; a scale of 0 has codes of 0.
    """
    single = values_NI.astype(np.float32)
    step = group or single.shape[1]
    scales = np.zeros_like(single)
    for start in range(0, single.shape[1], step):
        scale = np.abs(single[:, start : start + step]).max(axis=1) / np.float32(127)
        scales[:, start : start + step] = (scale.astype(np.float16) if half_scales else scale)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Codes are chosen for the scale as it is held, so that they are the nearest once expanded.
        codes = np.where(scales > 0, np.clip(np.rint(single / scales), -127, 127), 0)
    return codes.astype(np.float64), scales.astype(np.float64)


def as_activations(x_NI: NDArray[np.floating[Any]], kind: Activations, group: int) -> Array:
    """Inputs as the products see them: rounded, or quantised row by row (or group by group) and expanded again."""
    if kind == "int8":
        codes, scales = quantised(x_NI, group)
        with np.errstate(invalid="ignore"):
            return codes * scales
    return rounded(x_NI, kind)


def gguf_values(blocks: NDArray[np.uint8], kind: GgufKind) -> Array:
    """Numbers in GGUF blocks ``(rows, bytes of a row)``: per block a half-precision scale, a half-precision minimum
    (Q4_1), then 32 signed bytes (Q8_0), or 16 bytes whose low halves are values 0-15 and high halves values 16-31.
    """
    rows = blocks.shape[0]
    each = blocks.reshape(rows, -1, BLOCK_BYTES[kind])
    header = 4 if kind == "Q4_1" else 2
    halves = np.ascontiguousarray(each[..., :header]).view(np.float16).astype(np.float64)
    codes = np.ascontiguousarray(each[..., header:])
    if kind == "Q8_0":
        values = codes.view(np.int8) * halves[..., :1]
    else:
        nibbles = np.concatenate((codes & 15, codes >> 4), axis=-1).astype(np.float64)
        values = (nibbles - 8) * halves[..., :1] if kind == "Q4_0" else nibbles * halves[..., :1] + halves[..., 1:]
    return values.reshape(rows, -1)


def random_gguf(rng: np.random.Generator, shape: tuple[int, int], kind: GgufKind) -> NDArray[np.uint8]:
    """Blocks of random codes whose values are about as large as those of a trained weight ``shape``."""
    outputs, inputs = shape
    count = inputs // GROUP
    # Codes are uniform, so their spread is known and the scale brings it to about 1 / sqrt(inputs).
    spread = 73.0 if kind == "Q8_0" else 4.6
    scales = (rng.uniform(0.5, 1.5, (outputs, count, 1)) / (spread * np.sqrt(inputs))).astype(np.float16)
    minima = [(scales * np.float16(-7.5)).astype(np.float16)] if kind == "Q4_1" else []
    header = np.ascontiguousarray(np.concatenate((scales, *minima), axis=-1)).view(np.uint8)
    codes = rng.integers(0, 256, (outputs, count, BLOCK_BYTES[kind] - header.shape[-1]), dtype=np.uint8)
    if kind == "Q8_0":
        codes[codes == 128] = 0
    return np.concatenate((header, codes), axis=-1).reshape(outputs, -1)
