"""A row's bits: the same alone and among others, anywhere among them, beside any neighbour, on any threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.native import LEVELS, THREADS, pool
from tests.kernels.recipes import (
    FORMATS,
    SETTINGS,
    SPECIAL,
    Format,
    make_inputs,
    make_recipe,
    same_bits,
)
from tests.kernels.reference import Gate

MOST_ROWS = 40


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs", "gate"), [(200, 129, ""), (37, 75, "silu"), (65, 160, "gelu_tanh")])
def test_any_count_any_place(level: str, form: Format, outputs: int, inputs: int, gate: Gate) -> None:
    matrix = make_recipe(form, outputs, inputs, seed=1, gate=gate).build(pool(level))
    x_NI = make_inputs(MOST_ROWS, matrix.inputs, seed=2)
    alone = np.concatenate([matrix.multiply(x_NI[i : i + 1]) for i in range(MOST_ROWS)])
    rng = np.random.default_rng(3)
    for count in range(2, MOST_ROWS + 1):
        chosen = rng.permutation(MOST_ROWS)[:count]
        assert same_bits(matrix.multiply(x_NI[chosen]), alone[chosen]), f"{count} rows"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_many_rows(level: str, form: Format) -> None:
    """As many as a prompt has."""
    matrix = make_recipe(form, 90, 100, seed=1).build(pool(level, 2))
    x_NI = make_inputs(300, matrix.inputs, seed=2)
    all_rows = matrix.multiply(x_NI)
    for place in (0, 1, 127, 128, 200, 299):
        assert same_bits(all_rows[place], matrix.multiply(x_NI[place : place + 1])[0])
    assert same_bits(all_rows[17:290], matrix.multiply(x_NI[17:290]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
@SETTINGS
@given(
    rows=st.integers(2, 12),
    outputs=st.integers(1, 140),
    inputs=st.integers(1, 140),
    seed=st.integers(0, 2**32 - 1),
    special=st.sampled_from(SPECIAL),
)
def test_neighbours_are_not_seen(
    level: str, form: Format, rows: int, outputs: int, inputs: int, seed: int, special: float
) -> None:
    matrix = make_recipe(form, outputs, inputs, seed).build(pool(level))
    x_NI = make_inputs(rows, matrix.inputs, seed)
    clean = matrix.multiply(x_NI)
    rng = np.random.default_rng(seed)
    spoiled = rng.integers(0, 2, rows).astype(bool)
    spoiled[rng.integers(rows)] = True
    spoilt_NI = np.where(spoiled[:, None], np.float32(special), x_NI)
    got = matrix.multiply(spoilt_NI)
    assert same_bits(got[~spoiled], clean[~spoiled])
    if not np.isfinite(special):
        assert not np.any(np.isfinite(got[spoiled]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize(("outputs", "gate"), [(1, ""), (100, "silu"), (515, "")])
def test_threads_do_not_matter(level: str, form: Format, outputs: int, gate: Gate) -> None:
    recipe = make_recipe(form, outputs, 70, seed=1, gate=gate)
    matrices = [recipe.build(pool(level, threads)) for threads in THREADS]
    for count in (1, 5, 33):
        x_NI = make_inputs(count, matrices[0].inputs, seed=count)
        first, *others = (matrix.multiply(x_NI) for matrix in matrices)
        assert all(same_bits(other, first) for other in others)


NANS = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_nan_stays_one_whatever_its_bits(level: str, form: Format) -> None:
    """Else a broken sequence would go on as if nothing had happened."""
    matrix = make_recipe(form, 40, 96, seed=1).build(pool(level))
    x_NI = make_inputs(len(NANS), 96, seed=2)
    x_NI[:, 70] = NANS
    assert np.all(np.isnan(matrix.multiply(x_NI)))
