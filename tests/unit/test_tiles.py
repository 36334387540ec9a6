"""Tiles: every new row is in exactly one, at its own position, whatever is joined with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.models.tiles import Span, Tile, TileRule, plan_tiles

FREE = TileRule(min_rows=2, max_rows=64, key_step=192)
FIXED = TileRule(min_rows=8, max_rows=8, key_step=128, fixed=True)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    slots = draw(st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True))
    row, result = 0, []
    for slot in slots:
        count = draw(st.one_of(st.integers(1, 12), st.integers(1, 150)))
        result.append(Span(row, slot, draw(st.integers(0, 600)), count))
        row += count
    return result


@pytest.mark.parametrize("rule", [FREE, FIXED])
@given(spans=spans())
def test_tiles_cover_every_row_once(rule: TileRule, spans: list[Span]) -> None:
    wanted = sorted((s.row + i, s.slot, s.start + i) for s in spans for i in range(s.count))
    tiles = plan_tiles(spans, rule)
    assert sorted((s.row + i, s.slot, s.start + i) for t in tiles for s in t.spans for i in range(s.count)) == wanted
    for tile in tiles:
        slots = [span.slot for span in tile.spans]
        assert slots == sorted(set(slots))
        assert tile.batch <= 2 * len(slots)
        assert all(span.count <= tile.rows and span.end <= tile.keys for span in tile.spans)


@given(spans=spans())
def test_fixed_tiles_give_a_row_the_shape_of_its_position(spans: list[Span]) -> None:
    for tile in plan_tiles(spans, FIXED):
        assert tile.rows == 8
        for span in tile.spans:
            assert {FIXED.padded_keys(position + 1) for position in range(span.start, span.end)} == {tile.keys}


@given(spans=spans(), window=st.integers(1, 300))
def test_no_visible_key_is_skipped(spans: list[Span], window: int) -> None:
    for tile in plan_tiles(spans, FREE):
        first = FREE.first_key(tile.start, window)
        assert first % FREE.key_step == 0
        assert all(first <= max(0, span.start - window + 1) for span in tile.spans)


def test_key_lengths() -> None:
    assert [FREE.padded_keys(end) for end in (1, 192, 193, 384, 385)] == [192, 192, 384, 384, 576]
    assert [FIXED.padded_keys(end) for end in (1, 128, 129, 256, 257, 513)] == [128, 128, 256, 256, 512, 1024]


def test_neighbouring_single_rows_become_one_batch() -> None:
    assert plan_tiles([Span(i, i, 10 + i, 1) for i in range(8)], FREE) == [
        Tile(tuple(Span(i, i, 10 + i, 1) for i in range(8)), rows=2, keys=192)
    ]


def test_a_long_prompt_and_single_rows_stay_apart() -> None:
    tiles = plan_tiles([Span(0, 0, 50, 1), Span(1, 1, 60, 1), Span(2, 2, 0, 130)], FREE)
    assert sorted((len(tile.spans), tile.rows) for tile in tiles) == [(1, 2), (1, 64), (1, 64), (2, 2)]
