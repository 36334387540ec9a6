"""What a step costs by its rows: measured before, and corrected by every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 25, 33, 49, 65, 97, 129)
_GUESSED_ROW = 0.04
"""Share of a one-row step that a row more costs, until it is measured."""
_GUESSED_STEP = 0.01
_PACE, _OWN_PACE, _LARGEST_SURPRISE = 0.2, 0.02, 0.4
_REFRESH = 8


class StepCost:
    """Seconds of a step, drafting apart, by the rows of its pass.

    Steps are noisy and the machine's speed drifts. So what a step took against what was expected moves the speed of all
    row counts soon, and only slowly the count it was seen at: a machine that slows down while drafts are long must not
    make long drafts look dear.
    """

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        """``measured``: seconds by rows, at least that of one row; other counts are interpolated."""
        known = dict(measured) if measured else {1: _GUESSED_STEP}
        self._logs = [math.log(_interpolated(known, rows)) for rows in _ROWS]
        self._seen = 0
        self._table: list[float] = []
        self._tabulate()

    def seconds(self, rows: int) -> float:
        """Expected seconds of a pass over so many rows."""
        if rows < len(self._table):
            return self._table[rows]
        return self._table[-1] * rows / (len(self._table) - 1)

    def table(self, least: int, most: int) -> list[float]:
        """``seconds`` of every count from ``least`` to ``most``."""
        return [*self._table[least : most + 1], *(self.seconds(rows) for rows in range(len(self._table), most + 1))]

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step that read no prompt."""
        if not 0 < rows <= _ROWS[-1] or seconds <= 0:
            return
        surprise = math.log(seconds / self.seconds(rows))
        surprise = max(-_LARGEST_SURPRISE, min(_LARGEST_SURPRISE, surprise))
        near = min(range(len(_ROWS)), key=lambda i: abs(_ROWS[i] - rows))
        self._logs = [each + _PACE * surprise for each in self._logs]
        self._logs[near] += _OWN_PACE * surprise
        self._seen += 1
        if self._seen % _REFRESH == 0:
            self._tabulate()

    def _tabulate(self) -> None:
        known = {rows: math.exp(log) for rows, log in zip(_ROWS, self._logs, strict=True)}
        table = [0.0, *(_interpolated(known, rows) for rows in range(1, _ROWS[-1] + 1))]
        for rows in range(2, len(table)):
            # More rows never take less: where noise says so, drafting would look better than free.
            table[rows] = max(table[rows], table[rows - 1])
        self._table = table


def _interpolated(known: Mapping[int, float], rows: int) -> float:
    """Between the nearest known counts; beyond the last one as steeply as before it."""
    counts = sorted(known)
    if len(counts) == 1:
        return known[counts[0]] * (1 + _GUESSED_ROW * (rows - counts[0]))
    upper = next((i for i, count in enumerate(counts) if count >= rows), len(counts) - 1)
    low, high = counts[max(0, upper - 1)], counts[max(1, upper)]
    slope = (known[high] - known[low]) / (high - low)
    return max(known[low] + slope * (rows - low), 0.1 * known[low])
