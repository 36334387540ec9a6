"""Prompt lookup: the incremental index against a plain rescan, and what is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.draft.ngram import NgramDrafter, NgramIndex, copy_on
from outrider.errors import ConfigError
from outrider.testing import StubSequence
from outrider.types import Offer

if TYPE_CHECKING:
    from collections.abc import Sequence


def _rescan(tokens: Sequence[int], shortest: int, longest: int) -> tuple[int, int] | None:
    """The definition: longest suffix first, then the latest earlier occurrence with a token after it; and how many
    tokens before that are the last ones of the text, up to sixteen."""
    text = list(tokens)
    for size in range(longest, shortest - 1, -1):
        for at in range(len(text) - 1, size - 1, -1):
            if len(text) >= size and text[at - size : at] == text[-size:]:
                same = [n for n in range(1, min(16, at) + 1) if text[at - n : at] == text[-n:]]
                return at, max(same)
    return None


@given(
    chunks=st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=1, max_size=8),
    sizes=st.tuples(st.integers(1, 4), st.integers(0, 3)),
)
def test_the_index_equals_a_rescan(chunks: list[list[int]], sizes: tuple[int, int]) -> None:
    shortest, longest = sizes[0], sizes[0] + sizes[1]
    index, tokens = NgramIndex(shortest, longest), [0]
    for chunk in chunks:
        tokens += chunk
        index.extend(tokens)
        assert index.match(tokens) == _rescan(tokens, shortest, longest)


@pytest.mark.parametrize(("same", "grade"), [(1, 1), (2, 2), (3, 3), (5, 4), (9, 8), (40, 16)])
def test_an_offer_is_graded_by_how_much_is_the_same(same: int, grade: int) -> None:
    drafter, repeated = NgramDrafter(1, 3), list(range(100, 100 + same))
    sequence = StubSequence(0, [1, *repeated, 2, 3, *repeated])
    drafter.open(sequence)
    assert drafter.offers(sequence) == (Offer("ngram", grade),)
    assert drafter.propose([sequence], [2])[0].tokens == (2, 3)
    fresh = StubSequence(1, [1, 2, 3])
    drafter.open(fresh)
    assert drafter.offers(fresh) == ()


@given(tokens=st.lists(st.integers(0, 9), min_size=1, max_size=12), start=st.integers(0, 11), count=st.integers(0, 30))
def test_a_copy_goes_on_into_itself(tokens: list[int], start: int, count: int) -> None:
    start = min(start, len(tokens) - 1)
    grown = list(tokens)
    for _ in range(count):
        grown.append(grown[start + len(grown) - len(tokens)])
    assert list(copy_on(tokens, start, count)) == grown[len(tokens) :]


def _propose(tokens: list[int], budget: int, shortest: int = 1, longest: int = 3) -> tuple[int, ...]:
    drafter, sequence = NgramDrafter(shortest, longest), StubSequence(0, tokens)
    drafter.open(sequence)
    draft = drafter.propose([sequence], [budget])[0]
    assert draft.logq_KV is None
    return draft.tokens


@pytest.mark.parametrize(
    ("tokens", "budget", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 2, (3, 4)),
        ([1, 2, 3, 4, 1, 2], 3, (3, 4, 1)),
        ([1, 2, 1, 2, 1, 2], 5, (1, 2, 1, 2, 1)),
        ([7, 7], 4, (7, 7, 7, 7)),
        ([5, 1, 8, 1, 9, 1], 2, (9, 1)),
        ([5, 1, 8, 2, 1, 9, 5, 1], 1, (8,)),
        ([1, 2, 3], 4, ()),
        ([1], 4, ()),
        ([1, 2, 1, 2], 0, ()),
    ],
    ids=["copy", "to the end", "period two", "one token", "most recent", "longest first", "new", "short", "budget 0"],
)
def test_what_is_copied(tokens: list[int], budget: int, expected: tuple[int, ...]) -> None:
    assert _propose(tokens, budget) == expected


def test_short_matches_can_be_excluded() -> None:
    assert _propose([1, 2, 3, 2], 2, shortest=2) == ()
    assert _propose([1, 2, 3, 1, 2], 2, shortest=2) == (3, 1)


def test_only_committed_tokens_are_learnt() -> None:
    drafter, sequence = NgramDrafter(1, 2), StubSequence(0, [1, 2, 1])
    drafter.open(sequence)
    assert drafter.propose([sequence], [3])[0].tokens == (2, 1, 2)
    sequence.append([5, 2])
    assert drafter.propose([sequence], [3])[0].tokens == (1, 5, 2)


def test_a_long_request_leaves_nothing_to_the_next() -> None:
    drafter = NgramDrafter()
    first, second = StubSequence(4, [1, 2, 3] * 50), StubSequence(4, [1, 2])
    drafter.open(first)
    assert drafter.propose([first], [2])[0].tokens == (1, 2)
    drafter.close(4)
    assert drafter._indexes == {}
    drafter.open(second)
    assert drafter.propose([second], [2])[0].tokens == ()


def test_a_round_reads_only_what_is_new() -> None:
    class Counted(list[int]):
        read = 0

        def __getitem__(self, key: slice | int) -> list[int]:  # type: ignore[override]
            got = super().__getitem__(key)
            Counted.read += len(got) if isinstance(got, list) else 1
            return got  # type: ignore[return-value]

    drafter, sequence = NgramDrafter(1, 3), StubSequence(0, [])
    sequence.tokens = Counted([i * i % 97 for i in range(5000)])
    drafter.open(sequence)
    drafter.sync([sequence])
    Counted.read = 0
    for token in range(10):
        sequence.append([token])
        drafter.propose([sequence], [5])
    assert Counted.read < 10 * 20


@pytest.mark.parametrize("sizes", [(0, 3), (4, 3), (-1, 1)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"prompt_lookup_min={sizes[0]} and prompt_lookup_max={sizes[1]}"):
        NgramDrafter(*sizes)
