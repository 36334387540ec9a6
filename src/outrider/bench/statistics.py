"""Percentiles, and intervals that say how far a figure would move with other prompts.

What varies most from prompt to prompt is how well a drafter guesses, so prompts are what is resampled. Times of one
prompt vary far less; repeats of it are averaged first and never counted as further evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""From samples ``(resamples, units, columns)`` to one figure each ``(resamples,)``."""

_LEVEL = 0.95
_RESAMPLES = 2000
_DRAWN_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Interval:
    """Ends of a 95 % interval."""

    low: float
    high: float


def percentiles(values: Iterable[float]) -> dict[str, float] | None:
    """``{"p50", "p90", "p99"}``, linear between order statistics; None without values.

    Of fewer than a hundred values, p99 is close to the largest.
    """
    data = np.fromiter(values, float)
    if not len(data):
        return None
    return {f"p{q}": float(value) for q, value in zip((50, 90, 99), np.percentile(data, (50, 90, 99)), strict=True)}


def bootstrap(
    units_UX: ArrayLike, statistic: Statistic, *, seed: int = 0, resamples: int = _RESAMPLES
) -> Interval | None:
    """Percentile bootstrap, 95 % (Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 13).

    A row is one unit: a prompt with all its repeats, or the prompts of a batch, whose steps were the same ones. It
    assumes nothing about the figure's law; with fewer than about ten units it is somewhat too narrow. The seed is
    fixed, so that the same record gives the same interval. None for fewer than two units, which say nothing about
    others.
    """
    data_UX = np.asarray(units_UX, float)
    if len(data_UX) < 2:
        return None
    random = np.random.default_rng(seed)
    # Some at a time: all resamples of ten thousand prompts would be half a gigabyte.
    at_once = max(1, _DRAWN_AT_ONCE // len(data_UX))
    found = [
        statistic(data_UX[random.integers(len(data_UX), size=(min(at_once, resamples - done), len(data_UX)))])
        for done in range(0, resamples, at_once)
    ]
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(np.concatenate(found), (tail, 1 - tail))
    return Interval(float(low), float(high))


def quotient(units: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """``{"mean", "low", "high"}`` of all first figures over all second ones: tokens over rounds, say, unit by unit.

    Low and high are None where ``bootstrap`` gives no interval.
    """
    interval = bootstrap(units, _quotients)
    first, second = (math.fsum(column) for column in zip(*units, strict=True))
    ends = (None, None) if interval is None else (interval.low, interval.high)
    return {"mean": first / second, "low": ends[0], "high": ends[1]}


def _quotients(samples_RUX: Floats) -> Floats:
    sums_RX = samples_RUX.sum(axis=1)
    result: Floats = sums_RX[:, 0] / sums_RX[:, 1]
    return result


def paired_ratio(units: Sequence[Sequence[float]]) -> dict[str, float | None] | None:
    """Geometric mean of per-prompt ratios with its interval and the number of prompts; None without any.

    One entry a unit, in it the logarithm of the ratio of each of its prompts. Every prompt counts the same, however
    long its answers: a ratio of total times would be that of the longest ones. And the geometric means of A over B
    and of B over A are each other's inverse, so that it does not matter which is the baseline.
    """
    rows = [(math.fsum(logs), len(logs)) for logs in units if logs]
    if not rows:
        return None
    logarithm = quotient(rows)
    ratio = {name: None if end is None else math.exp(end) for name, end in logarithm.items()}
    return ratio | {"prompts": sum(count for _, count in rows)}
