"""A sequence's bits depend on its own tokens: not on batch company, chunks, threads, slots or their earlier owners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.decoders import (
    GEMMA,
    LLAMA,
    QWEN2,
    QWEN3,
    Feed,
    Shape,
    Subject,
    Weights,
    build,
    decoder_arguments,
    random_tokens,
    with_form,
)
from tests.kernels.native import LEVELS, THREADS, kernels, pool
from tests.kernels.random_weights import Floats
from tests.kernels.recipes import named, same_bits

SHAPES: dict[str, Shape] = {
    "llama float32": with_form(LLAMA, named("float32")),
    "gemma bfloat16": with_form(GEMMA, named("bfloat16")),
    "qwen3 int8-bfloat16": with_form(QWEN3, named("int8-bfloat16")),
    "gemma int8": with_form(GEMMA, named("int8")),
    "qwen2 int8": with_form(QWEN2, named("int8")),
    "llama Q4_1-bfloat16": with_form(LLAMA, named("Q4_1-bfloat16")),
    "qwen2 Q8_0-int8": with_form(QWEN2, named("Q8_0-int8")),
    "qwen2 float32, bfloat16 keys": replace(QWEN2, kv_dtype="bfloat16"),
}
LENGTH = 45

for_all = pytest.mark.parametrize("name", SHAPES)
at_all_levels = pytest.mark.parametrize("level", LEVELS)


def expected(shape: Shape, level: str, tokens: list[int]) -> Floats:
    """The same tokens one a step, alone, on one thread, in a fresh decoder."""
    return build(shape, pool(level, 1)).open(0).plain(0, tokens)


@at_all_levels
@for_all
def test_chunks_and_threads(level: str, name: str) -> None:
    shape = SHAPES[name]
    tokens = random_tokens(shape, LENGTH, 1)
    want = expected(shape, level, tokens)
    for threads in THREADS:
        subject = build(shape, pool(level, threads)).open(0)
        for sizes in ((LENGTH,), (7,), (2, 1, 5), (33, 1, 1, 16)):
            assert same_bits(subject.chunks(0, tokens, sizes), want), f"{threads} threads, pieces of {sizes}"
            subject.reset(0)


@at_all_levels
@for_all
def test_batch_company(level: str, name: str) -> None:
    """Ragged neighbours before and after, in any order of slots, each at a length of its own."""
    shape = replace(SHAPES[name], slots=5)
    sequences = [random_tokens(shape, LENGTH, seed) for seed in range(5)]
    want = [expected(shape, level, tokens) for tokens in sequences]
    rng = np.random.default_rng(1)
    subject = build(shape, pool(level, 2)).open(*range(5))
    done = [0] * 5
    while min(done) < LENGTH:
        feeds = []
        for slot in rng.permutation(5)[: rng.integers(1, 6)].tolist():
            count = min(int(rng.choice([1, 1, 2, 6, 17])), LENGTH - done[slot])
            if count:
                feeds.append(Feed(slot, done[slot], sequences[slot][done[slot] : done[slot] + count]))
        got, row = subject.step(*feeds).logits_MV if feeds else np.empty((0, shape.vocab), np.float32), 0
        for feed in feeds:
            end = feed.start + len(feed.tokens)
            assert same_bits(got[row : row + len(feed.tokens)], want[feed.slot][feed.start : end])
            done[feed.slot], row = end, row + len(feed.tokens)


@at_all_levels
@for_all
def test_rejected_drafts_leave_no_trace(level: str, name: str) -> None:
    """Every round feeds drafts that are dropped, then goes on from the committed length."""
    shape = SHAPES[name]
    tokens = random_tokens(shape, LENGTH, 1)
    want = expected(shape, level, tokens)
    subject = build(shape, pool(level, 2)).open(1)
    for start in range(0, LENGTH - 1, 3):
        drafts = random_tokens(shape, 1 + start % 8, start)
        kept = 1 + start % 3
        got = subject.feed(1, start, [*tokens[start : start + kept], *drafts])
        assert same_bits(got[:kept], want[start : start + kept])
        if kept < 3:
            subject.feed(1, start + kept, tokens[start + kept : start + 3])


@at_all_levels
@for_all
def test_slots_and_their_earlier_owners(level: str, name: str) -> None:
    shape = SHAPES[name]
    tokens = random_tokens(shape, LENGTH, 1)
    want = expected(shape, level, tokens)
    subject = build(shape, pool(level, 2)).open(0, 1, 2)
    for slot in range(3):
        subject.feed(slot, 0, random_tokens(shape, shape.positions, slot))
        subject.reset(slot)
        assert same_bits(subject.feed(slot, 0, tokens), want)
        assert same_bits(subject.feed(slot, 0, tokens), want), "the same again over itself"


@at_all_levels
@for_all
def test_wanted_rows_and_states(level: str, name: str) -> None:
    """Results of a row do not depend on which other rows are asked for, nor its states on chunks."""
    shape = SHAPES[name]
    tokens = random_tokens(shape, LENGTH, 1)
    layers = range(len(shape.local) + 1)
    subject = build(shape, pool(level, 2)).open(0, 1)
    full = subject.step(Feed(0, 0, tokens), layers=layers)
    for wanted in ([LENGTH - 1], [3, 40, 12], list(range(20, LENGTH)), [0, 0]):
        some = subject.step(Feed(0, 0, tokens), wanted=wanted, layers=layers)
        assert same_bits(some.logits_MV, full.logits_MV[wanted])
        assert same_bits(some.hidden_MD, full.hidden_MD[wanted])
        assert same_bits(some.states_LND, full.states_LND)
    for start in range(0, LENGTH, 9):
        part = subject.step(Feed(1, start, tokens[start : start + 9]), layers=layers)
        assert same_bits(part.hidden_MD, full.hidden_MD[start : start + 9])
        assert same_bits(part.states_LND, full.states_LND[:, start : start + 9])


@at_all_levels
@for_all
def test_a_poisoned_sequence_keeps_to_itself(level: str, name: str) -> None:
    """NaN and infinity: beside a sequence, before it in its slot, and in drafts that were dropped from it."""
    shape = replace(SHAPES[name], tied=False, poisoned=True)
    tokens = random_tokens(shape, LENGTH, 1)
    want = expected(shape, level, tokens)
    assert np.all(np.isfinite(want))
    subject = build(shape, pool(level, 2)).open(0, 1, 2)
    bad = [0, 5, 1, 0, 1] * 18
    beside = subject.step(Feed(2, 0, bad), Feed(0, 0, tokens), Feed(1, 0, bad[:7])).logits_MV
    assert not np.all(np.isfinite(beside[:90]))
    assert same_bits(beside[90 : 90 + LENGTH], want)
    subject.reset(2)
    assert same_bits(subject.plain(2, tokens), want), "after a poisoned owner"
    for start in range(0, LENGTH, 5):
        good = tokens[start : start + 5]
        got = subject.feed(1, start, [*good, *bad[:20]])
        assert same_bits(got[:5], want[start : start + 5]), "before poisoned drafts"
        assert same_bits(subject.feed(1, start, good), want[start : start + 5]), "over poisoned drafts"


@at_all_levels
@pytest.mark.parametrize("forms", [("int8", "int8"), ("bfloat16", "Q4_1-bfloat16"), ("bfloat16", "Q8_0-int8")])
def test_layers_of_different_widths_and_formats(level: str, forms: tuple[str, str]) -> None:
    """What one layer leaves behind the inputs of a narrower one is not seen there."""
    wide = with_form(replace(LLAMA, inner=160, tied=False), named(forms[0]))
    shape = with_form(replace(wide, inner=96), named(forms[1]))
    decoder = _mixed(wide, shape, pool(level, 2))
    subject = Subject(decoder, shape).open(0, 1)
    tokens = random_tokens(shape, 20, 1)
    first = subject.feed(0, 0, tokens)
    assert same_bits(subject.feed(0, 0, tokens), first), "the same again"
    assert same_bits(subject.plain(1, tokens), first), "one by one"


def _mixed(first: Shape, second: Shape, threads: kernels.Pool) -> kernels.Decoder:
    one, two = Weights(kernels, first, threads), Weights(kernels, second, threads)
    decoder = kernels.Decoder(threads, **decoder_arguments(replace(second, local=(False, False))), **two.ends())
    decoder.add_layer(local=False, **one.layer())
    decoder.add_layer(local=False, **two.layer())
    return decoder
