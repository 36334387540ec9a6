"""What a step costs by its rows: measured before, and corrected by every step."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 25, 33, 49, 65, 97, 129)
_BORDERS = tuple((low + high) / 2 for low, high in pairwise(_ROWS))
"""Between what is nearer to one of them and what is nearer to the next."""
_GUESSED_ROW = 0.04
"""Share of a one-row step that a row more costs, until it is measured."""
_SPEED_PACE, _SHAPE_PACE, _LARGEST_SURPRISE = 0.1, 0.02, 0.7
_REFRESH = 8


class StepCost:
    """Seconds of a step, drafting apart, by the rows of its pass: a shape over row counts, times the machine's speed.

    Steps are noisy and the machine's speed drifts. The speed is that of recent steps, whatever their rows; the shape
    learns what is left of a step beside it. So a machine that slows down while drafts are long does not make long
    drafts look dear, and what one row count costs beside another is learnt from steps of both.
    """

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        """``measured``: seconds by rows, at least of one row; other counts are interpolated. Without, the first step
        sets the scale."""
        known = dict(measured) if measured else {1: 1.0}
        self._known_scale = bool(measured)
        self._shape = [math.log(_interpolated(known, rows)) for rows in _ROWS]
        self._left = [0.0] * len(_ROWS)
        self._speed, self._seen = 0.0, 0
        self._table: list[float] = []
        self._least_rows: dict[int, float] = {}
        self._tabulate()

    def seconds(self, rows: int) -> float:
        """Expected seconds of a pass over so many rows."""
        return self._scale * self._relative(rows)

    def table(self, least: int, most: int) -> list[float]:
        """``seconds`` of every count from ``least`` to ``most``."""
        return [self._scale * self._relative(rows) for rows in range(least, most + 1)]

    def least_row(self, rows: int) -> float:
        """Least seconds of each row more that any number of them takes, beside a pass of ``rows``."""
        least = self._least_rows.get(rows)
        if least is None:
            # Beyond the table a row costs what those before it did on average.
            here, last = self._relative(rows), len(self._table) - 1
            more = [(self._table[count] - here) / (count - rows) for count in range(rows + 1, last + 1)]
            least = self._least_rows[rows] = min([self._table[last] / last, *more])
        return self._scale * least

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step that read no prompt."""
        if rows < 1 or seconds <= 0:
            return
        near = bisect_left(_BORDERS, rows)
        here = math.log(seconds / self.seconds(rows)) + self._speed + self._left[near]
        if not self._known_scale:
            self._known_scale, self._speed = True, here
        surprise = max(-_LARGEST_SURPRISE, min(_LARGEST_SURPRISE, here - self._speed))
        self._speed += _SPEED_PACE * surprise
        self._scale = math.exp(self._speed)
        # Towards what the speed does not explain: nothing, where this is the only count in use.
        self._left[near] += _SHAPE_PACE * ((1 - _SPEED_PACE) * surprise - self._left[near])
        self._seen += 1
        if self._seen % _REFRESH == 0:
            self._tabulate()

    def _relative(self, rows: int) -> float:
        if rows < len(self._table):
            return self._table[rows]
        return self._table[-1] * rows / (len(self._table) - 1)

    def _tabulate(self) -> None:
        shape = np.exp(np.add(self._shape, self._left))
        rows = np.arange(1, _ROWS[-1] + 1)
        # More rows never take less: where noise says so, drafting would look better than free.
        table = np.maximum.accumulate(np.interp(rows, _ROWS, shape))
        self._table = [0.0, *table.tolist()]
        self._least_rows.clear()
        self._scale = math.exp(self._speed)


def _interpolated(known: Mapping[int, float], rows: int) -> float:
    """Between the nearest known counts; beyond the last one as steeply as before it."""
    counts = sorted(known)
    if len(counts) == 1:
        return known[counts[0]] * (1 + _GUESSED_ROW * (rows - counts[0]))
    upper = next((i for i, count in enumerate(counts) if count >= rows), len(counts) - 1)
    low, high = counts[max(0, upper - 1)], counts[max(1, upper)]
    slope = (known[high] - known[low]) / (high - low)
    return max(known[low] + slope * (rows - low), 0.1 * known[low])
