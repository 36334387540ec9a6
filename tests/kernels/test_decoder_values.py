"""Whole decoder steps against the fp64 reference: every family, ragged feeds, windows, trees, states of layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.kernels.decoders import (
    FAMILIES,
    GEMMA,
    LLAMA,
    Feed,
    Out,
    Shape,
    Subject,
    build,
    build_reference,
    random_tokens,
    with_form,
)
from tests.kernels.native import LEVELS, THREADS, pool
from tests.kernels.recipes import FORMATS, SETTINGS, Format

# Rounded inputs sometimes fall on the other side of a tie than in the reference; that costs a step of their type.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02, "int8": 0.06}


def assert_near(got: Out, want: Out, tolerance: float) -> None:
    """Logits, hidden states and layers' states, each relative to its size; root mean square and worst entry."""
    for name in ("logits_MV", "hidden_MD", "states_LND"):
        ours: NDArray[np.float32] = getattr(got, name)
        theirs: NDArray[np.float32] = getattr(want, name)
        assert ours.shape == theirs.shape
        if not theirs.size:
            continue
        error, size = ours - theirs, np.sqrt(np.mean(theirs**2))
        assert np.sqrt(np.mean(error**2)) <= tolerance * size, name
        assert np.abs(error).max() <= 10 * tolerance * size, name


def tolerance_of(shape: Shape) -> float:
    exact = shape.form.activations == "float32" and shape.kv_dtype == "bfloat16"
    return TOLERANCE["bfloat16" if exact else shape.form.activations]


def pair(shape: Shape, level: str, threads: int) -> tuple[Subject, Subject]:
    """The module's decoder and the reference's, all slots open."""
    slots = range(shape.slots)
    return build(shape, pool(level, threads)).open(*slots), build_reference(shape).open(*slots)


def play(subjects: tuple[Subject, Subject], *feeds: Feed, wanted: list[int] | None = None) -> None:
    """The same step on both, compared."""
    got, want = (each.step(*feeds, wanted=wanted, layers=range(len(each.shape.local) + 1)) for each in subjects)
    assert_near(got, want, tolerance_of(subjects[0].shape))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_and_formats(level: str, form: Format, family: str) -> None:
    shape = with_form(FAMILIES[family], form)
    subjects = pair(shape, level, 2)
    first = Feed(0, 0, random_tokens(shape, 20, 1)), Feed(2, 0, random_tokens(shape, 3, 2))
    play(subjects, *first, wanted=[22, 0, 19, 5])
    play(subjects, Feed(2, 3, random_tokens(shape, 1, 3)), Feed(0, 20, random_tokens(shape, 5, 4)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
@settings(SETTINGS, max_examples=25)
@given(data=st.data(), threads=st.sampled_from(THREADS))
def test_random_shapes(level: str, kv_dtype: str, data: st.DataObject, threads: int) -> None:
    kv_heads = data.draw(st.integers(1, 3))
    shape = Shape(
        kv_dtype=kv_dtype,  # type: ignore[arg-type]
        vocab=data.draw(st.integers(3, 70)),
        hidden=data.draw(st.integers(2, 70)),
        heads=kv_heads * data.draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=2 * data.draw(st.integers(1, 40)),
        inner=data.draw(st.integers(1, 90)),
        local=tuple(data.draw(st.lists(st.booleans(), min_size=1, max_size=3))),
        window=data.draw(st.sampled_from([0, 1, 2, 5, 16, 31])),
        bias=data.draw(st.booleans()),
        qk_norm=data.draw(st.booleans()),
        post_norms=data.draw(st.booleans()),
        gate=data.draw(st.sampled_from(["silu", "gelu_tanh"])),
        embedding_scale=data.draw(st.sampled_from([1.0, 7.3])),
        tied=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 10**6)),
    )
    subjects = pair(shape, level, threads)
    lengths = [0] * shape.slots
    for step in range(data.draw(st.integers(1, 4))):
        feeds = []
        for slot in data.draw(st.permutations(range(shape.slots)))[: data.draw(st.integers(1, shape.slots))]:
            start = data.draw(st.integers(max(0, lengths[slot] - 4), lengths[slot]))
            count = data.draw(st.integers(1, 12))
            parents = [data.draw(st.integers(-1, i - 1)) for i in range(count)] if data.draw(st.booleans()) else None
            feeds.append(Feed(slot, start, random_tokens(shape, count, step), parents))
            # A tree leaves keys of several branches behind; only its first row can be built upon.
            lengths[slot] = start + (count if parents is None else 1)
        play(subjects, *feeds)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("length", [127, 128, 129, 130, 255, 256, 257, 258, 513])
def test_long_contexts(level: str, length: int) -> None:
    """Across blocks of keys, with a window that starts inside one."""
    shape = replace(GEMMA, window=100, local=(True, False), positions=530, slots=1, hidden=16, inner=16)
    subjects = pair(shape, level, 2)
    tokens = random_tokens(shape, length + 4, length)
    play(subjects, Feed(0, 0, tokens[:length]), wanted=[0, length // 2, length - 2, length - 1])
    play(subjects, Feed(0, length, tokens[length : length + 1]))
    play(subjects, Feed(0, length + 1, tokens[length + 1 :]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("window", [1, 2, 7, 8, 9])
def test_a_local_layer_sees_its_window_and_no_more(level: str, window: int) -> None:
    """Bits do not change with tokens out of sight, and do with the farthest in sight."""
    shape = replace(LLAMA, local=(True,), window=window)
    tokens = random_tokens(shape, 20, 1)
    subject = build(shape, pool(level)).open(0, 1, 2)
    seen, unseen = tokens.copy(), tokens.copy()
    seen[20 - window] = 2 + (tokens[20 - window] - 1) % (shape.vocab - 2)
    unseen[20 - window - 1] = 2 + (tokens[20 - window - 1] - 1) % (shape.vocab - 2)
    last, last_seen, last_unseen = (subject.feed(i, 0, each)[-1] for i, each in enumerate((tokens, seen, unseen)))
    assert np.array_equal(last, last_unseen)
    assert not np.array_equal(last, last_seen)


@pytest.mark.parametrize("level", LEVELS)
def test_results_go_only_where_they_were_asked(level: str) -> None:
    """Optional results may be left out, also all rows; what is given is the same either way."""
    subject = build(GEMMA, pool(level)).open(0, 1)
    tokens = random_tokens(GEMMA, 9, 1)
    full = subject.step(Feed(0, 0, tokens), layers=[3, 0, 3])
    logits = np.empty((2, GEMMA.vocab), np.float32)
    ints = [np.array(values, np.int32) for values in (tokens, [1], [0], [9], [8, 2])]
    subject.decoder.step(*ints, logits)
    assert np.array_equal(logits, full.logits_MV[[8, 2]])
    assert np.array_equal(full.states_LND[0], full.states_LND[2])
    assert not np.array_equal(full.states_LND[0], full.states_LND[1])
    prefill = subject.step(Feed(1, 9, tokens), wanted=[], layers=[1])
    assert prefill.logits_MV.shape == (0, GEMMA.vocab)
    assert subject.step(Feed(1, 9, tokens), wanted=[4, 4]).logits_MV.shape == (2, GEMMA.vocab)


@pytest.mark.parametrize("level", LEVELS)
def test_a_tied_head_counts_once(level: str) -> None:
    tied, untied = (build(replace(LLAMA, tied=tied), pool(level)).decoder.nbytes for tied in (True, False))
    assert untied > tied
    assert untied - tied >= LLAMA.vocab * LLAMA.hidden * 4
