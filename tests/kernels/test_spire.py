"""Steps of a SPIRe draft against the fp64 reference, and what a query sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import reference
from tests.kernels.native import LEVELS, THREADS, kernels, pool
from tests.kernels.random_weights import Floats
from tests.kernels.recipes import FORMATS, SETTINGS, Format, same_bits
from tests.kernels.spires import (
    ODD,
    SELF,
    SMALL,
    WIDE,
    Shape,
    Subject,
    Weights,
    build,
    build_reference,
    class_of,
    draft_arguments,
    states_of,
)

# Rounded inputs sometimes fall on the other side of a tie than in the reference; that costs a step of their type.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02, "int8": 0.06}

at_all_levels = pytest.mark.parametrize("level", LEVELS)


def assert_near(got: Floats, want: Floats, tolerance: float) -> None:
    """Logits relative to their size; root mean square and worst entry."""
    assert got.shape == want.shape
    error, size = got - want, np.sqrt(np.mean(want**2))
    assert np.sqrt(np.mean(error**2)) <= tolerance * size
    assert np.abs(error).max() <= 10 * tolerance * size


def play(shape: Shape, level: str, threads: int, rounds: int, seed: int) -> None:
    """Prompts, then rounds of drafts for some sequences, kept in part and remembered by target states."""
    rng = np.random.default_rng(seed)
    ours, theirs = build(shape, pool(level, threads)).open(), build_reference(shape).open()
    most = max(1, min(shape.ring - shape.window, 4))
    lengths = [0] * shape.slots
    for slot in range(shape.slots):
        lengths[slot] = int(rng.integers(0, 12))
        begin = max(0, lengths[slot] - shape.ring)
        for each in (ours, theirs):
            each.remember(slot, [*range(min(shape.sink, begin)), *range(begin, lengths[slot])])
    for turn in range(rounds):
        slots = rng.permutation(shape.slots)[: rng.integers(1, shape.slots + 1)].tolist()
        drafted = int(rng.integers(1, most + 1))
        for i in range(drafted):
            own = [(slot, lengths[slot] + i, int(rng.integers(0, shape.vocab))) for slot in slots]
            assert_near(ours.step(*own), theirs.step(*own), TOLERANCE[shape.form.activations])
        for slot in slots:
            kept = int(rng.integers(0, drafted + 1))
            for each in (ours, theirs):
                each.remember(slot, range(lengths[slot], lengths[slot] + kept), turn)
            lengths[slot] += kept


@at_all_levels
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_formats(level: str, form: Format) -> None:
    play(replace(SMALL, form=form), level, 2, 3, 1)


@at_all_levels
@pytest.mark.parametrize("shape", [SMALL, SELF, ODD, WIDE], ids=["small", "self", "odd", "wide"])
def test_rounds_around_the_ring(level: str, shape: Shape) -> None:
    """Some thirty positions: a ring of ten is filled three times, with drafts rejected everywhere."""
    play(shape, level, 2, 16, 2)


@at_all_levels
@settings(SETTINGS, max_examples=8)
@given(data=st.data(), threads=st.sampled_from(THREADS))
def test_random_shapes(level: str, data: st.DataObject, threads: int) -> None:
    kv_heads, window = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([0, 1, 2, 7, 31]))
    shape = Shape(
        vocab=data.draw(st.integers(1, 70)),
        draft_vocab=data.draw(st.integers(1, 70)),
        hidden=data.draw(st.integers(2, 70)),
        heads=kv_heads * data.draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=2 * data.draw(st.integers(1, 40)),
        inner=data.draw(st.integers(1, 90)),
        layers=data.draw(st.integers(1, 4)),
        window=window,
        sink=data.draw(st.integers(0, 4)),
        sees_itself=data.draw(st.booleans()),
        ring=window + data.draw(st.integers(1, 5)) if window else 96,
        seed=data.draw(st.integers(0, 10**6)),
    )
    play(shape, level, threads, 3, data.draw(st.integers(0, 10**6)))


@at_all_levels
@pytest.mark.parametrize(("window", "sink"), [(4, 2), (1, 0), (9, 1), (0, 0), (0, 3)])
def test_a_query_sees_the_sink_and_its_window(level: str, window: int, sink: int) -> None:
    """Bits change with a position's states when, and only when, it is in sight."""
    shape = replace(SMALL, window=window, sink=sink, ring=20, layers=1)
    subject, position = build(shape, pool(level)).open(), 11
    subject.remember(0, range(14))
    want = subject.step((0, position, 5))
    for other in range(14):
        subject.remember(0, range(14))
        subject.remember(0, [other], seed=1)
        seen = other < position and (other < sink or window == 0 or position - other <= window)
        assert same_bits(subject.step((0, position, 5)), want) != seen, f"position {other}"


@at_all_levels
def test_every_layer_sees_its_own_states(level: str) -> None:
    """And own positions are mixed from every depth: the next step's bits depend on all of it."""
    subject = build(SMALL, pool(level)).open()
    results = []
    for changed in range(SMALL.layers + 1):
        states_LD = states_of(SMALL, 0, 0)
        states_LD[changed:][:1] += 1
        subject.remember_states([0], [0], states_LD[:, None])
        results.append(subject.drafts(0, 1, [7, 8]).tobytes())
    assert len(set(results)) == SMALL.layers + 1


