"""A SPIRe draft refuses what does not fit, and a refused call leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.kernels import reference
from tests.kernels.native import LEVELS, kernels, pool
from tests.kernels.random_weights import Floats
from tests.kernels.recipes import same_bits
from tests.kernels.spires import SMALL, Subject, Weights, build, class_of, draft_arguments, ints, step_arrays

if kernels is reference:
    pytest.skip("the reference of a SPIRe draft refuses nothing", allow_module_level=True)

SHAPE = replace(SMALL, slots=4, positions=40)
POOL = pool(LEVELS[0], 2)
Changes = dict[str, dict[str, Any]]

# Slots 0, 1 and 2 are open, 3 is closed; slot 0 remembers 9 positions.
OWN = [(2, 4, 6), (0, 9, 7)]
HUGE = 2**31 - 1


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


STEP_TYPES: Changes = {
    "int64 tokens": {"tokens_N": np.arange(2)},
    "float tokens": {"tokens_N": floats(2)},
    "a list of tokens": {"tokens_N": [6, 7]},
    "no tokens": {"tokens_N": None},
    "int64 slots": {"slots_N": np.array([2, 0])},
    "unsigned positions": {"positions_N": np.array([4, 9], np.uint32)},
    "float64 logits": {"logits_NV": np.zeros((2, SHAPE.draft_vocab))},
    "square tokens": {"tokens_N": ints([6, 7])[:, None]},
    "every other token": {"tokens_N": ints([6, 6, 7, 7])[::2]},
    "flat logits": {"logits_NV": floats(2 * SHAPE.draft_vocab)},
    "transposed logits": {"logits_NV": floats(SHAPE.draft_vocab, 2).T},
    "read-only logits": {"logits_NV": read_only(floats(2, SHAPE.draft_vocab))},
}
STEP_VALUES: Changes = {
    "a token below": {"tokens_N": ints([6, -1])},
    "a token above": {"tokens_N": ints([6, SHAPE.vocab])},
    "a slot below": {"slots_N": ints([2, -1])},
    "a slot above": {"slots_N": ints([4, 0])},
    "a closed slot": {"slots_N": ints([3, 0])},
    "a slot twice": {"slots_N": ints([0, 0])},
    "a position below": {"positions_N": ints([-1, 9])},
    "a position without a rotation": {"positions_N": ints([4, SHAPE.positions])},
    "the largest position": {"positions_N": ints([4, HUGE])},
    "few tokens": {"tokens_N": ints([6])},
    "many slots": {"slots_N": ints([2, 0, 1])},
    "few positions": {"positions_N": ints([4])},
    "few logits": {"logits_NV": floats(1, SHAPE.draft_vocab)},
    "wide logits": {"logits_NV": floats(2, SHAPE.draft_vocab + 1)},
}
STATES = {"slots_N": ints([0, 2]), "positions_N": ints([3, 5]), "states_LND": floats(SHAPE.layers, 2, SHAPE.hidden)}
STATES_TYPES: Changes = {
    "int64 slots": {"slots_N": np.array([0, 2])},
    "float positions": {"positions_N": floats(2)},
    "float64 states": {"states_LND": np.zeros((SHAPE.layers, 2, SHAPE.hidden))},
    "bfloat16 states": {"states_LND": np.zeros((SHAPE.layers, 2, SHAPE.hidden), np.uint16)},
    "flat states": {"states_LND": floats(SHAPE.layers, 2 * SHAPE.hidden)},
    "transposed states": {"states_LND": floats(2, SHAPE.layers, SHAPE.hidden).transpose(1, 0, 2)},
}
STATES_VALUES: Changes = {
    "a closed slot": {"slots_N": ints([0, 3])},
    "a slot above": {"slots_N": ints([0, 4])},
    "a position below": {"positions_N": ints([3, -1])},
    "a position without a rotation": {"positions_N": ints([3, SHAPE.positions])},
    "few slots": {"slots_N": ints([0])},
    "many positions": {"positions_N": ints([3, 5, 6])},
    "few states": {"states_LND": floats(SHAPE.layers, 1, SHAPE.hidden)},
    "states of few layers": {"states_LND": floats(SHAPE.layers - 1, 2, SHAPE.hidden)},
    "wide states": {"states_LND": floats(SHAPE.layers, 2, SHAPE.hidden + 1)},
}


def begin() -> Subject:
    """The state that every mistake meets."""
    subject = build(SHAPE, POOL).open(0, 1, 2)
    subject.remember(0, range(9))
    return subject


@cache
def want() -> Floats:
    return begin().step(*OWN)


def unchanged(subject: Subject) -> bool:
    return same_bits(subject.step(*OWN), want())


@pytest.mark.parametrize("mistake", STEP_TYPES | STEP_VALUES)
def test_a_step_that_does_not_fit(mistake: str) -> None:
    subject = begin()
    arrays = step_arrays(SHAPE, *OWN) | (STEP_TYPES | STEP_VALUES)[mistake]
    with pytest.raises(TypeError if mistake in STEP_TYPES else ValueError, match=r"\w"):
        subject.draft.step(**arrays)
    assert "logits_NV" in (STEP_TYPES | STEP_VALUES)[mistake] or np.all(np.isnan(arrays["logits_NV"]))
    assert unchanged(subject)


@pytest.mark.parametrize("mistake", STATES_VALUES)
def test_states_of_a_wrong_value(mistake: str) -> None:
    subject = begin()
    with pytest.raises(ValueError, match=r"\w"):
        subject.draft.remember(**(STATES | STATES_VALUES[mistake]))
    assert unchanged(subject)


@pytest.mark.parametrize("mistake", STATES_TYPES)
def test_states_of_a_wrong_type(mistake: str) -> None:
    subject = begin()
    with pytest.raises(TypeError):
        subject.draft.remember(**(STATES | STATES_TYPES[mistake]))
    assert unchanged(subject)


def test_what_is_right_changes_bits() -> None:
    """Else nothing above would show that nothing has changed."""
    subject = begin()
    subject.draft.remember(**STATES)
    assert not unchanged(subject)


def test_slots_open_and_close_once() -> None:
    subject = begin()
    for call, slots in ((subject.draft.open, (0, 4, -1)), (subject.draft.close, (3, 4, -1))):
        for slot in slots:
            with pytest.raises(ValueError, match=r"\w"):
                call(slot)
    subject.draft.close(1)
    with pytest.raises(ValueError, match=r"\w"):
        subject.step((1, 0, 5))
    subject.draft.open(1)
    assert unchanged(subject)


def test_a_step_before_all_layers_are_there() -> None:
    weights = Weights(kernels, SHAPE, POOL)
    draft = class_of(kernels)(POOL, **draft_arguments(SHAPE), **weights.ends())
    draft.open(0)
    for _ in range(SHAPE.layers):
        with pytest.raises(ValueError, match="layers"):
            draft.step(**step_arrays(SHAPE, (0, 0, 1)))
        with pytest.raises(ValueError, match="layers"):
            draft.remember(**(STATES | {"slots_N": ints([0, 0])}))
        draft.add_layer(**weights.layer())
    draft.step(**step_arrays(SHAPE, (0, 0, 1)))
    with pytest.raises(ValueError, match="layers"):
        draft.add_layer(**weights.layer())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_heads": 0}, ValueError),
        ({"num_heads": 3}, ValueError),
        ({"head_dim": 15}, ValueError),
        ({"window": -1}, ValueError),
        ({"sink": -1}, ValueError),
        ({"ring": 0, "window": 0}, ValueError),
        ({"ring": SHAPE.window - 1}, ValueError),
        ({"ring": SHAPE.window, "sees_itself": True}, ValueError),
        ({"ring": HUGE, "sink": HUGE}, ValueError),
        ({"slots": 0}, ValueError),
        ({"norm_D": floats(SHAPE.hidden + 1)}, ValueError),
        ({"norm_D": np.zeros(SHAPE.hidden)}, TypeError),
        ({"mix_LS": floats(0, 1)}, ValueError),
        ({"mix_LS": floats(SHAPE.layers, SHAPE.layers)}, ValueError),
        ({"mix_LS": np.zeros((SHAPE.layers, SHAPE.layers + 1))}, TypeError),
        ({"cos_SP": floats(SHAPE.positions, 9)}, ValueError),
        ({"cos_SP": floats(0, 8), "sin_SP": floats(0, 8)}, ValueError),
        ({"sin_SP": floats(SHAPE.positions - 1, 8)}, ValueError),
        ({"embedding": None}, TypeError),
    ],
)
def test_drafts_that_do_not_fit(changes: dict[str, Any], error: type[Exception]) -> None:
    arguments = draft_arguments(SHAPE) | Weights(kernels, SHAPE, POOL).ends()
    with pytest.raises(error):
        class_of(kernels)(POOL, **(arguments | changes))


def matrices() -> dict[str, Any]:
    """Matrices that are wrong everywhere."""
    weights = Weights(kernels, SHAPE, POOL)
    width = SHAPE.hidden
    other = Weights(kernels, SHAPE, pool(LEVELS[0], 1))
    return {
        "tall": weights.matrix(width + 64, width),
        "wide": weights.matrix(width, width + 1),
        "gated": weights.matrix(64, width, gate="silu"),
        "plain": weights.matrix(64, width),
        "elsewhere": other.matrix(64, width),
        "gated elsewhere": other.matrix(64, width, gate="silu"),
    }


@pytest.mark.parametrize(
    ("part", "name"),
    [
        *((part, "tall") for part in ("q", "kv", "out", "down", "gate_up")),
        *((part, "wide") for part in ("q", "kv", "out", "down", "head")),
        *((part, "gated") for part in ("q", "kv", "head")),
        *((part, "elsewhere") for part in ("q", "kv", "head")),
        ("gate_up", "gated elsewhere"),
        ("gate_up", "plain"),
        ("embedding", "gated"),
    ],
)
def test_matrices_that_do_not_fit(part: str, name: str) -> None:
    """Of 64 rows where that is the right number, so that only gates and pools differ."""
    shape, weights = replace(SHAPE, vocab=64, draft_vocab=64), Weights(kernels, SHAPE, POOL)
    arguments, layer, wrong = draft_arguments(shape), weights.layer(), matrices()[name]
    ends = Weights(kernels, shape, POOL).ends()
    if part in ends:
        with pytest.raises(ValueError, match=f"^{part} "):
            class_of(kernels)(POOL, **arguments, **(ends | {part: wrong}))
        return
    draft = class_of(kernels)(POOL, **arguments, **ends)
    with pytest.raises(ValueError, match=f"^{part} "):
        draft.add_layer(**(layer | {part: wrong}))
    for _ in range(shape.layers):
        draft.add_layer(**layer)


@pytest.mark.parametrize("name", ["input_norm_D", "mlp_norm_D"])
def test_norms_that_do_not_fit(name: str) -> None:
    weights = Weights(kernels, SHAPE, POOL)
    draft = class_of(kernels)(POOL, **draft_arguments(SHAPE), **weights.ends())
    layer = weights.layer()
    for wrong in (floats(SHAPE.hidden - 1), np.zeros(SHAPE.hidden), None):
        with pytest.raises((TypeError, ValueError)):
            draft.add_layer(**(layer | {name: wrong}))
