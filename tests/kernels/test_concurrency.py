"""Callers from several Python threads, forks, and objects whose makers are gone."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.kernels.decoders import LLAMA, Subject, Weights, build, decoder_arguments, random_tokens
from tests.kernels.native import LEVELS, kernels, pool
from tests.kernels.random_weights import Floats
from tests.kernels.recipes import DENSE, make_inputs, make_recipe, same_bits

at_all_levels = pytest.mark.parametrize("level", LEVELS)


@at_all_levels
def test_callers_on_one_pool_take_turns(level: str) -> None:
    matrix = make_recipe(DENSE, 300, 120, seed=1).build(pool(level, 2))
    inputs = [make_inputs(1 + i % 7, 120, seed=i) for i in range(200)]
    expected = [matrix.multiply(x_NI) for x_NI in inputs]
    with ThreadPoolExecutor(4) as callers:
        got = list(callers.map(matrix.multiply, inputs))
    assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True))


@at_all_levels
def test_callers_of_one_decoder_take_turns(level: str) -> None:
    """Each in a slot of its own, with steps of different sizes."""
    shape = replace(LLAMA, slots=4, positions=200)
    sequences = [random_tokens(shape, 200, seed) for seed in range(4)]

    def decode(subject: Subject, slot: int) -> Floats:
        return subject.chunks(slot, sequences[slot], (1 + slot, 1, 30 * slot + 1))

    alone = build(shape, pool(level, 1)).open(*range(4))
    want = [decode(alone, slot) for slot in range(4)]
    for _ in range(5):
        # Fresh, so that it takes its memory while others use it.
        shared = build(shape, pool(level, 2)).open(*range(4))
        with ThreadPoolExecutor(4) as callers:
            got = list(callers.map(partial(decode, shared), range(4)))
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


@at_all_levels
def test_pools_work_side_by_side(level: str) -> None:
    recipe = make_recipe(DENSE, 300, 120, seed=1)
    matrices = [recipe.build(kernels.Pool(2, level)) for _ in range(3)]
    x_NI = make_inputs(5, 120, seed=2)
    want = matrices[0].multiply(x_NI)
    with ThreadPoolExecutor(3) as callers:
        for _ in range(50):
            assert all(same_bits(got, want) for got in callers.map(lambda matrix: matrix.multiply(x_NI), matrices))


@at_all_levels
def test_pools_come_and_go(level: str) -> None:
    recipe = make_recipe(DENSE, 64, 16, seed=1)
    x_NI = make_inputs(2, 16, seed=2)
    results = [recipe.build(kernels.Pool(1 + i % 4, level)).multiply(x_NI) for i in range(40)]
    assert all(same_bits(each, results[0]) for each in results)


@at_all_levels
def test_a_matrix_keeps_its_pool_and_outlives_its_weight(level: str) -> None:
    own = kernels.Pool(2, level)
    recipe = make_recipe(DENSE, 80, 40, seed=1)
    weight_OI = recipe.raw.copy()
    matrix = kernels.Matrix.dense(own, weight_OI, recipe.bias_O)
    x_NI = make_inputs(3, 40, seed=2)
    expected = recipe.build(pool(level, 1)).multiply(x_NI)
    weight_OI[:] = np.nan
    del own, weight_OI
    gc.collect()
    assert same_bits(matrix.multiply(x_NI), expected)


@at_all_levels
def test_a_decoder_keeps_what_it_was_made_of(level: str) -> None:
    """Pool and matrices live as long as it does; norms and rotations were copied."""
    shape = replace(LLAMA, local=(False,))
    tokens = random_tokens(shape, 20, 1)
    want = build(shape, pool(level, 1)).open(0).feed(0, 0, tokens)

    def make() -> tuple[kernels.Decoder, list[Floats]]:
        own = kernels.Pool(2, level)
        weights = Weights(kernels, shape, own)
        parts = decoder_arguments(shape) | weights.ends()
        layer = weights.layer()
        decoder = kernels.Decoder(own, **parts)
        decoder.add_layer(local=False, **layer)
        return decoder, [each for each in (parts | layer).values() if isinstance(each, np.ndarray)]

    decoder, arrays = make()
    gc.collect()
    for array in arrays:
        array[:] = np.nan
    assert same_bits(Subject(decoder, shape).open(0).feed(0, 0, tokens), want)


@at_all_levels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("asleep", [True, False])
def test_a_forked_child_has_threads_of_its_own(level: str, asleep: bool) -> None:
    """Its parent's may sleep or spin at the time; it works, and lets go of pools it used and of pools it did not."""
    matrix, unused = (make_recipe(DENSE, 300, 120, seed=1).build(kernels.Pool(3, level)) for _ in range(2))
    x_NI = make_inputs(5, 120, seed=2)
    want = matrix.multiply(x_NI)
    if asleep:
        time.sleep(0.05)
    with warnings.catch_warnings():
        # Later versions of Python warn of forks among threads; this is one.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # Whatever happens here, this must not go on to be a second run of the other tests.
        try:
            same = all(same_bits(matrix.multiply(x_NI), want) for _ in range(20))
            del matrix, unused
            gc.collect()
        except BaseException:
            same = False
        os._exit(0 if same else 1)
    assert _exit_status(child, seconds=10) == 0
    assert same_bits(matrix.multiply(x_NI), want)


def _exit_status(child: int, seconds: float) -> int | None:
    """The child's status; a child that hangs is ended, and None."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
