"""Small random SPIRe drafts, built alike by the module under test and by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels import reference
from tests.kernels.random_weights import Floats, RandomWeights
from tests.kernels.recipes import DENSE, Format
from tests.kernels.reference_spire import SpireDraft as Reference

if TYPE_CHECKING:
    from outrider.kernels import _native as kernels

Own = tuple[int, int, int]
"""A draft token to run: slot, position, token."""


@dataclass(frozen=True)
class Shape:
    """What a draft is like; packed formats need widths of 32 each."""

    form: Format = DENSE
    vocab: int = 50
    draft_vocab: int = 37
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    inner: int = 64
    layers: int = 3
    window: int = 6
    sink: int = 1
    sees_itself: bool = False
    slots: int = 3
    ring: int = 10
    positions: int = 96
    poisoned: bool = False
    """Token 0 is NaN, token 1 infinity."""
    seed: int = 1


SMALL = Shape()
ODD = Shape(hidden=30, heads=3, kv_heads=1, head_dim=10, inner=50, layers=2, sink=3, draft_vocab=5)
SELF = Shape(sees_itself=True, ring=7)
WIDE = Shape(
    sees_itself=True, hidden=70, heads=6, kv_heads=2, head_dim=72, inner=150, window=0, sink=0, ring=96, layers=1
)


@dataclass
class Subject:
    """A draft and short ways to use it."""

    draft: Any
    shape: Shape

    def open(self, *slots: int) -> Subject:
        """Open slots, all of them unless told otherwise; returns itself."""
        for slot in slots or range(self.shape.slots):
            self.draft.open(slot)
        return self

    def remember(self, slot: int, positions: Sequence[int], seed: int = 0) -> None:
        """States of these positions of a slot, as ``states_of`` draws them."""
        states_LND = np.zeros((self.shape.layers, len(positions), self.shape.hidden), np.float32)
        for row, position in enumerate(positions):
            states_LND[:, row] = states_of(self.shape, slot, position, seed)
        self.remember_states([slot] * len(positions), positions, states_LND)

    def remember_states(self, slots: Sequence[int], positions: Sequence[int], states_LND: Floats) -> None:
        """Any rows."""
        self.draft.remember(ints(slots), ints(positions), np.ascontiguousarray(states_LND))

    def step(self, *own: Own) -> Floats:
        """Logits of one position of each of these slots."""
        arrays = step_arrays(self.shape, *own)
        self.draft.step(**arrays)
        logits_NV: Floats = arrays["logits_NV"]
        return logits_NV

    def drafts(self, slot: int, start: int, tokens: Sequence[int]) -> Floats:
        """Logits of one slot's positions, one step each."""
        return np.concatenate([self.step((slot, start + i, token)) for i, token in enumerate(tokens)])


def ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def states_of(shape: Shape, slot: int, position: int, seed: int = 0) -> Floats:
    """Target states ``(layers, hidden)``, the same whenever they are asked for."""
    rng = np.random.default_rng((slot, position, seed))
    states_LD: Floats = (3 * rng.normal(size=(shape.layers, shape.hidden))).astype(np.float32)
    return states_LD


def step_arrays(shape: Shape, *own: Own) -> dict[str, Any]:
    """Keyword arguments of ``SpireDraft.step``, with logits to be filled."""
    slots, positions, tokens = zip(*own, strict=True) if own else ((), (), ())
    logits_NV = np.full((len(own), shape.draft_vocab), np.nan, np.float32)
    return {
        "tokens_N": ints(tokens), "slots_N": ints(slots), "positions_N": ints(positions), "logits_NV": logits_NV,
    }  # fmt: skip


def build(shape: Shape, pool: kernels.Pool) -> Subject:
    """A draft of the module under test, all its slots closed."""
    from tests.kernels.native import kernels as module

    return Subject(_complete(module, class_of(module), shape, pool), shape)


def class_of(module: Any) -> Any:
    """The module's class; the reference has its own in a file of its own."""
    return Reference if module is reference else module.SpireDraft


def build_reference(shape: Shape) -> Subject:
    """The same draft in fp64."""
    return Subject(_complete(reference, Reference, shape, reference.Pool(1, "portable")), shape)


def _complete(module: Any, kind: Any, shape: Shape, pool: Any) -> Any:
    weights = Weights(module, shape, pool)
    draft = kind(pool, **draft_arguments(shape), **weights.ends())
    for _ in range(shape.layers):
        draft.add_layer(**weights.layer())
    return draft


def draft_arguments(shape: Shape) -> dict[str, Any]:
    """Everything that the constructor takes but matrices and the last norm."""
    angles_SP = np.arange(shape.positions)[:, None] * 30.0 ** -np.linspace(0, 1, shape.head_dim // 2)
    shares_LS = np.exp(np.random.default_rng(shape.seed).normal(size=(shape.layers, shape.layers + 1)))
    return {
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "norm_eps": 1e-5,
        "window": shape.window,
        "sink": shape.sink,
        "sees_itself": shape.sees_itself,
        "slots": shape.slots,
        "ring": shape.ring,
        "mix_LS": (shares_LS / shares_LS.sum(1, keepdims=True)).astype(np.float32),
        "cos_SP": np.cos(angles_SP).astype(np.float32),
        "sin_SP": np.sin(angles_SP).astype(np.float32),
    }


class Weights(RandomWeights):
    """What a model of this shape is made of."""

    def __init__(self, module: Any, shape: Shape, pool: Any) -> None:
        super().__init__(module, shape.form, shape.seed, pool)
        self.shape = shape

    def ends(self) -> dict[str, Any]:
        """Embedding, head and the norm before it."""
        shape = self.shape
        embedding = self.matrix(shape.vocab, shape.hidden)
        if shape.poisoned:
            embedding = self.poisoned_table(shape.vocab, shape.hidden)
        return {
            "embedding": embedding,
            "head": self.matrix(shape.draft_vocab, shape.hidden),
            "norm_D": self.norm(shape.hidden),
        }

    def layer(self) -> dict[str, Any]:
        """Arguments of ``add_layer``."""
        shape = self.shape
        return {
            "input_norm_D": self.norm(shape.hidden),
            "q": self.matrix(shape.heads * shape.head_dim, shape.hidden),
            "kv": self.matrix(2 * shape.kv_heads * shape.head_dim, shape.hidden),
            "out": self.matrix(shape.hidden, shape.heads * shape.head_dim),
            "mlp_norm_D": self.norm(shape.hidden),
            "gate_up": self.matrix(shape.inner, shape.hidden, gate="silu"),
            "down": self.matrix(shape.hidden, shape.inner),
        }