@at_all_levels
def test_a_position_among_its_own_keys(level: str) -> None:
    """Where nothing else is in sight, what is attended to is the position itself; its memory is another thing."""
    shape, apart = replace(SELF, sink=0), replace(SMALL, sink=0)
    subject, theirs = build(shape, pool(level, 2)).open(), build_reference(shape).open()
    got = subject.drafts(0, 0, [9, 9])
    assert_near(got, theirs.drafts(0, 0, [9, 9]), TOLERANCE["float32"])
    assert not same_bits(got[:1], build(apart, pool(level)).open().step((0, 0, 9)))
    subject.remember(1, range(8))
    want = subject.step((1, 6, 9))
    for other in range(8):
        subject.remember(1, range(8))
        subject.remember(1, [other], seed=1)
        assert same_bits(subject.step((1, 6, 9)), want) != (other < 6), "its own place is written first"


@at_all_levels
def test_an_embedding_of_another_pool(level: str) -> None:
    """Is looked up, and not multiplied with."""
    ours, theirs = pool(level, 1), pool(level, 2)
    arguments = draft_arguments(SMALL) | Weights(kernels, SMALL, ours).ends()
    lent = Weights(kernels, SMALL, theirs).ends()["embedding"]
    subjects = []
    for embedding in (arguments["embedding"], lent):
        draft, weights = (
            class_of(kernels)(ours, **(arguments | {"embedding": embedding})),
            Weights(kernels, SMALL, ours),
        )
        for _ in range(SMALL.layers):
            draft.add_layer(**weights.layer())
        subjects.append(Subject(draft, SMALL).open())
    assert same_bits(*(subject.drafts(0, 0, [3, 4]) for subject in subjects))


@at_all_levels
def test_nothing_in_sight(level: str) -> None:
    """The first position, and one whose window holds nothing but what comes later, attend to zero."""
    shape = replace(SMALL, sink=0)
    subject, theirs = build(shape, pool(level, 2)).open(), build_reference(shape).open()
    want = subject.step((0, 0, 9))
    assert_near(want, theirs.step((0, 0, 9)), TOLERANCE["float32"])
    subject.remember(1, range(30, 36))
    assert same_bits(subject.step((1, 30, 9)), want), "only later ones"
    assert same_bits(subject.step((1, 50, 9)), want), "only ones too far back"
    assert not same_bits(subject.step((1, 36, 9)), want)


@at_all_levels
def test_rejected_drafts_leave_no_trace(level: str) -> None:
    """Also where a draft's entry was a committed position's that is out of sight."""
    shape = replace(SMALL, ring=SMALL.window + 4)
    clean, drafting = (build(shape, pool(level, 2)).open() for _ in range(2))
    for subject in (clean, drafting):
        subject.remember(0, range(8))
    for start in range(8, 60, 2):
        drafting.drafts(0, start, [start % 50, 1, 2, 3])
        for subject in (clean, drafting):
            subject.remember(0, [start, start + 1])
        own = (0, start + 2, start % 7)
        assert same_bits(drafting.step(own), clean.step(own)), f"after {start}"


@pytest.mark.skipif(kernels is reference, reason="the reference loses nothing")
@at_all_levels
def test_an_entry_holds_its_latest_position(level: str) -> None:
    """What a full ring lost is not seen, not even as what replaced it."""
    shape = replace(SMALL, window=0, sink=1, ring=10)
    lost, never = build(shape, pool(level)).open(), build(shape, pool(level)).open()
    lost.remember(0, range(9))
    lost.remember(0, [14, 17])
    never.remember(0, [0, 1, 2, 3, 5, 6, 8])
    assert same_bits(lost.step((0, 9, 3)), never.step((0, 9, 3)))


@at_all_levels
@pytest.mark.parametrize("threads", THREADS)
def test_of_one_call_the_later_row_stays(level: str, threads: int) -> None:
    once, twice = (build(SMALL, pool(level, threads)).open() for _ in range(2))
    once.remember(0, [0, *range(20, 30)])
    twice.remember(0, range(30))
    twice.remember_states([0, 0], [29, 29], np.stack([states_of(SMALL, 0, 29, seed) for seed in (1, 0)], 1))
    assert same_bits(once.step((0, 30, 3)), twice.step((0, 30, 3)))


@at_all_levels
def test_a_closed_slot_is_forgotten(level: str) -> None:
    subject = build(SMALL, pool(level)).open()
    want = subject.step((1, 12, 4))
    subject.remember(0, range(12))
    subject.remember(2, range(12))
    kept = subject.step((2, 12, 4))
    subject.draft.close(0)
    subject.draft.open(0)
    assert same_bits(subject.step((0, 12, 4)), want)
    assert same_bits(subject.step((2, 12, 4)), kept), "others keep theirs"


@at_all_levels
def test_nbytes_counts_what_is_multiplied(level: str) -> None:
    sizes = {name: build(shape, pool(level)).draft.nbytes for name, shape in _variants().items()}
    assert sizes["small"] == sizes["vocab"], "rows are looked up"
    assert sizes["head"] - sizes["small"] >= 400 * SMALL.hidden * 4
    layer = (2 * 64 + 64) * 32 + 3 * 64 * 32
    assert sizes["small"] - sizes["layers"] >= layer * 4


def _variants() -> dict[str, Shape]:
    return {
        "small": SMALL,
        "vocab": replace(SMALL, vocab=500),
        "head": replace(SMALL, draft_vocab=SMALL.draft_vocab + 500),
        "layers": replace(SMALL, layers=SMALL.layers - 1),
    }


@at_all_levels
def test_an_empty_call(level: str) -> None:
    subject = build(SMALL, pool(level)).open()
    assert subject.step().shape == (0, SMALL.draft_vocab)
    subject.remember_states([], [], np.zeros((SMALL.layers, 0, SMALL.hidden), np.float32))
