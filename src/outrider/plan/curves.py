"""What forward passes of a model took on a machine, as a function of their rows, context and batch.

A step packs rows of all its sequences into one pass, so that its price depends on the rows together, on the sequences
they belong to and on the keys that each has. Between measured points the price is linear.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.errors import ConfigError

SCHEMA = "outrider.curve/1"
MOST_ROWS = 64
"""Longest answer of ``seconds_by_rows``."""
_AXES = ("batches", "contexts", "rows")
_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))

Point = tuple[int, int, int]
"""Sequences of a step, tokens of context of each, and packed rows of all together."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a pass at ``seconds[i][j][n]``: batch i, context j, packed rows n; they never fall along an axis.

    Outside the grid batch and context are clamped, and rows go on in a straight line. Raises ValueError for tables that
    are none.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    seconds_BLN: tuple[tuple[tuple[float, ...], ...], ...]
    _corners: tuple[tuple[npt.NDArray[np.float64], ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _AXES:
            axis = getattr(self, name)
            if not axis or axis[0] < 1 or any(a >= b for a, b in pairwise(axis)):
                raise ValueError(f"{name} {axis} do not rise from 1 or more")
        table = np.array(self.seconds_BLN, dtype=np.float64)
        if len(self.rows) < 2 or table.shape != tuple(len(getattr(self, name)) for name in _AXES):
            raise ValueError(f"seconds of shape {table.shape} do not fit the axes, or there are fewer than two rows")
        if not (np.isfinite(table).all() and (table > 0).all()):
            raise ValueError("seconds must be above 0")
        if any((np.diff(table, axis=axis) < 0).any() for axis in range(3)):
            raise ValueError("seconds fall along an axis")
        object.__setattr__(self, "_corners", self._by_rows())

    def covers(self, batch: int, context: int) -> bool:
        """Whether nothing of a step like this would be clamped from above."""
        return batch <= self.batches[-1] and context <= self.contexts[-1]

    def seconds(self, rows: int, context: float, batch: float = 1) -> float:
        """One pass over ``rows`` packed rows of ``batch`` sequences with ``context`` tokens each."""
        i, b = _place(self.batches, batch)
        j, c = _place(self.contexts, context)
        n = min(max(bisect_right(self.rows, rows) - 1, 0), len(self.rows) - 2)
        t = (rows - self.rows[n]) / (self.rows[n + 1] - self.rows[n])
        total = 0.0
        for weight, (up, along) in zip(_weights(b, c), _CORNERS, strict=True):
            if weight:
                line = self.seconds_BLN[i + up][j + along]
                total += weight * (line[n] + t * (line[n + 1] - line[n]))
        return total

    def seconds_by_rows(self, context: float, batch: float = 1) -> tuple[float, ...]:
        """``seconds`` for 1 to MOST_ROWS packed rows: entry n - 1 is a pass of n rows."""
        i, b = _place(self.batches, batch)
        j, c = _place(self.contexts, context)
        return tuple(np.array(_weights(b, c)).dot(self._corners[i][j]).tolist())

    def _by_rows(self) -> tuple[tuple[npt.NDArray[np.float64], ...], ...]:
        """Prices of 1 to MOST_ROWS rows at the four corners of every cell of batch and context."""

        def line(i: int, j: int) -> list[float]:
            # A cell at the grid's edge ends there: its far corners have no weight.
            batch, context = self.batches[min(i, len(self.batches) - 1)], self.contexts[min(j, len(self.contexts) - 1)]
            return [self.seconds(rows, context, batch) for rows in range(1, MOST_ROWS + 1)]

        return tuple(
            tuple(np.array([line(i + up, j + along) for up, along in _CORNERS]) for j in range(len(self.contexts)))
            for i in range(len(self.batches))
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, read by ``read_curve``."""
        return {"schema": SCHEMA, **{name: list(getattr(self, name)) for name in _AXES}, "seconds": self.seconds_BLN}


@dataclass(frozen=True)
class MeasuredPass:
    """A curve as the planner asks for it: rows of each sequence."""

    curve: CostCurve

    def seconds(self, batch: int, context: int, rows: int = 1) -> float:
        return self.curve.seconds(rows * batch, context, batch)


def read_curve(value: object, where: str) -> CostCurve:
    """A curve from its JSON. Raises ConfigError for what is none."""
    try:
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            raise ValueError(f"no {SCHEMA!r}")
        axes = [tuple(int(at) for at in value[name]) for name in _AXES]
        table = tuple(tuple(tuple(float(each) for each in line) for line in plane) for plane in value["seconds"])
        return CostCurve(axes[0], axes[1], axes[2], table)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: no curve ({str(error)[:120]}); measure again: outrider plan --calibrate") from None


def fit_curve(measured: Mapping[Point, float]) -> CostCurve:
    """The curve through what was measured at all points of a grid but those with fewer rows than sequences.

    Such a step does not exist, but interpolation between batches asks for it: it is priced as if rows cost what they do
    at the next smaller batch. Noise that makes a larger step cheaper is halved away: the mean of the curves that never
    fall just above and just below.
    """
    batches, contexts, rows = (tuple(sorted(set(axis))) for axis in zip(*measured, strict=True))
    planes: list[list[list[float]]] = []
    for batch in batches:
        below = planes[-1] if planes else [None] * len(contexts)
        planes.append([_line(measured, batch, at, rows, under) for at, under in zip(contexts, below, strict=True)])
    table = np.array(planes)
    for axis in range(3):
        above = np.maximum.accumulate(table, axis=axis)
        beneath = np.flip(np.minimum.accumulate(np.flip(table, axis), axis=axis), axis)
        table = (above + beneath) / 2
    return CostCurve(batches, contexts, rows, tuple(tuple(tuple(line) for line in plane) for plane in table.tolist()))


def _line(
    measured: Mapping[Point, float], batch: int, context: int, rows: Sequence[int], below: Sequence[float] | None
) -> list[float]:
    """Prices by rows; ``below`` are those at the next smaller batch."""
    first = next(i for i, n in enumerate(rows) if n >= batch)
    known = [measured[batch, context, n] for n in rows[first:]]
    if below is None:
        return [known[0]] * first + known
    # Where noise would leave nothing, the smaller batch's own price is the least that it can be.
    return [max(below[i], known[0] - (below[first] - below[i])) for i in range(first)] + known


def _place(axis: tuple[int, ...], value: float) -> tuple[int, float]:
    """The point of an axis at or below a value, clamped, and how far on to the next it is: 0 to 1."""
    if value >= axis[-1]:
        return len(axis) - 1, 0.0
    at = bisect_right(axis, value) - 1
    return (at, (value - axis[at]) / (axis[at + 1] - axis[at])) if at >= 0 else (0, 0.0)


def _weights(b: float, c: float) -> tuple[float, float, float, float]:
    """Of the corners of a cell, in the order of _CORNERS, at such shares of the way."""
    return (1.0 - b) * (1.0 - c), (1.0 - b) * c, b * (1.0 - c), b * c
