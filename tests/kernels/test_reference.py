"""The reference against formats' own definitions and against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import reference
from tests.kernels.formats import (
    BLOCK_BYTES,
    GgufKind,
    as_activations,
    bfloat16_bits,
    bfloat16_values,
    gguf_values,
    quantised,
    random_gguf,
)
from tests.kernels.recipes import FORMATS, SETTINGS, Format, make_inputs, make_recipe

KINDS: list[GgufKind] = sorted(BLOCK_BYTES)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_hold_what_the_gguf_package_says(kind: GgufKind) -> None:
    gguf = pytest.importorskip("gguf")
    blocks = random_gguf(np.random.default_rng(1), (7, 160), kind)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    assert expected.shape == (7, 160)
    np.testing.assert_array_equal(gguf_values(blocks, kind).astype(np.float32), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_random_blocks_are_as_large_as_trained_weights(kind: GgufKind) -> None:
    values = gguf_values(random_gguf(np.random.default_rng(2), (50, 256), kind), kind)
    assert abs(values.mean()) < 0.01
    assert 0.8 < values.std() * np.sqrt(256) < 1.25


def test_low_halves_come_first() -> None:
    block = np.zeros((1, 18), np.uint8)
    block[0, :2] = np.array([2.0], np.float16).view(np.uint8)
    block[0, 2] = 0x9F
    values = gguf_values(block, "Q4_0")[0]
    assert (values[0], values[16], values[1]) == (14.0, 2.0, -16.0)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (1 + 2**-8, 0x3F80),
        (1 + 3 * 2**-8, 0x3F82),
        (1 + 2**-8 + 2**-20, 0x3F81),
        (-0.0, 0x8000),
        (np.inf, 0x7F80),
        (3.4e38, 0x7F80),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value: float, bits: int) -> None:
    assert bfloat16_bits(np.array([value])).tolist() == [bits]


@SETTINGS
@given(st.integers(0, 2**16 - 1))
def test_bfloat16_values_keep_their_bits(bits: int) -> None:
    value = bfloat16_values(np.array([bits], np.uint16))
    again = bfloat16_bits(value)[0]
    assert again == bits or (np.isnan(value[0]) and np.isnan(bfloat16_values(np.array([again]))[0]))


def test_codes_are_nearest_and_ties_go_to_even() -> None:
    codes, scales = quantised(np.array([[127.0, 0.5, 1.5, -2.5, -3.6]]), 0)
    assert codes.tolist() == [[127, 0, 2, -2, -4]]
    assert np.all(scales == 1)


def test_groups_have_scales_of_their_own() -> None:
    row = np.concatenate((np.full(32, 127.0), np.full(32, 1.0), np.zeros(3)))[None]
    codes, scales = quantised(row, 32, half_scales=True)
    assert np.all(codes == np.concatenate((np.full(64, 127), np.zeros(3))))
    assert scales[0, 0] == 1
    assert scales[0, 40] == np.float16(1 / 127)
    assert scales[0, 66] == 0


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("gate", ["", "silu", "gelu_tanh"])
def test_a_product_is_near_the_plain_one(form: Format, gate: reference.Gate) -> None:
    """Quantised inputs and weights cost a few per cent, never more: nothing is transposed or left out."""
    recipe = make_recipe(form, 20, 64, seed=3, gate=gate)
    matrix = recipe.reference()
    x_NI = make_inputs(4, 64, seed=4)
    x_NI /= np.abs(x_NI).max(axis=1, keepdims=True)
    plain = x_NI.astype(np.float64) @ matrix.weight_OI.T + matrix.bias_O
    if gate:
        plain = reference.activated(plain[:, :20], gate) * plain[:, 20:]
    assert matrix.multiply(x_NI).shape == (4, 20)
    assert np.abs(matrix.multiply(x_NI) - plain).max() < 0.1


@pytest.mark.parametrize(("kind", "error"), [("float32", 0.0), ("bfloat16", 2.0**-9), ("int8", 0.51 / 127)])
def test_activations_are_rounded_that_far(kind: str, error: float) -> None:
    x_NI = np.random.default_rng(5).uniform(-1, 1, (9, 70)).astype(np.float32)
    seen = as_activations(x_NI, kind, 0)  # type: ignore[arg-type]
    worst = np.abs(seen - x_NI).max()
    assert worst <= error
    assert worst >= error / 3


def test_activations_of_known_values() -> None:
    silu = reference.activated(np.array([0.0, 1.0, -800.0]), "silu")
    np.testing.assert_allclose(silu, [0, 0.7310585786, 0], atol=1e-9)
    gelu = reference.activated(np.array([0.0, 1.0, -1.0]), "gelu_tanh")
    np.testing.assert_allclose(gelu, [0, 0.8411919906, -0.1588080094], atol=1e-9)
