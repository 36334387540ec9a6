"""A decoder refuses what does not fit, and a refused step leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.decoders import LLAMA, Feed, Subject, build, random_tokens, step_arrays
from tests.kernels.native import LEVELS, pool
from tests.kernels.recipes import same_bits

LEVEL = LEVELS[0]
SHAPE = replace(LLAMA, slots=4, positions=40)
FIRST = [Feed(0, 0, random_tokens(SHAPE, 9, 1)), Feed(2, 0, random_tokens(SHAPE, 4, 2))]
THEN = [Feed(2, 4, random_tokens(SHAPE, 2, 3)), Feed(0, 9, random_tokens(SHAPE, 3, 4), [-1, -1, 0])]


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


# What replaces arguments of a step that appends 2 rows to slot 2 (4 written) and 3 rows to slot 0 (9 written); slot 1
# is open and empty, slot 3 closed.
TYPE_ERRORS: dict[str, dict[str, Any]] = {
    "int64 tokens": {"tokens_N": np.arange(5)},
    "float tokens": {"tokens_N": floats(5)},
    "a list of tokens": {"tokens_N": [1, 2, 3, 4, 5]},
    "no tokens": {"tokens_N": None},
    "int64 slots": {"slots_F": np.array([2, 0])},
    "float starts": {"starts_F": floats(2)},
    "unsigned counts": {"counts_F": np.array([2, 3], np.uint32)},
    "int64 wanted": {"wanted_M": np.arange(5)},
    "bool wanted": {"wanted_M": np.ones(5, bool)},
    "float64 logits": {"logits_MV": np.zeros((5, SHAPE.vocab))},
    "bfloat16 logits": {"logits_MV": np.zeros((5, SHAPE.vocab), np.uint16)},
    "float64 hidden": {"hidden_MD": np.zeros((5, SHAPE.hidden))},
    "float64 states": {"layers_L": ints(1), "states_LND": np.zeros((1, 5, SHAPE.hidden))},
    "int64 layers": {"layers_L": np.array([1]), "states_LND": floats(1, 5, SHAPE.hidden)},
    "int64 parents": {"parents_N": np.array([-1, 0, -1, 0, 1])},
}
VALUE_ERRORS: dict[str, dict[str, Any]] = {
    "a token below": {"tokens_N": ints(2, 3, -1, 4, 5)},
    "a token above": {"tokens_N": ints(2, 3, 4, 5, SHAPE.vocab)},
    "the largest token": {"tokens_N": ints(2, 3, 4, 5, 2**31 - 1)},
    "a slot below": {"slots_F": ints(2, -1)},
    "a slot above": {"slots_F": ints(4, 0)},
    "a closed slot": {"slots_F": ints(3, 0), "starts_F": ints(0, 9)},
    "a slot twice": {"slots_F": ints(0, 0), "starts_F": ints(9, 9)},
    "a slot twice, one after the other": {"slots_F": ints(0, 0), "starts_F": ints(9, 11)},
    "a start below": {"starts_F": ints(-1, 9)},
    "a start beyond": {"starts_F": ints(5, 9)},
    "a start beyond an empty slot": {"slots_F": ints(1, 0), "starts_F": ints(1, 9)},
    "a start far beyond": {"starts_F": ints(4, 2**31 - 1)},
    "too few counts": {"counts_F": ints(5)},
    "too many starts": {"starts_F": ints(4, 9, 0)},
    "too many slots": {"slots_F": ints(2, 0, 1)},
    "counts below the rows": {"counts_F": ints(2, 2)},
    "counts above the rows": {"counts_F": ints(2, 4)},
    "a count of none": {"counts_F": ints(0, 5)},
    "a count below zero": {"counts_F": ints(-1, 6)},
    "counts that overflow": {"counts_F": ints(2**31 - 1, 2**31 - 1)},
    "no feeds for rows": {"slots_F": ints(), "starts_F": ints(), "counts_F": ints()},
    "wanted below": {"wanted_M": ints(0, 1, 2, 3, -1)},
    "wanted above": {"wanted_M": ints(0, 1, 2, 3, 5)},
    "few logits": {"logits_MV": floats(4, SHAPE.vocab)},
    "many logits": {"logits_MV": floats(6, SHAPE.vocab)},
    "narrow logits": {"logits_MV": floats(5, SHAPE.vocab - 1)},
    "few hidden": {"hidden_MD": floats(4, SHAPE.hidden)},
    "wide hidden": {"hidden_MD": floats(5, SHAPE.hidden + 1)},
    "a layer below": {"layers_L": ints(-1), "states_LND": floats(1, 5, SHAPE.hidden)},
    "a layer above": {"layers_L": ints(3), "states_LND": floats(1, 5, SHAPE.hidden)},
    "layers without states": {"layers_L": ints(1), "states_LND": None},
    "states without layers": {"layers_L": None, "states_LND": floats(1, 5, SHAPE.hidden)},
    "states of another layer count": {"layers_L": ints(0, 1), "states_LND": floats(1, 5, SHAPE.hidden)},
    "states of few rows": {"layers_L": ints(1), "states_LND": floats(1, 4, SHAPE.hidden)},
    "narrow states": {"layers_L": ints(1), "states_LND": floats(1, 5, SHAPE.hidden - 1)},
    "few parents": {"parents_N": ints(-1, 0, -1, 0)},
    "many parents": {"parents_N": ints(-1, 0, -1, 0, 1, 2)},
    "a parent below": {"parents_N": ints(-1, 0, -1, -2, 0)},
    "its own parent": {"parents_N": ints(-1, 0, -1, 1, 0)},
    "a later parent": {"parents_N": ints(-1, 0, 1, 0, 0)},
    "a parent of the packed rows": {"parents_N": ints(-1, 0, -1, 2, 3)},
    "a first row with a parent": {"parents_N": ints(0, 0, -1, 0, 1)},
}
EITHER: dict[str, dict[str, Any]] = {
    "square tokens": {"tokens_N": ints(1, 2, 3, 4, 5)[:, None]},
    "every other token": {"tokens_N": np.arange(10, dtype=np.int32)[::2]},
    "every other slot": {"slots_F": ints(2, 1, 0, 1)[::2]},
    "flat logits": {"logits_MV": floats(5 * SHAPE.vocab)},
    "transposed logits": {"logits_MV": floats(SHAPE.vocab, 5).T},
    "part of wider logits": {"logits_MV": floats(5, SHAPE.vocab + 8)[:, : SHAPE.vocab]},
    "read-only logits": {"logits_MV": read_only(floats(5, SHAPE.vocab))},
    "read-only hidden": {"hidden_MD": read_only(floats(5, SHAPE.hidden))},
    "transposed hidden": {"hidden_MD": floats(SHAPE.hidden, 5).T},
    "flat states": {"layers_L": ints(1), "states_LND": floats(5, SHAPE.hidden)},
    "square parents": {"parents_N": ints(-1, 0, -1, -1, 0)[:, None]},
}


@pytest.fixture(name="subject", scope="module")
def make_subject() -> Subject:
    return build(SHAPE, pool(LEVEL, 2))


def begin(subject: Subject) -> Subject:
    """The state that every mistake meets."""
    for slot in (0, 1, 2):
        if slot in subject.opened:
            subject.reset(slot)
        else:
            subject.open(slot)
    subject.step(*FIRST)
    return subject


def refuse(subject: Subject, change: dict[str, Any], error: Any) -> None:
    """The changed step raises and writes no result; the right one then has the bits it would have had."""
    begin(subject)
    want = subject.step(*THEN)
    begin(subject)
    arrays = step_arrays(SHAPE, THEN) | change
    results = [arrays[name] for name in ("logits_MV", "hidden_MD") if name not in change]
    with pytest.raises(error):
        subject.decoder.step(**arrays)
    assert all(np.all(np.isnan(each)) for each in results)
    got = subject.step(*THEN)
    assert same_bits(got.logits_MV, want.logits_MV)
    assert same_bits(got.hidden_MD, want.hidden_MD)


@pytest.mark.parametrize("mistake", TYPE_ERRORS)
def test_a_step_with_a_wrong_type(subject: Subject, mistake: str) -> None:
    refuse(subject, TYPE_ERRORS[mistake], TypeError)


@pytest.mark.parametrize("mistake", VALUE_ERRORS)
def test_a_step_with_a_wrong_value(subject: Subject, mistake: str) -> None:
    refuse(subject, VALUE_ERRORS[mistake], ValueError)


@pytest.mark.parametrize("mistake", EITHER)
def test_a_step_with_a_wrong_layout(subject: Subject, mistake: str) -> None:
    refuse(subject, EITHER[mistake], (TypeError, ValueError))


def test_positions_overflow(subject: Subject) -> None:
    begin(subject)
    room = SHAPE.positions - 9
    tokens = random_tokens(SHAPE, room + 1, 5)
    with pytest.raises(ValueError, match=r"\w"):
        subject.feed(0, 9, tokens)
    want = subject.feed(0, 9, tokens[:room])
    with pytest.raises(ValueError, match=r"\w"):
        subject.feed(0, SHAPE.positions, tokens[:1])
    assert same_bits(subject.feed(0, 9, tokens[:room]), want)


def test_a_refused_feed_is_not_remembered(subject: Subject) -> None:
    """The first feed of a refused step is good by itself, but was not written."""
    begin(subject)
    with pytest.raises(ValueError, match=r"\w"):
        subject.step(Feed(2, 4, [2, 3]), Feed(3, 0, [4]))
    with pytest.raises(ValueError, match=r"\w"):
        subject.feed(2, 5, [4])


def test_what_was_written_over_is_gone(subject: Subject) -> None:
    """A step at an earlier start ends the slot there; rows behind it belonged to other tokens."""
    begin(subject)
    subject.feed(0, 3, [2, 3])
    with pytest.raises(ValueError, match=r"\w"):
        subject.feed(0, 6, [4])
    with pytest.raises(ValueError, match=r"\w"):
        subject.decoder.move(0, ints(5), 4)
    subject.feed(0, 5, [4])


def test_slots_open_and_close_once(subject: Subject) -> None:
    begin(subject)
    decoder = subject.decoder
    for call, slots in ((decoder.open, (0, 4, -1)), (decoder.close, (3, 9, -1))):
        for slot in slots:
            with pytest.raises(ValueError, match=r"\w"):
                call(slot)
    decoder.close(1)
    for call in (decoder.close, lambda slot: decoder.move(slot, ints(), 0), lambda slot: subject.feed(slot, 0, [2])):
        with pytest.raises(ValueError, match=r"\w"):
            call(1)
    decoder.open(1)
    with pytest.raises(ValueError, match=r"\w"):
        subject.feed(1, 1, [2])


@pytest.mark.parametrize(
    ("sources", "target", "error"),
    [
        (ints(5, 4), 2, ValueError),
        (ints(4, 4), 2, ValueError),
        (ints(3, 9), 2, ValueError),
        (ints(-1, 3), 0, ValueError),
        (ints(2, 3), 3, ValueError),
        (ints(3, 3), 3, ValueError),
        (ints(3), -1, ValueError),
        (ints(2**31 - 1), 0, ValueError),
        (np.array([5]), 2, TypeError),
        ([5], 2, TypeError),
    ],
)
def test_moves_that_do_not_fit(subject: Subject, sources: Any, target: int, error: type[Exception]) -> None:
    begin(subject)
    want = subject.step(*THEN)
    begin(subject)
    with pytest.raises(error):
        subject.decoder.move(0, sources, target)
    assert same_bits(subject.step(*THEN).logits_MV, want.logits_MV)
