"""Measured curves: exact where the truth is a plane, never falling where measurements do, whole through JSON."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.plan.curves import MOST_ROWS, CostCurve, MeasuredPass, Point, fit_curve, read_curve

BATCHES, CONTEXTS, ROWS = (1, 4, 8), (64, 512, 2048), (1, 2, 4, 8, 16, 32)


def plane(batch: float, context: float, rows: float) -> float:
    """Linear in each: what interpolation gives back exactly."""
    return 0.010 + 0.001 * rows + 1e-6 * batch * context


def grid(price: Any = plane) -> dict[Point, float]:
    return {(b, c, n): price(b, c, n) for b in BATCHES for c in CONTEXTS for n in ROWS if n >= b}


CURVE = fit_curve(grid())


@given(st.integers(1, 200), st.floats(64, 2048), st.floats(1, 8))
def test_between_the_points_it_is_linear_and_rows_go_on(rows: int, context: float, batch: float) -> None:
    assert CURVE.seconds(rows, context, batch) == pytest.approx(plane(batch, context, rows), rel=1e-12)


def test_points_are_what_was_measured() -> None:
    for (batch, context, rows), seconds in grid().items():
        assert CURVE.seconds(rows, context, batch) == pytest.approx(seconds, rel=1e-12)


def test_batch_and_context_are_clamped() -> None:
    assert CURVE.seconds(16, 1, 8) == CURVE.seconds(16, 64, 8)
    assert CURVE.seconds(16, 10**6, 100) == CURVE.seconds(16, 2048, 8)
    assert CURVE.covers(8, 2048)
    assert not CURVE.covers(9, 2048)
    assert not CURVE.covers(8, 2049)


def test_steps_that_do_not_exist_cost_no_less_than_at_a_smaller_batch() -> None:
    """Rows are dear alone and cheap together: what they save would leave less than nothing."""
    odd = fit_curve({(1, 64, 1): 1.0, (1, 64, 8): 9.0, (8, 64, 8): 2.0})
    assert odd.seconds(1, 64, 8) == 1.0
    alone = fit_curve({(4, 64, n): float(n) for n in (4, 8)} | {(2, 64, n): 1.0 for n in (2, 4, 8)})
    assert alone.seconds(2, 64, 2) == 1.0


@given(st.floats(1, 4000), st.floats(1, 12))
def test_all_rows_at_once_are_the_rows_one_by_one(context: float, batch: float) -> None:
    together = CURVE.seconds_by_rows(context, batch)
    assert len(together) == MOST_ROWS
    for rows in (1, 3, 8, 33, MOST_ROWS):
        assert together[rows - 1] == pytest.approx(CURVE.seconds(rows, context, batch), rel=1e-12)


@given(st.randoms(use_true_random=False))
def test_noise_never_makes_a_larger_step_cheaper(random: Any) -> None:
    noisy = fit_curve(grid(lambda b, c, n: plane(b, c, n) * random.uniform(0.7, 1.3)))
    for context, batch in ((64, 1), (300, 2), (2048, 8)):
        prices = noisy.seconds_by_rows(context, batch)
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(prices))
        assert noisy.seconds(8, context, batch) <= noisy.seconds(8, context * 2, batch + 1) * (1 + 1e-12)


def test_noise_is_halved_not_added() -> None:
    """An outlier above and one below pull the curve by the same share."""
    up = fit_curve({(1, 64, n): 1.0 + (n == 2) for n in (1, 2, 3)})
    down = fit_curve({(1, 64, n): 2.0 - (n == 2) for n in (1, 2, 3)})
    assert [up.seconds(n, 64) for n in (1, 2, 3)] == [1.0, 1.5, 1.5]
    assert [down.seconds(n, 64) for n in (1, 2, 3)] == [1.5, 1.5, 2.0]


def test_the_planner_asks_by_rows_of_a_sequence() -> None:
    assert MeasuredPass(CURVE).seconds(4, 512, 3) == pytest.approx(plane(4, 512, 12), rel=1e-12)
    assert MeasuredPass(CURVE).seconds(4, 512) == CURVE.seconds(4, 512, 4)


def test_json_and_back() -> None:
    assert read_curve(json.loads(json.dumps(CURVE.to_json())), "here") == CURVE


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "outrider.curve/0"},
        {"rows": [1, 1, 4, 8, 16, 32]},
        {"rows": [0, 2, 4, 8, 16, 32]},
        {"rows": [1, 2]},
        {"contexts": []},
        {"batches": None},
        {"seconds": None},
        {"seconds": [[[1.0] * 6] * 3] * 2},
        {"seconds": [[[1.0, 2.0]]]},
        {"seconds": [[[1.0, 2.0, 3.0, 4.0, 5.0, -6.0]] * 3] * 3},
        {"seconds": [[[1.0, 2.0, 3.0, 4.0, 5.0, 4.0]] * 3] * 3},
        {"seconds": [[[1.0, 2.0, 3.0, 4.0, 5.0, float("inf")]] * 3] * 3},
    ],
)
def test_what_is_no_curve_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"here: no curve .*measure again: outrider plan --calibrate"):
        read_curve(CURVE.to_json() | change, "here")
    with pytest.raises(ConfigError):
        read_curve([], "here")


def test_one_row_alone_has_no_slope() -> None:
    with pytest.raises(ValueError, match="fewer than two rows"):
        CostCurve((1,), (1,), (1,), (((1.0,),),))
