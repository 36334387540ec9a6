"""Trees of drafts: each chain inside one has the bits of plain decoding, and moving it commits it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.decoders import Feed, Shape, build, random_tokens, random_tree
from tests.kernels.native import LEVELS, pool
from tests.kernels.recipes import same_bits
from tests.kernels.test_decoder_bits import SHAPES, at_all_levels, for_all


def path_to(parents: list[int], row: int) -> list[int]:
    """Rows from a root to this one."""
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def check_tree(shape: Shape, level: str, start: int, count: int, seed: int) -> None:
    """Every row of a random tree after ``start`` committed tokens against plain decoding; then a path is kept."""
    prompt, drafts = random_tokens(shape, start, seed), random_tokens(shape, count, seed + 1)
    parents = random_tree(count, np.random.default_rng(seed))
    plain = build(shape, pool(level, 1)).open(0)
    subject = build(shape, pool(level, 2)).open(0, 1)
    if prompt:
        plain.feed(0, 0, prompt)
        subject.feed(1, 0, prompt)
    neighbour = random_tokens(shape, 3, seed + 2)
    got = subject.step(Feed(0, 0, neighbour), Feed(1, start, drafts, parents)).logits_MV[3:]
    for row in range(count):
        path = path_to(parents, row)
        want = plain.feed(0, start, [drafts[i] for i in path])
        assert same_bits(got[path], want), f"row {row} by {path}"

    kept = path_to(parents, int(np.argmax([len(path_to(parents, row)) for row in range(count)])))
    subject.decoder.move(1, np.array([start + row for row in kept], np.int32), start)
    after = random_tokens(shape, 4, seed + 3)
    plain.feed(0, start, [drafts[i] for i in kept])
    end = start + len(kept)
    assert same_bits(subject.feed(1, end, after), plain.plain(0, after, start=end)), f"after keeping {kept}"


@at_all_levels
@for_all
@pytest.mark.parametrize(("start", "count"), [(0, 6), (11, 12), (40, 30)])
def test_chains_of_a_tree(level: str, name: str, start: int, count: int) -> None:
    check_tree(SHAPES[name], level, start, count, seed=count)


@at_all_levels
@pytest.mark.parametrize("name", ["gemma bfloat16", "llama float32"])
@pytest.mark.parametrize("start", [120, 127, 128, 250])
def test_trees_across_blocks_of_keys(level: str, name: str, start: int) -> None:
    shape = replace(SHAPES[name], positions=320, window=min(SHAPES[name].window, 1) * 70)
    check_tree(shape, level, start, 16, seed=start)


@at_all_levels
@pytest.mark.parametrize(("window", "start"), [(4, 130), (70, 196), (70, 198), (3, 257)])
def test_committed_keys_that_only_some_branches_see(level: str, window: int, start: int) -> None:
    """A deep row has left a block of keys behind that a shallow row after it still sees."""
    shape = replace(SHAPES["gemma bfloat16"], positions=320, window=window)
    for seed in range(4):
        check_tree(shape, level, start, 12, seed=seed)


@at_all_levels
def test_a_tree_that_is_a_chain(level: str) -> None:
    shape = SHAPES["gemma bfloat16"]
    tokens = random_tokens(shape, 30, 1)
    subject = build(shape, pool(level, 2)).open(0, 1)
    chain = subject.feed(0, 0, tokens)
    assert same_bits(subject.feed(1, 0, tokens, list(range(-1, 29))), chain)


@pytest.mark.parametrize("level", LEVELS[:1])
def test_branches_do_not_see_each_other(level: str) -> None:
    """Also a poisoned branch stays alone, before and after a move past it."""
    shape = replace(SHAPES["llama float32"], tied=False, poisoned=True)
    prompt, (a, b, c) = random_tokens(shape, 10, 1), random_tokens(shape, 3, 2)
    plain = build(shape, pool(level)).open(0)
    plain.feed(0, 0, prompt)
    want = plain.feed(0, 10, [a, b, c])
    subject = build(shape, pool(level, 2)).open(0)
    subject.feed(0, 0, prompt)
    got = subject.feed(0, 10, [0, a, 1, b], [-1, -1, 0, 1])
    assert same_bits(got[[1, 3]], want[:2])
    assert not np.any(np.isfinite(got[[0, 2]]))
    subject.decoder.move(0, np.array([11, 13], np.int32), 10)
    assert same_bits(subject.feed(0, 12, [c]), want[2:])


@at_all_levels
def test_moving_nothing_or_in_place_changes_nothing(level: str) -> None:
    shape = SHAPES["gemma bfloat16"]
    tokens = random_tokens(shape, 21, 1)
    subject = build(shape, pool(level)).open(0, 1)
    want = subject.feed(0, 0, tokens)
    subject.feed(1, 0, tokens[:20])
    subject.decoder.move(1, np.zeros(0, np.int32), 5)
    subject.decoder.move(1, np.arange(7, 20, dtype=np.int32), 7)
    assert same_bits(subject.feed(1, 20, tokens[20:]), want[20:])
