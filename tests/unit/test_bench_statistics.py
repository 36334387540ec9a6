"""Percentiles and intervals: exact where they can be, and an interval that covers as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outrider.bench.statistics import Floats, bootstrap, paired_ratio, percentiles, quotient

Units = list[list[float]]


def test_percentiles_are_linear_between_order_statistics() -> None:
    assert percentiles(range(101)) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert percentiles([1.0, 2.0]) == pytest.approx({"p50": 1.5, "p90": 1.9, "p99": 1.99})
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    assert percentiles(iter(())) is None


def test_the_mean_ratio_is_geometric_and_counts_every_prompt_alike() -> None:
    ratio = paired_ratio([[math.log(2)], [math.log(0.5)], [math.log(4)]])
    assert ratio is not None
    assert ratio["mean"] == pytest.approx(4 ** (1 / 3))
    assert ratio["prompts"] == 3
    # A batch of two and a batch of one: three prompts, not two batches.
    assert (paired_ratio([[math.log(8), 0.0], [0.0]]) or {})["mean"] == pytest.approx(2.0)


def test_the_ratio_of_the_inverse_is_the_inverse() -> None:
    logs = [0.1, 0.5, -0.2, 0.8, 0.3]
    ours, theirs = paired_ratio([[x] for x in logs]), paired_ratio([[-x] for x in logs])
    assert ours is not None
    assert theirs is not None
    assert ours["mean"] == pytest.approx(1 / (theirs["mean"] or 0))
    assert ours["low"] == pytest.approx(1 / (theirs["high"] or 0))


def test_there_is_no_interval_over_one_unit_and_no_ratio_over_none() -> None:
    assert paired_ratio([]) is None
    assert paired_ratio([[]]) is None
    assert paired_ratio([[0.0, 0.0]]) == {"mean": 1.0, "low": None, "high": None, "prompts": 2}


def test_a_quotient_is_of_sums() -> None:
    # 10 tokens in 5 rounds and 90 in 10: tau is 100 / 15, not the mean of 2 and 9.
    tau = quotient([(10, 5), (90, 10)])
    assert tau["mean"] == pytest.approx(100 / 15)
    assert (tau["low"], tau["high"]) == (2.0, 9.0)


def test_equal_units_leave_no_doubt_and_the_seed_decides_the_rest() -> None:
    same = paired_ratio([[math.log(1.5)]] * 10) or {}
    assert (same["low"], same["high"]) == pytest.approx((1.5, 1.5))
    units = np.random.default_rng(0).normal(size=(12, 1))
    first, again = (bootstrap(units, lambda s: s.mean(axis=(1, 2))) for _ in range(2))
    other = bootstrap(units, lambda s: s.mean(axis=(1, 2)), seed=1)
    assert first == again != other


def test_many_units_are_drawn_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []

    def mean(samples: Floats) -> Floats:
        drawn.append(samples.shape)
        result: Floats = samples.mean(axis=(1, 2))
        return result

    units = np.random.default_rng(0).normal(size=(12, 1))
    whole = bootstrap(units, mean)
    monkeypatch.setattr("outrider.bench.statistics._DRAWN_AT_ONCE", 12 * 300)
    assert bootstrap(units, mean) == whole
    assert drawn == [(2000, 12, 1), *[(300, 12, 1)] * 6, (200, 12, 1)]


def _covered(experiments: int, make: str) -> int:
    """How often the interval for 30 prompts, each measured 3 times, covers the true ratio 1.3."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(experiments):
        prompts = math.log(1.3) + 0.3 * rng.normal(size=30)
        repeats = prompts[:, None] + 0.02 * rng.normal(size=(30, 3))
        units: Units = [[mean] for mean in repeats.mean(axis=1)] if make == "prompts" else [[x] for x in repeats.flat]
        ratio = paired_ratio(units) or {}
        covered += bool((ratio["low"] or 0) <= 1.3 <= (ratio["high"] or 0))
    return covered


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Of 200, the percentile bootstrap of 30 prompts comes to about 188 (sd 3.4): odds of a false alarm below 1e-4.
    Negative control: repeats taken for prompts make the interval 1.7 times too narrow, and it covers about 140 (sd 6).
    """
    assert 174 <= _covered(200, "prompts") <= 199
    assert _covered(200, "repeats") < 165
