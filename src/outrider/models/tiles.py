"""Which rows of a step share one attention product. Pure bookkeeping: no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

_SMALL = 16
"""Spans of at most this many rows are worth joining with other sequences' spans."""


@dataclass(frozen=True)
class Span:
    """Consecutive new tokens of one sequence: where they sit among the packed rows and in their slot."""

    row: int
    slot: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    def part(self, first: int, end: int) -> Span:
        """The positions ``first <= p < end`` of this span."""
        return replace(self, row=self.row + first - self.start, start=first, count=end - first)


@dataclass(frozen=True)
class TileRule:
    """The product shapes under which a row's attention has bits of its own, found by trying (see ``tile_probe``).

    Free: any number of rows from ``min_rows`` to ``max_rows``, keys padded to any multiple of ``key_step``.
    Fixed: always ``max_rows`` rows, and a key length that is a function of the row's own position.
    """

    min_rows: int
    max_rows: int
    key_step: int
    fixed: bool = False
    deterministic: bool = True

    def padded_keys(self, end: int) -> int:
        """Key positions of a product whose last row sits at ``end - 1``."""
        if self.fixed:
            return self.key_step << max(0, (-(-end // self.key_step) - 1).bit_length())
        return -(-end // self.key_step) * self.key_step

    def padded_rows(self, rows: int) -> int:
        return self.max_rows if self.fixed else max(rows, self.min_rows)

    def first_key(self, start: int, window: int | None) -> int:
        """Where a product may begin to read keys: later than 0 only where the window hides everything before."""
        if window is None or self.fixed:
            return 0
        return max(0, start - window + 1) // self.key_step * self.key_step


@dataclass(frozen=True)
class Tile:
    """Spans of different slots computed as one batch: slots ``first_slot .. end_slot``, ``rows`` rows each."""

    spans: tuple[Span, ...]
    rows: int
    keys: int

    @property
    def first_slot(self) -> int:
        return self.spans[0].slot

    @property
    def end_slot(self) -> int:
        return self.spans[-1].slot + 1

    @property
    def batch(self) -> int:
        return self.end_slot - self.first_slot

    @property
    def start(self) -> int:
        return min(span.start for span in self.spans)


def plan_tiles(spans: Sequence[Span], rule: TileRule) -> list[Tile]:
    """Cut spans into pieces and join small pieces of neighbouring slots."""
    pieces = [piece for span in spans for piece in _pieces(span, rule)]
    if len(pieces) == 1:
        return [_tile(pieces, rule)]
    ordered = sorted(pieces, key=lambda piece: (_class(piece, rule), piece.slot, piece.start))
    return [
        _tile(run, rule)
        for (rows, _), group in groupby(ordered, key=lambda piece: _class(piece, rule))
        for run in (_runs(group) if rows <= _SMALL else ([piece] for piece in group))
    ]


def _pieces(span: Span, rule: TileRule) -> Iterator[Span]:
    first = span.start
    while first < span.end:
        end = min(span.end, first + rule.max_rows)
        if rule.fixed:
            # Rows on either side of a key-length boundary go through different products.
            end = min(end, rule.padded_keys(first + 1))
        yield span.part(first, end)
        first = end


def _class(piece: Span, rule: TileRule) -> tuple[int, int]:
    """Pieces of one class waste little when padded to a common size: at most half of rows and of keys."""
    if rule.fixed:
        return rule.max_rows, rule.padded_keys(piece.end)
    return 1 << (piece.count - 1).bit_length(), 1 << (-(-piece.end // rule.key_step) - 1).bit_length()


def _runs(pieces: Iterable[Span]) -> Iterator[list[Span]]:
    """Pieces of rising slots, with gaps only while at least half of the slots between are in use."""
    run: list[Span] = []
    for piece in pieces:
        apart = run and (piece.slot <= run[-1].slot or piece.slot - run[0].slot + 1 > 2 * (len(run) + 1))
        if apart:
            yield run
            run = []
        run.append(piece)
    yield run


def _tile(spans: Sequence[Span], rule: TileRule) -> Tile:
    rows = rule.padded_rows(max(span.count for span in spans))
    return Tile(tuple(spans), rows, rule.padded_keys(max(span.end for span in spans)))
