"""Pools and matrices refuse what does not fit, by name of the mistake, and work on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels.native import LEVELS, kernels, pool
from tests.kernels.recipes import DENSE, FORMATS, Format, make_inputs, make_recipe, same_bits

LEVEL = LEVELS[0]
WEIGHT = np.ones((6, 64), np.float32)
BLOCKS = np.ones((6, 68), np.uint8)

Call = Callable[[], Any]


def dense(weight: Any, *args: Any, **kwargs: Any) -> Call:
    return lambda: kernels.Matrix.dense(pool(LEVEL), weight, *args, **kwargs)


def int8(weight: Any, *args: Any, **kwargs: Any) -> Call:
    defaults: dict[str, Any] = {"group": 0, "activations": "float32"}
    return lambda: kernels.Matrix.int8(pool(LEVEL), weight, *args, **(defaults | kwargs))


def gguf(blocks: Any, *args: Any, **kwargs: Any) -> Call:
    defaults: dict[str, Any] = {"kind": "Q8_0", "activations": "float32"}
    return lambda: kernels.Matrix.gguf(pool(LEVEL), blocks, *args, **(defaults | kwargs))


def multiply(x: Any) -> Call:
    return lambda: make_recipe(DENSE, 6, 64, seed=1).build(pool(LEVEL)).multiply(x)


def rows(indices: Any) -> Call:
    return lambda: make_recipe(DENSE, 6, 64, seed=1).build(pool(LEVEL)).rows(indices)


TYPE_ERRORS: dict[str, Call] = {
    "float64 weight": dense(WEIGHT.astype(np.float64)),
    "float16 weight": dense(WEIGHT.astype(np.float16)),
    "int16 weight": dense(WEIGHT.astype(np.int16)),
    "big-endian weight": dense(WEIGHT.astype(">f4")),
    "a list": dense(WEIGHT.tolist()),
    "no weight": dense(None),
    "float64 bias": dense(WEIGHT, np.zeros(6)),
    "a list as bias": dense(WEIGHT, [0.0] * 6),
    "bfloat16 to quantise": int8(WEIGHT.astype(np.uint16)),
    "float64 to quantise": int8(WEIGHT.astype(np.float64)),
    "signed blocks": gguf(BLOCKS.view(np.int8)),
    "blocks of floats": gguf(WEIGHT),
    "float64 inputs": multiply(np.zeros((2, 64))),
    "bfloat16 inputs": multiply(np.zeros((2, 64), np.uint16)),
    "a list of inputs": multiply([[0.0] * 64]),
    "int64 indices": rows(np.array([1])),
    "unsigned indices": rows(np.array([1], np.uint32)),
    "a pool that is none": lambda: kernels.Matrix.dense(None, WEIGHT),  # type: ignore[arg-type]
    "threads as text": lambda: kernels.Pool("2", LEVEL),  # type: ignore[arg-type]
    "half a thread": lambda: kernels.Pool(1.5, LEVEL),  # type: ignore[arg-type]
}
VALUE_ERRORS: dict[str, Call] = {
    "no thread": lambda: kernels.Pool(0, LEVEL),
    "fewer than no threads": lambda: kernels.Pool(-1, LEVEL),
    "unknown level": lambda: kernels.Pool(1, "avx9000"),
    "empty level": lambda: kernels.Pool(1, ""),
    "no outputs": dense(np.zeros((0, 4), np.float32)),
    "no inputs": dense(np.zeros((4, 0), np.float32)),
    "short bias": dense(WEIGHT, np.zeros(5, np.float32)),
    "long bias": dense(WEIGHT, np.zeros(7, np.float32)),
    "half a bias for a gated matrix": dense(WEIGHT, np.zeros(3, np.float32), gate="silu"),
    "odd rows for a gate": dense(np.ones((5, 4), np.float32), gate="silu"),
    "unknown gate": dense(WEIGHT, gate="relu"),
    "int8 without outputs": int8(np.zeros((0, 4), np.float32)),
    "int8 with an unknown gate": int8(WEIGHT, gate="GELU"),
    "int8 with odd rows": int8(np.ones((5, 32), np.float32), gate="silu"),
    "int8 with a short bias": int8(WEIGHT, np.zeros(5, np.float32)),
    "unknown group": int8(WEIGHT, group=16),
    "group of less than none": int8(WEIGHT, group=-32),
    "unknown activations": int8(WEIGHT, activations="float16"),
    "unknown kind": gguf(BLOCKS, kind="Q4_K"),
    "kind in lower case": gguf(BLOCKS, kind="q8_0"),
    "unknown activations for blocks": gguf(BLOCKS, activations="int4"),
    "blocks with odd rows": gguf(np.ones((5, 34), np.uint8), gate="silu"),
    "part of a block": gguf(np.ones((6, 67), np.uint8)),
    "blocks of another kind": gguf(BLOCKS, kind="Q4_1"),
    "no blocks": gguf(np.zeros((6, 0), np.uint8)),
    "blocks with a short bias": gguf(BLOCKS, np.zeros(5, np.float32)),
    "narrow inputs": multiply(np.zeros((2, 63), np.float32)),
    "wide inputs": multiply(np.zeros((2, 65), np.float32)),
    "index below": rows(np.array([0, -1], np.int32)),
    "index above": rows(np.array([6], np.int32)),
}
# A wrong number of dimensions is a matter of type to some, of shape to others.
EITHER: dict[str, Call] = {
    "flat weight": dense(WEIGHT.ravel()),
    "weight in three dimensions": dense(WEIGHT[None]),
    "transposed weight": dense(WEIGHT.T),
    "every other row": dense(WEIGHT[::2]),
    "every other input": dense(WEIGHT[:, ::2]),
    "square bias": dense(WEIGHT, np.zeros((6, 1), np.float32)),
    "every other bias": dense(WEIGHT, np.zeros(12, np.float32)[::2]),
    "flat blocks": gguf(BLOCKS.ravel()),
    "blocks backwards": gguf(BLOCKS[::-1]),
    "one row, flat": multiply(np.zeros(64, np.float32)),
    "transposed inputs": multiply(np.zeros((64, 2), np.float32).T),
    "every other row of inputs": multiply(np.zeros((4, 64), np.float32)[::2]),
    "index without dimension": rows(np.array(1, np.int32)),
    "every other index": rows(np.zeros(4, np.int32)[::2]),
}


@pytest.mark.parametrize("mistake", TYPE_ERRORS)
def test_a_wrong_type_is_a_type_error(mistake: str) -> None:
    with pytest.raises(TypeError):
        TYPE_ERRORS[mistake]()


@pytest.mark.parametrize("mistake", VALUE_ERRORS)
def test_a_wrong_value_is_a_value_error(mistake: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        VALUE_ERRORS[mistake]()


@pytest.mark.parametrize("mistake", EITHER)
def test_a_wrong_layout_is_refused(mistake: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        EITHER[mistake]()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_matrix_works_on_after_a_mistake(form: Format) -> None:
    matrix = make_recipe(form, 30, 64, seed=1).build(pool(LEVEL, 2))
    x_NI = make_inputs(5, 64, seed=2)
    expected = matrix.multiply(x_NI)
    for wrong in (x_NI[:, :60], x_NI.astype(np.float64), x_NI[::2]):
        with pytest.raises((TypeError, ValueError)):
            matrix.multiply(wrong)  # type: ignore[arg-type]
        assert same_bits(matrix.multiply(x_NI), expected)


def test_pools_say_what_they_are() -> None:
    for level in LEVELS:
        assert (kernels.Pool(3, level).threads, kernels.Pool(1, level).level) == (3, level)
    assert LEVELS[-1] == "portable"
    assert len(set(LEVELS)) == len(LEVELS)
