"""A SPIRe draft's rows have the same bits whatever else is in a step, on however many threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.native import LEVELS, THREADS, pool
from tests.kernels.random_weights import Floats
from tests.kernels.recipes import named, same_bits
from tests.kernels.spires import ODD, SELF, SMALL, WIDE, Shape, Subject, build

SHAPES: dict[str, Shape] = {
    "small float32": SMALL,
    "odd float32": ODD,
    "deep bfloat16": replace(SMALL, form=named("bfloat16"), layers=7),
    "wide int8": replace(WIDE, form=named("int8"), layers=2),
    "odd int8": replace(ODD, form=named("int8")),
    "small Q4_1-bfloat16": replace(SMALL, form=named("Q4_1-bfloat16")),
    "small Q8_0-int8": replace(SMALL, form=named("Q8_0-int8")),
    "self": replace(SELF, ring=10),
}
SLOTS = 16

for_all = pytest.mark.parametrize("name", SHAPES)
at_all_levels = pytest.mark.parametrize("level", LEVELS)


def start(slot: int) -> int:
    """Where a slot's drafts begin: each at a place of its own, slot 0 with nothing before it."""
    return slot * 3 % 16


def tokens(shape: Shape, slot: int) -> list[int]:
    values: list[int] = np.random.default_rng(slot).integers(2, shape.vocab, 3).tolist()
    return values


def expected(shape: Shape, level: str, slot: int) -> Floats:
    """Logits of a slot's drafts: alone in a fresh draft, one thread, every position remembered by itself."""
    subject = build(shape, pool(level, 1)).open(slot)
    for position in range(start(slot)):
        subject.remember(slot, [position])
    return subject.drafts(slot, start(slot), tokens(shape, slot))


def remember_all(subject: Subject, slots: list[int]) -> None:
    for slot in slots:
        subject.remember(slot, range(start(slot)))


@at_all_levels
@for_all
def test_company_and_threads(level: str, name: str) -> None:
    """All slots in one step, in any order, then fewer: with inputs prepared by each thread and by all together."""
    shape = replace(SHAPES[name], slots=SLOTS)
    want = [expected(shape, level, slot) for slot in range(SLOTS)]
    for threads in THREADS:
        subject = build(shape, pool(level, threads)).open()
        remember_all(subject, list(range(SLOTS)))
        order = np.random.default_rng(threads).permutation(SLOTS).tolist()
        for i, count in enumerate((SLOTS, 8, 3)):
            slots = order[:count]
            got = subject.step(*((slot, start(slot) + i, tokens(shape, slot)[i]) for slot in slots))
            assert same_bits(got, np.stack([want[slot][i] for slot in slots])), f"{count} rows, {threads} threads"


@at_all_levels
@for_all
def test_how_positions_are_remembered(level: str, name: str) -> None:
    """One by one, all at once, or rows of several slots in turn."""
    shape = replace(SHAPES[name], slots=SLOTS)
    want = expected(shape, level, 5)
    for threads in THREADS:
        one, mixed = (build(shape, pool(level, threads)).open() for _ in range(2))
        one.remember(5, range(start(5)))
        assert same_bits(one.drafts(5, start(5), tokens(shape, 5)), want)
        for other in (5, 4):
            # The second time over itself, with neighbours' rows between.
            mixed.remember(other, range(start(5)))
            mixed.remember(5, range(start(5) - 4, start(5)))
        assert same_bits(mixed.drafts(5, start(5), tokens(shape, 5)), want)


@at_all_levels
@for_all
def test_a_poisoned_sequence_keeps_to_itself(level: str, name: str) -> None:
    """NaN and infinity: beside a sequence, before it in its slot, and in drafts that were rejected."""
    shape = replace(SHAPES[name], poisoned=True)
    want = expected(shape, level, 2)
    assert np.all(np.isfinite(want))
    subject = build(shape, pool(level, 2)).open()
    bad = np.full((shape.layers, start(2), shape.hidden), np.nan, np.float32)
    subject.remember_states([1] * start(2), range(start(2)), bad)
    subject.remember_states([2] * start(2), range(start(2)), bad)
    assert not np.any(np.isfinite(subject.step((2, start(2), 5))))
    subject.draft.close(2)
    subject.draft.open(2)
    subject.remember(2, range(start(2)))
    subject.drafts(2, start(2), [0, 1, 0])
    for i, token in enumerate(tokens(shape, 2)):
        position = start(2) + i
        got = subject.step((0, i, 0), (2, position, token), (1, position, 3))
        assert not np.any(np.isfinite(got[[0, 2]]))
        assert same_bits(got[1], want[i])
