"""Random steps of random shapes for a long time: nothing leaks into another sequence, and memory does not grow.

``OUTRIDER_SOAK_STEPS`` sets how many steps; the default is a quick look.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.decoders import GEMMA, QWEN2, Feed, Shape, Subject, build, random_tokens, random_tree, with_form
from tests.kernels.native import LEVELS, kernels, pool
from tests.kernels.recipes import named, same_bits

STEPS = int(os.environ.get("OUTRIDER_SOAK_STEPS", "400"))
SOAKS: list[tuple[Shape, int]] = [
    (with_form(replace(GEMMA, positions=300, slots=6, window=40), named("bfloat16")), 3),
    (with_form(replace(QWEN2, positions=300, slots=6), named("Q4_0-int8")), 2),
]


@dataclass
class _Sequence:
    """What one slot holds."""

    slot: int
    tokens: list[int] = field(default_factory=list)


class _Soak:
    """Sequences that come, grow, branch, shrink and go; now and then one is checked against a fresh decoder."""

    def __init__(self, shape: Shape, level: str, threads: int) -> None:
        self.shape, self.rng = shape, np.random.default_rng(threads)
        self.subject = build(shape, pool(level, threads))
        # Checks run on one thread, in another decoder and in chunks of their own.
        self.judge = build(shape, pool(level, 1)).open(0)
        self.open: dict[int, _Sequence] = {}
        self.checked = 0

    def step(self, number: int) -> None:
        for slot in range(self.shape.slots):
            if self.rng.random() < 0.1:
                self._toggle(slot)
        chosen = [each for each in self.open.values() if self.rng.random() < 0.6]
        self.rng.shuffle(chosen)
        feeds = [self._feed(each, number) for each in chosen]
        if not feeds:
            return
        logits = self.subject.step(*feeds).logits_MV
        ends = np.cumsum([len(feed.tokens) for feed in feeds])
        for sequence, feed, end in zip(chosen, feeds, ends, strict=True):
            path = self._path(feed)
            if self.rng.random() < 0.05:
                self._check(sequence, feed, path, logits[end - len(feed.tokens) : end])
            self._keep(sequence, feed, path)

    def _toggle(self, slot: int) -> None:
        if slot in self.open:
            self.subject.decoder.close(slot)
            del self.open[slot]
        else:
            self.subject.decoder.open(slot)
            self.open[slot] = _Sequence(slot)

    def _feed(self, sequence: _Sequence, number: int) -> Feed:
        count = int(self.rng.choice([1, 1, 2, 5, 9, 17, 60]))
        if len(sequence.tokens) + count > self.shape.positions:
            del sequence.tokens[self.rng.integers(len(sequence.tokens)) // 2 :]
        parents = None
        if self.rng.random() < 0.4:
            parents = random_tree(count, self.rng)
        tokens = random_tokens(self.shape, count, number * 31 + sequence.slot)
        return Feed(sequence.slot, len(sequence.tokens), tokens, parents)

    def _path(self, feed: Feed) -> list[int]:
        """Rows from a root to some row."""
        path = [int(self.rng.integers(len(feed.tokens)))]
        while (parent := path[0] - 1 if feed.parents is None else feed.parents[path[0]]) >= 0:
            path.insert(0, parent)
        return path

    def _check(self, sequence: _Sequence, feed: Feed, path: list[int], logits: np.ndarray) -> None:
        self.judge.reset(0)
        if sequence.tokens:
            self.judge.chunks(0, sequence.tokens, (50, 1, 7))
        want = self.judge.feed(0, feed.start, [feed.tokens[i] for i in path])
        assert same_bits(logits[path], want), (sequence, feed, path)
        self.checked += 1

    def _keep(self, sequence: _Sequence, feed: Feed, path: list[int]) -> None:
        self.subject.decoder.move(feed.slot, np.array(path, np.int32) + np.int32(feed.start), feed.start)
        sequence.tokens += [feed.tokens[i] for i in path]


def resident_bytes() -> int:
    """Memory of this process that is really there; 0 where the system does not say."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


def steps_of_soak(subject: _Soak, first: int, last: int) -> int:
    """Run steps; returns resident memory after them."""
    for number in range(first, last):
        subject.step(number)
    return resident_bytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("shape", "threads"), SOAKS, ids=["three threads", "two threads"])
def test_soak(level: str, shape: Shape, threads: int) -> None:
    soak = _Soak(shape, level, threads)
    warm = steps_of_soak(soak, 0, STEPS // 2)
    grown = steps_of_soak(soak, STEPS // 2, STEPS) - warm
    assert soak.checked >= STEPS // 30
    # A sanitizer keeps freed memory on purpose.
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        assert grown < 16 * 2**20, f"{grown / 2**20:.1f} MiB more after {STEPS - STEPS // 2} steps"


def test_crowded_pools() -> None:
    """More threads than processors, so that the system puts some aside anywhere in their work, jobs of all sizes."""
    shape = replace(GEMMA, hidden=64, positions=64)
    tokens = random_tokens(shape, 24, 1)
    subjects = [build(shape, kernels.Pool(4, LEVELS[-1])).open(0) for _ in range(4)]
    want = [subjects[0].feed(0, 0, tokens[:count]) for count in (1, 9, 14, 24)]

    def work(subject: Subject) -> bool:
        return all(
            same_bits(subject.feed(0, 0, tokens[: len(logits)]), logits) for _ in range(STEPS) for logits in want
        )

    with ThreadPoolExecutor(len(subjects)) as callers:
        assert all(callers.map(work, subjects))


@pytest.mark.parametrize("level", LEVELS)
def test_decoders_come_and_go(level: str) -> None:
    """Memory of a decoder, its matrices and its keys goes with it."""
    shape = with_form(replace(GEMMA, positions=256, hidden=256, inner=512), named("int8"))

    def use() -> None:
        subject: Subject = build(shape, pool(level, 2)).open(0, 1)
        subject.step(Feed(0, 0, random_tokens(shape, 200, 1)), Feed(1, 0, random_tokens(shape, 256, 2)))

    for _ in range(3):
        use()
    before = resident_bytes()
    for _ in range(12):
        use()
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        assert resident_bytes() - before < 8 * 2**20
