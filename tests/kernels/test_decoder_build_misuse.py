"""Decoders that do not fit together are refused while they are built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.decoders import GEMMA, Shape, Subject, Weights, build, decoder_arguments
from tests.kernels.native import LEVELS, kernels, pool
from tests.kernels.recipes import same_bits

LEVEL = LEVELS[0]
SHAPE = replace(GEMMA, tied=False)
HALF = SHAPE.head_dim // 2

OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "no vocabulary": ({"vocab_size": 0}, ValueError),
    "another vocabulary": ({"vocab_size": SHAPE.vocab + 1}, ValueError),
    "another width": ({"hidden_size": SHAPE.hidden + 1}, ValueError),
    "no heads": ({"num_heads": 0}, ValueError),
    "no KV heads": ({"num_kv_heads": 0}, ValueError),
    "heads that do not divide": ({"num_heads": 3, "num_kv_heads": 2}, ValueError),
    "an odd head_dim": ({"head_dim": 63}, ValueError),
    "no layers": ({"num_layers": 0}, ValueError),
    "a window below zero": ({"window": -1}, ValueError),
    "no slots": ({"slots": 0}, ValueError),
    "no positions": ({"positions": 0}, ValueError),
    "more positions than rotations": ({"positions": SHAPE.positions + 1}, ValueError),
    "unknown keys": ({"kv_dtype": "float16"}, ValueError),
    "a float64 norm": ({"norm_D": np.ones(SHAPE.hidden)}, TypeError),
    "a short norm": ({"norm_D": np.ones(SHAPE.hidden - 1, np.float32)}, ValueError),
    "float64 cosines": ({"cos_SP": np.ones((SHAPE.positions, HALF))}, TypeError),
    "narrow sines": ({"sin_SP": np.ones((SHAPE.positions, HALF - 1), np.float32)}, ValueError),
    "short local cosines": ({"local_cos_SP": np.ones((SHAPE.positions - 1, HALF), np.float32)}, ValueError),
    "no local sines": ({"local_sin_SP": None}, TypeError),
    "no embedding": ({"embedding": None}, TypeError),
}
NORM = np.ones(SHAPE.hidden, np.float32)
LAYERS: dict[str, tuple[dict[str, Any], Any]] = {
    "a float64 norm in a layer": ({"input_norm_D": np.ones(SHAPE.hidden)}, TypeError),
    "a short MLP norm": ({"mlp_norm_D": NORM[:-1]}, ValueError),
    "a wide query norm": ({"q_norm": NORM}, ValueError),
    "a wide key norm": ({"k_norm": NORM}, ValueError),
    "a short norm after attention": ({"post_attention_norm_D": NORM[1:]}, ValueError),
    "a short norm after the MLP": ({"post_mlp_norm_D": NORM[1:]}, ValueError),
    "no QKV": ({"qkv": None}, TypeError),
}


def ends(shape: Shape) -> dict[str, Any]:
    return decoder_arguments(shape) | Weights(kernels, shape, pool(LEVEL)).ends()


def layer(shape: Shape, owner: Any = None) -> dict[str, Any]:
    return {"local": False} | Weights(kernels, shape, owner or pool(LEVEL)).layer()


def empty() -> Subject:
    """A decoder without layers."""
    return Subject(kernels.Decoder(pool(LEVEL), **ends(SHAPE)), SHAPE)


@pytest.mark.parametrize("mistake", OPTIONS)
def test_options_that_do_not_fit(mistake: str) -> None:
    change, error = OPTIONS[mistake]
    with pytest.raises(error):
        kernels.Decoder(pool(LEVEL), **(ends(SHAPE) | change))


@pytest.mark.parametrize("mistake", LAYERS)
def test_layers_that_do_not_fit(mistake: str) -> None:
    change, error = LAYERS[mistake]
    with pytest.raises(error):
        empty().decoder.add_layer(**(layer(SHAPE) | change))


@pytest.mark.parametrize("name", ["qkv", "out", "gate_up", "down"])
@pytest.mark.parametrize(
    "changed", [replace(SHAPE, hidden=33), replace(SHAPE, head_dim=62, inner=60), replace(SHAPE, heads=4, inner=63)]
)
def test_matrices_of_another_shape(name: str, changed: Shape) -> None:
    other = layer(changed)[name]
    own = layer(SHAPE)[name]
    if (other.outputs, other.inputs) == (own.outputs, own.inputs):
        pytest.skip("the change does not reach this matrix")
    with pytest.raises(ValueError, match=r"\w"):
        empty().decoder.add_layer(**(layer(SHAPE) | {name: other}))


def test_gates_where_none_belongs_and_none_where_one_does() -> None:
    weights = Weights(kernels, SHAPE, pool(LEVEL))
    plain = weights.matrix(SHAPE.inner, SHAPE.hidden)
    gated = weights.matrix(SHAPE.hidden, SHAPE.inner, gate="silu")
    for change in ({"gate_up": plain}, {"down": gated}):
        with pytest.raises(ValueError, match=r"\w"):
            empty().decoder.add_layer(**(layer(SHAPE) | change))
    table = weights.matrix(SHAPE.vocab, SHAPE.hidden, gate="silu")
    for name in ("embedding", "head"):
        with pytest.raises(ValueError, match=r"\w"):
            kernels.Decoder(pool(LEVEL), **(ends(SHAPE) | {name: table}))


def test_matrices_of_another_pool() -> None:
    other = kernels.Pool(1, LEVEL)
    for name in ("qkv", "out", "gate_up", "down"):
        with pytest.raises(ValueError, match=r"\w"):
            empty().decoder.add_layer(**(layer(SHAPE) | {name: layer(SHAPE, other)[name]}))
    theirs = Weights(kernels, SHAPE, other).ends()
    for name in ("embedding", "head"):
        with pytest.raises(ValueError, match=r"\w"):
            kernels.Decoder(pool(LEVEL), **(ends(SHAPE) | {name: theirs[name]}))


def test_layers_missing_or_too_many() -> None:
    subject = empty()
    subject.open(0)
    for _ in SHAPE.local:
        with pytest.raises(ValueError, match=r"\w"):
            subject.feed(0, 0, [2])
        subject.decoder.add_layer(**layer(SHAPE))
    first = subject.feed(0, 0, [2, 3])
    with pytest.raises(ValueError, match=r"\w"):
        subject.decoder.add_layer(**layer(SHAPE))
    assert same_bits(subject.feed(0, 0, [2, 3]), first)


def test_refused_layers_leave_no_trace() -> None:
    want = build(replace(SHAPE, local=(False,)), pool(LEVEL)).open(0).feed(0, 0, [2, 3])
    one = replace(SHAPE, local=(False,))
    weights = Weights(kernels, one, pool(LEVEL))
    decoder = kernels.Decoder(pool(LEVEL), **(decoder_arguments(one) | weights.ends()))
    good = {"local": False} | weights.layer()
    with pytest.raises(ValueError, match=r"\w"):
        decoder.add_layer(**(good | {"mlp_norm_D": NORM[:-1]}))
    decoder.add_layer(**good)
    assert same_bits(Subject(decoder, one).open(0).feed(0, 0, [2, 3]), want)
