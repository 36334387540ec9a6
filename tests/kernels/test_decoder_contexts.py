"""Contexts of several blocks of keys: the same bits whatever the chunks, the window's place and the company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.decoders import GEMMA, LLAMA, Feed, Shape, build, random_tokens, with_form
from tests.kernels.native import LEVELS, THREADS, pool
from tests.kernels.random_weights import Floats
from tests.kernels.recipes import named, same_bits

# Blocks of 16 to 512 keys have borders next to these.
LENGTHS = [15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 130, 255, 256, 257, 258, 511, 512, 513, 514]
LONGEST = 520

_LONG = Shape(positions=LONGEST, slots=2, local=(True, False), inner=32)
_LONG_GEMMA = replace(GEMMA, positions=LONGEST, slots=2, local=(True, False), inner=32)
SHAPES: dict[str, Shape] = {
    "float32, window 100": with_form(replace(_LONG_GEMMA, window=100), named("float32")),
    "bfloat16, window 128": with_form(replace(_LONG_GEMMA, window=128), named("bfloat16")),
    "int8, window 1": with_form(replace(_LONG, window=1), named("int8")),
    "bfloat16, window 300": with_form(replace(_LONG, window=300, head_dim=6), named("bfloat16")),
}

for_all = pytest.mark.parametrize("name", SHAPES)
at_all_levels = pytest.mark.parametrize("level", LEVELS)


def by_ones(shape: Shape, level: str) -> tuple[list[int], Floats]:
    """A long sequence and its logits, decoded a token at a time on one thread."""
    tokens = random_tokens(shape, LONGEST, 1)
    return tokens, build(shape, pool(level, 1)).open(0).plain(0, tokens)


@at_all_levels
@for_all
def test_chunks_of_a_long_prompt(level: str, name: str) -> None:
    shape = SHAPES[name]
    tokens, want = by_ones(shape, level)
    for threads, sizes in zip((*THREADS, 2, 2), ((LONGEST,), (7,), (64,), (300, 1), (129, 2, 40)), strict=True):
        subject = build(shape, pool(level, threads)).open(1)
        assert same_bits(subject.chunks(1, tokens, sizes), want), f"{threads} threads, pieces of {sizes}"


@at_all_levels
@for_all
def test_one_feed_up_to_a_border_then_decoding(level: str, name: str) -> None:
    shape = SHAPES[name]
    tokens, want = by_ones(shape, level)
    subject = build(shape, pool(level, 2)).open(0, 1)
    for length in LENGTHS:
        assert same_bits(subject.feed(0, 0, tokens[:length]), want[:length]), f"prompt of {length}"
        assert same_bits(subject.feed(0, length, tokens[length : length + 5]), want[length : length + 5])
        subject.reset(0)


@at_all_levels
@for_all
def test_long_and_short_company(level: str, name: str) -> None:
    """One slot decodes at every length while the other feeds prompts of other lengths."""
    shape = SHAPES[name]
    tokens, want = by_ones(shape, level)
    other = random_tokens(shape, LONGEST, 2)
    subject = build(shape, pool(level, 2)).open(0, 1)
    subject.feed(0, 0, tokens[:100])
    start = 100
    for i, length in enumerate(LENGTHS):
        count = 1 + i * 5 % 9
        got = subject.step(Feed(1, 0, other[:length]), Feed(0, start, tokens[start : start + count])).logits_MV
        assert same_bits(got[length:], want[start : start + count])
        start += count


@at_all_levels
@pytest.mark.parametrize("form", ["float32", "bfloat16"])
def test_what_left_the_window_is_forgotten(level: str, form: str) -> None:
    """In a decoder whose layers are all local, a row cannot see further back than all windows in a row."""
    shape = with_form(replace(LLAMA, local=(True, True), window=50, positions=400, slots=2), named(form))
    tokens, others = random_tokens(shape, 400, 1), random_tokens(shape, 400, 2)
    reach = 2 * (shape.window - 1)
    subject = build(shape, pool(level, 2)).open(0, 1)
    for end in (128, 129, 200, 256, 257, 300):
        near = end - 1 - reach
        kept = subject.feed(0, 0, tokens[:end])[-1]
        assert np.array_equal(subject.feed(1, 0, [*others[:near], *tokens[near:end]])[-1], kept)
        assert not np.array_equal(subject.feed(1, 0, [*others[: near + 1], *tokens[near + 1 : end]])[-1], kept)


@at_all_levels
@pytest.mark.parametrize("form", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [100, 128, 300])
def test_poison_behind_the_window_and_beyond_the_end(level: str, form: str, length: int) -> None:
    """NaN keys share blocks with keys that are seen, but are not seen themselves."""
    local = with_form(replace(LLAMA, local=(True,), window=20, positions=400), named(form))
    shape = replace(local, tied=False, poisoned=True)
    tokens = random_tokens(shape, length + 40, 1)
    subject = build(shape, pool(level, 2)).open(0, 1)
    want = subject.feed(0, 0, tokens)
    subject.feed(1, 0, [*tokens[: length - 20], 0, *tokens[length - 19 : length]])
    after = subject.feed(1, length, [*tokens[length : length + 3], 1, 0])
    assert same_bits(after[:3], want[length : length + 3])
    assert same_bits(subject.feed(1, length, tokens[length:]), want[length:])
