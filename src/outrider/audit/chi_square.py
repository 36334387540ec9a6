"""The two-sample chi-square test: are two histograms draws from one law, and what would the test have missed?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

LEAST_EXPECTED: Final = 5.0
"""Expected count of every bin in both samples, as is usual for the chi-square law to describe the statistic."""
POWER: Final = 0.95

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class TwoSampleTest:
    """Pearson's statistic over pooled bins; ``bins`` below 2 mean that there was nothing to compare."""

    samples: int
    """Draws of each side; the smaller number where they differ."""
    bins: int
    statistic: float
    p_value: float
    total_variation: float
    """Distance between the two pooled histograms, which sampling alone puts well above 0."""
    rare: float
    """Share of all draws that are told apart from the others only, not from each other: those of the shared bin."""


def two_sample_test(a: Iterable[Hashable], b: Iterable[Hashable]) -> TwoSampleTest:
    """Compare two samples of outcomes.

    Outcomes are pooled by their total count alone: given the totals, the bins are fixed, so choosing them from the
    data does not disturb the test.
    """
    counts_a, counts_b = Counter(a), Counter(b)
    sizes = (counts_a.total(), counts_b.total())
    shared, alone = pool(counts_a, counts_b)
    bins = [shared, *alone] if sum(shared) else alone
    statistic = math.fsum(
        (count - expected) ** 2 / expected
        for pair in bins
        for count, expected in zip(pair, _expected(sum(pair), sizes), strict=True)
    )
    p_value = float(chi2.sf(statistic, len(bins) - 1)) if len(bins) > 1 else 1.0
    distance = 0.5 * math.fsum(abs(x / sizes[0] - y / sizes[1]) for x, y in bins)
    return TwoSampleTest(min(sizes), len(bins), statistic, p_value, distance, sum(shared) / sum(sizes))


def pool(a: Mapping[T, int], b: Mapping[T, int]) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Bins (count in a, count in b): the one that all rare outcomes share, and those expected often enough alone."""
    sizes = (sum(a.values()), sum(b.values()))
    # By total, and among equals by name: how an outcome falls to the two sides must not decide where it goes.
    outcomes = sorted({**a, **b}, key=lambda each: (a.get(each, 0) + b.get(each, 0), repr(each)))
    pairs = [(a.get(outcome, 0), b.get(outcome, 0)) for outcome in outcomes]
    rare = (0, 0)
    while pairs and (_too_few(sum(pairs[0]), sizes) or (sum(rare) and _too_few(sum(rare), sizes))):
        x, y = pairs.pop(0)
        rare = (rare[0] + x, rare[1] + y)
    return rare, pairs


def smallest_bias(samples: int, bins: int, alarm: float, power: float = POWER) -> float:
    """The total variation from which on a difference, whatever its shape, is seen with that ``power``.

    ``samples`` draws on each side, ``bins`` of them told apart, false alarm odds ``alarm``. The noncentrality is
    sum N (a - b)^2 / (a + b), and by Cauchy-Schwarz at least 2 N TV^2, with equality for the shape that is hardest
    to see. 1 when nothing could be seen.
    """
    # A histogram of one bin would have had a second one, had there been a difference.
    freedom = max(bins, 2) - 1
    critical = chi2.isf(alarm, freedom)
    shift = brentq(lambda shift: ncx2.sf(critical, freedom, shift) - power, 1e-9, 10 * critical + 100)
    return min(1.0, math.sqrt(shift / (2 * samples)))


def _too_few(total: int, sizes: tuple[int, int]) -> bool:
    return min(_expected(total, sizes)) < LEAST_EXPECTED


def _expected(total: int, sizes: tuple[int, int]) -> tuple[float, float]:
    both = sum(sizes)
    return total * sizes[0] / both, total * sizes[1] / both
