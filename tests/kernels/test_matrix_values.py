"""Every format's products against the fp64 reference, over odd shapes, at every level of this processor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.bounds import product_bound
from tests.kernels.formats import BLOCK_BYTES, Activations, bfloat16_bits, quantised, random_gguf
from tests.kernels.native import LEVELS, THREADS, kernels, pool
from tests.kernels.recipes import FORMATS, SETTINGS, Format, Recipe, make_inputs, make_recipe, named, same_bits
from tests.kernels.reference import Gate

GATES: list[Gate] = ["", "silu", "gelu_tanh"]


def check_product(recipe: Recipe, rows: int, seed: int, level: str, threads: int) -> None:
    """The product of random rows, within the bound."""
    expected = recipe.reference()
    matrix = recipe.build(pool(level, threads))
    assert (matrix.outputs, matrix.inputs) == (expected.outputs, expected.inputs)
    x_NI = make_inputs(rows, matrix.inputs, seed)
    before = x_NI.copy()
    got_NO = matrix.multiply(x_NI)
    assert got_NO.dtype == np.float32
    assert got_NO.shape == (rows, expected.outputs)
    assert same_bits(x_NI, before)
    excess = np.abs(got_NO - expected.product(x_NI)) / product_bound(expected, x_NI)
    assert excess.max() <= 1, f"row and output {np.unravel_index(excess.argmax(), excess.shape)}: {excess.max():.3g}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
@SETTINGS
@given(
    rows=st.integers(1, 40),
    outputs=st.integers(1, 200),
    inputs=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
    bias=st.booleans(),
    gate=st.sampled_from(GATES),
    threads=st.sampled_from(THREADS),
)
def test_products(
    level: str, form: Format, rows: int, outputs: int, inputs: int, seed: int, bias: bool, gate: Gate, threads: int
) -> None:
    recipe = make_recipe(form, outputs, inputs, seed, bias=bias, gate=gate)
    check_product(recipe, rows, seed, level, threads)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs", "rows"), [(1, 1, 1), (700, 33, 2), (3, 2048, 3), (65, 1025, 130)])
def test_products_of_uncommon_shapes(level: str, form: Format, outputs: int, inputs: int, rows: int) -> None:
    check_product(make_recipe(form, outputs, inputs, seed=1), rows, 2, level, threads=2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_no_rows_and_rows_of_zeros(level: str, form: Format) -> None:
    recipe = make_recipe(form, 9, 40, seed=1)
    matrix = recipe.build(pool(level))
    assert matrix.multiply(np.zeros((0, matrix.inputs), np.float32)).shape == (0, 9)
    assert recipe.bias_O is not None
    assert same_bits(matrix.multiply(np.zeros((2, matrix.inputs), np.float32)), np.stack([recipe.bias_O] * 2))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_rows_from_the_smallest_to_the_largest_numbers(level: str, form: Format) -> None:
    """Scales of rows may be subnormal or their reciprocals infinite; results are finite and near all the same."""
    recipe = make_recipe(form, 20, 64, seed=1)
    expected, matrix = recipe.reference(), recipe.build(pool(level))
    sizes = np.array([1e-45, 1e-42, 1e-40, 1e-38, 1e-36, 1e-30, 1e30, 1e33])[:, None]
    x_NI = (np.random.default_rng(2).uniform(-1, 1, (len(sizes), 64)) * sizes).astype(np.float32)
    got_NO = matrix.multiply(x_NI)
    assert np.all(np.isfinite(got_NO))
    # Less than a subnormal scale can say is lost, and no more than that.
    lost = 1e-35 if form.activations == "int8" else 1e-37
    assert np.all(np.abs(got_NO - expected.product(x_NI)) <= product_bound(expected, x_NI) + lost)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_rows_are_the_weights_that_products_see(level: str, form: Format) -> None:
    recipe = make_recipe(form, 150, 90, seed=5, bias=False)
    matrix = recipe.build(pool(level))
    indices = np.array([0, 149, 64, 7, 7, 63, 128], np.int32)
    np.testing.assert_allclose(matrix.rows(indices), recipe.reference().weight_OI[indices], rtol=2e-7, atol=1e-9)
    assert matrix.rows(np.zeros(0, np.int32)).shape == (0, matrix.inputs)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", [named("float32"), named("bfloat16")], ids=str)
def test_dense_rows_are_exact(level: str, form: Format) -> None:
    recipe = make_recipe(form, 70, 45, seed=6)
    got = recipe.build(pool(level)).rows(np.arange(70, dtype=np.int32))
    assert same_bits(bfloat16_bits(got) if form.weights == "bfloat16" else got, recipe.raw)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("group", [0, 32])
@SETTINGS
@given(outputs=st.integers(1, 70), inputs=st.integers(1, 130), seed=st.integers(0, 2**32 - 1))
def test_int8_weights_are_the_nearest_codes(level: str, group: int, outputs: int, inputs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight_OI = (rng.normal(size=(outputs, inputs)) * 10 ** rng.uniform(-2, 1, (outputs, 1))).astype(np.float32)
    weight_OI[-1, inputs // 2 :] = 0
    matrix = kernels.Matrix.int8(pool(level), weight_OI, group=group, activations="float32")
    held = matrix.rows(np.arange(outputs, dtype=np.int32)).astype(np.float64)
    _, scales = quantised(weight_OI, group, half_scales=group > 0)
    codes = np.divide(held, scales, out=np.zeros_like(held), where=scales > 0)
    assert np.abs(codes - np.rint(codes)).max() < 1e-4
    assert np.abs(codes).max() < 127.01
    assert np.all(np.abs(held - weight_OI) <= scales * (0.5 + 1e-4))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("group", [0, 32])
def test_ties_go_to_even_codes(level: str, group: int) -> None:
    """Of weights and of inputs; the largest is 127, so that every scale is 1."""
    values = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]], np.float32)
    codes = np.array([[127, 0, 2, 2, 0, -2, -2, 126]], np.float32)
    weights = kernels.Matrix.int8(pool(level), values, group=group, activations="int8")
    assert same_bits(np.abs(weights.rows(np.zeros(1, np.int32))), np.abs(codes))
    each = kernels.Matrix.int8(pool(level), 127 * np.eye(8, dtype=np.float32), group=group, activations="int8")
    np.testing.assert_array_equal(each.multiply(values), 127 * codes)


@pytest.mark.parametrize("level", LEVELS)
def test_int8_scales_of_extreme_weights(level: str) -> None:
    """Halves that are subnormal, or zero, as scales: codes stay in range and nothing becomes a NaN."""
    sizes = np.array([1e-9, 1e-6, 1e-5, 1.0, 8e6])[:, None]
    weight_OI = (np.random.default_rng(7).uniform(-1, 1, (5, 64)) * sizes).astype(np.float32)
    matrix = kernels.Matrix.int8(pool(level), weight_OI, group=32, activations="float32")
    held = matrix.rows(np.arange(5, dtype=np.int32))
    assert np.all(np.isfinite(held))
    # Half precision has steps of 6e-8 near zero: a scale is off by at most half of one, times 127.
    assert np.all(np.abs(held - weight_OI) <= np.abs(weight_OI).max(axis=1, keepdims=True) / 120 + 127 * 2.0**-25)


@pytest.mark.parametrize("level", LEVELS)
def test_packed_weights_take_the_bytes_of_their_codes(level: str) -> None:
    rng, shape = np.random.default_rng(8), (512, 1024)
    for kind in BLOCK_BYTES:
        blocks = random_gguf(rng, shape, kind)
        matrix = kernels.Matrix.gguf(pool(level), blocks, kind=kind, activations="bfloat16")
        assert blocks.nbytes * 0.99 <= matrix.nbytes <= blocks.nbytes * 1.13
    weight_OI = rng.normal(size=shape).astype(np.float32)
    int8 = kernels.Matrix.int8(pool(level), weight_OI, group=0, activations="int8")
    assert weight_OI.size <= int8.nbytes <= weight_OI.size * 1.02
    assert kernels.Matrix.dense(pool(level), bfloat16_bits(weight_OI)).nbytes <= weight_OI.size * 2.02


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gates_over_the_whole_range(level: str, gate: Gate) -> None:
    """Activations of one input, from where they vanish to where they are the identity."""
    x_N1 = np.concatenate((-np.logspace(-6, 3, 400), np.logspace(-6, 3, 400))).astype(np.float32)[:, None]
    matrix = kernels.Matrix.dense(pool(level), np.ones((2, 1), np.float32), gate=gate)
    recipe = Recipe(named("float32"), np.ones((2, 1), np.float32), None, gate)
    assert np.all(np.isfinite(matrix.multiply(x_N1)))
    error = np.abs(matrix.multiply(x_N1) - recipe.reference().product(x_N1))
    assert np.all(error <= product_bound(recipe.reference(), x_N1))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("activations", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("spoiled", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_spoils_its_output(
    level: str, group: int, activations: Activations, spoiled: float
) -> None:
    """Else a damaged checkpoint would answer fluently."""
    weight_OI = np.random.default_rng(1).normal(size=(40, 70)).astype(np.float32)
    weight_OI[7, 33] = spoiled
    got = kernels.Matrix.int8(pool(level), weight_OI, group=group, activations=activations).multiply(
        make_inputs(3, 70, 2)
    )
    assert np.all(np.isnan(got[:, 7]))
    assert np.all(np.isfinite(np.delete(got, 7, axis=1)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("activations", ["float32", "bfloat16", "int8"])
def test_the_least_code_of_eight_bits(level: str, activations: Activations) -> None:
    """Nothing writes -128, but a Q8_0 block may hold it."""
    blocks = np.zeros((5, 34), np.uint8)
    blocks[:, :2] = np.array([0.5], np.float16).view(np.uint8)
    blocks[2, 2:] = 0x80
    blocks[3, 2:] = 0x7F
    matrix = kernels.Matrix.gguf(pool(level), blocks, kind="Q8_0", activations=activations)
    got = matrix.multiply(np.ones((2, 32), np.float32))
    assert np.allclose(got, np.array([0, 0, -2048, 2032, 0]), rtol=1e-5)
