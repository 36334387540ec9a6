"""The two-sample test against closed forms, its false alarms, and its power against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, chi2

from outrider.audit.chi_square import LEAST_EXPECTED, pool, smallest_bias, two_sample_test

LAW = np.array([0.4, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.01, 0.005, 0.005])


def test_two_bins_are_the_test_of_two_shares() -> None:
    a, b = [0] * 60 + [1] * 40, [0] * 45 + [1] * 55
    found = two_sample_test(a, b)
    share = (60 + 45) / 200
    z = (0.60 - 0.45) / math.sqrt(share * (1 - share) * 2 / 100)
    assert (found.bins, found.samples) == (2, 100)
    assert found.statistic == pytest.approx(z**2)
    assert found.p_value == pytest.approx(chi2.sf(z**2, 1))
    assert found.total_variation == pytest.approx(0.15)


def test_sides_of_different_size() -> None:
    assert two_sample_test([0, 1] * 50, [0, 1] * 200).statistic == 0.0
    skewed = two_sample_test([0] * 60 + [1] * 40, [0, 1] * 200)
    z = 0.1 / math.sqrt((260 / 500) * (240 / 500) * (1 / 100 + 1 / 400))
    assert skewed.statistic == pytest.approx(z**2)
    assert skewed.samples == 100


def test_one_outcome_shows_nothing_and_disjoint_ones_everything() -> None:
    assert two_sample_test("a" * 50, "a" * 50).p_value == 1.0
    assert two_sample_test("a" * 50, "b" * 50).p_value < 1e-20
    assert two_sample_test("a" * 50, "b" * 50).total_variation == 1.0


def test_rare_outcomes_share_a_bin() -> None:
    a = {"x": 60, "y": 6, "z": 1, "u": 2}
    b = {"x": 50, "y": 5, "z": 3, "v": 3}
    # z, u and v are 9 together, and the smaller side should have 9 * 61 / 130 of them: y joins them.
    assert pool(a, b) == ((9, 11), [(60, 50)])
    assert 20 * 61 / 130 >= LEAST_EXPECTED > 9 * 61 / 130
    assert pool(a, {**b, "v": 6}) == ((3, 9), [(6, 5), (60, 50)])
    assert pool({"x": 60}, {"x": 50}) == ((0, 0), [(60, 50)])


def test_what_is_rare_even_together_joins_the_next() -> None:
    assert pool({"x": 50, "z": 1}, {"x": 49, "y": 1}) == ((51, 50), [])


def test_totals_alone_say_who_is_rare() -> None:
    """Of two equals one joins the rare one; which of them must not hang on how they fell to the two sides."""
    for a, b in (({"p": 9, "q": 3, "z": 1}, {"p": 3, "q": 9}), ({"q": 9, "p": 3, "z": 1}, {"q": 3, "p": 9})):
        (_, _), alone = pool(a, b)
        assert alone == [(a["q"], b["q"])]


def test_the_share_of_what_is_told_apart_only_together() -> None:
    found = two_sample_test("x" * 60 + "yz", "x" * 60 + "uvw" + "stuvwstu")
    assert found.bins == 2
    assert found.rare == pytest.approx(13 / 133)
    assert two_sample_test("xy" * 60, "xy" * 60).rare == 0.0


def p_values(a: np.ndarray, b: np.ndarray, count: int, samples: int) -> list[float]:
    rng = np.random.default_rng(7)
    draws = ((rng.choice(len(a), samples, p=a), rng.choice(len(b), samples, p=b)) for _ in range(count))
    return [two_sample_test(x.tolist(), y.tolist()).p_value for x, y in draws]


def test_false_alarms_keep_to_their_odds() -> None:
    """Of 2000 tests of equal laws at 1 %, more than 45 would come with odds below 1e-6 were the level kept."""
    found = p_values(LAW, LAW, 2000, 300)
    allowed = int(binom.isf(1e-6, 2000, 0.01))
    assert sum(p < 0.01 for p in found) <= allowed
    # And it is no test that never fires: a p-value that was always large would not be spread out.
    assert 0.3 < np.mean([p < 0.5 for p in found]) < 0.7


@pytest.mark.parametrize("samples", [300, 1000])
def test_the_smallest_visible_bias_is_seen_as_often_as_it_says(samples: int) -> None:
    """Of the shape that is hardest to see: every outcome's share grown or shrunk alike, half of the mass each."""
    alarm, count = 1e-3, 300
    even = np.full(10, 0.1)
    bias = smallest_bias(samples, 10, alarm)
    shift = np.where(np.arange(10) < 5, 1, -1) * 2 * bias / 10
    seen = np.mean([p < alarm for p in p_values(even + shift / 2, even - shift / 2, count, samples)])
    assert 0.5 * np.abs(shift).sum() == pytest.approx(bias)
    # Three standard deviations of a share of 0.95 in 300 are 0.038; the noncentral law is itself an approximation.
    assert 0.90 < seen <= 1.0
    weaker = np.mean([p < alarm for p in p_values(even + shift / 4, even - shift / 4, count, samples)])
    assert weaker < 0.75, "half the bias is not seen as often, so the figure is no idle bound"


def test_another_shape_of_that_size_is_seen_more_often() -> None:
    """All of the bias in one rare outcome: seen long before the bound."""
    bias = smallest_bias(500, 10, 1e-3)
    law = np.array([1 - bias, *[bias / 9] * 9])
    shifted = np.array([1 - 2 * bias, *[2 * bias / 9] * 9])
    assert np.mean([p < 1e-3 for p in p_values(law, shifted, 100, 500)]) > 0.98


def test_more_samples_see_smaller_biases_and_none_sees_more_than_everything() -> None:
    assert smallest_bias(4000, 20, 1e-5) == pytest.approx(smallest_bias(1000, 20, 1e-5) / 2)
    assert smallest_bias(10, 40, 1e-5) == 1.0
    assert smallest_bias(1000, 1, 1e-5) == smallest_bias(1000, 2, 1e-5), "a difference would make a second bin"
