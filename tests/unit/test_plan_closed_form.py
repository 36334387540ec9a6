"""Closed forms: against published tables, against brute force, and at their edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.plan.closed_form import (
    alpha_for,
    best_k,
    break_even,
    expected_tokens,
    fastest_k,
    geometric_survival,
    net_saving,
    speedup,
)

K_MAX = 32


def linear(draft: float, verify: float = 0.0) -> Callable[[int], float]:
    """A round of k drafts of cost ``draft`` each, checked at ``verify`` more for each."""
    return lambda k: 1.0 + k * (draft + verify)


@pytest.mark.parametrize(
    ("c", "alpha", "k", "gain"),
    [
        (0.05, 0.5, 3, 1.63),
        (0.05, 0.6, 4, 1.92),
        (0.05, 0.7, 6, 2.35),
        (0.05, 0.8, 8, 3.09),
        (0.05, 0.9, 13, 4.67),
        (0.2, 0.5, 1, 1.25),
        (0.2, 0.6, 2, 1.40),
        (0.2, 0.7, 3, 1.58),
        (0.2, 0.8, 4, 1.87),
        (0.2, 0.9, 7, 2.37),
    ],
)
def test_table_of_best_draft_lengths(c: float, alpha: float, k: int, gain: float) -> None:
    survival, cost = geometric_survival(alpha, K_MAX), linear(c)
    assert best_k(survival, cost) == k
    assert speedup(survival, k, cost) == pytest.approx(gain, abs=0.005)


def test_cost_of_verifying_acts_like_cost_of_drafting() -> None:
    survival = geometric_survival(0.8, K_MAX)
    apart, together = linear(0.05, 0.1), linear(0.15)
    assert best_k(survival, apart) == best_k(survival, together)
    assert speedup(survival, 4, apart) == pytest.approx(speedup(survival, 4, together), rel=1e-12)


@given(st.floats(0.0, 0.999), st.integers(0, K_MAX))
def test_expected_tokens_of_a_geometric_survival(alpha: float, k: int) -> None:
    closed = (1 - alpha ** (k + 1)) / (1 - alpha)
    assert expected_tokens(geometric_survival(alpha, k), k) == pytest.approx(closed, rel=1e-9)


def test_expected_tokens_of_what_was_measured() -> None:
    assert expected_tokens([0.7, 0.4, 0.3], 0) == 1.0
    assert expected_tokens([0.7, 0.4, 0.3], 2) == pytest.approx(2.1)
    assert expected_tokens([1.0, 1.0, 1.0], 3) == 4.0


survivals = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12).map(lambda shares: sorted(shares, reverse=True))


@given(survivals, st.lists(st.floats(0.001, 1.0), min_size=12, max_size=12).map(sorted))
def test_the_marginal_rule_finds_the_best_of_all(survival: list[float], steps: list[float]) -> None:
    """For any survival that never rises and any cost whose steps never shrink."""

    def cost(k: int) -> float:
        return 1.0 + math.fsum(steps[:k])

    gains = [speedup(survival, k, cost) for k in range(len(survival) + 1)]
    assert gains[best_k(survival, cost)] == pytest.approx(max(gains), rel=1e-12)


@given(survivals, st.lists(st.floats(0.001, 1.0), min_size=12, max_size=12))
def test_trying_every_length_finds_the_best_for_any_cost(survival: list[float], steps: list[float]) -> None:
    def cost(k: int) -> float:
        return 1.0 + math.fsum(steps[:k])

    k = fastest_k(survival, cost)
    assert all(speedup(survival, k, cost) >= speedup(survival, other, cost) for other in range(len(survival) + 1))


def test_the_marginal_rule_stops_at_a_step_that_trying_climbs() -> None:
    """Rows come in pairs: a dear first one, then one for nothing."""
    stairs = [1.0, 1.6, 1.6, 1.7]
    assert best_k([0.5, 0.5, 0.1], stairs.__getitem__) == 0
    assert fastest_k([0.5, 0.5, 0.1], stairs.__getitem__) == 2
    assert fastest_k([0.5, 0.0], lambda k: 1.0 + (k > 1)) == 1


def test_nothing_is_drafted_where_the_first_token_does_not_pay() -> None:
    assert best_k(geometric_survival(0.19, 8), linear(0.2)) == 0
    assert best_k(geometric_survival(0.21, 8), linear(0.2)) > 0
    assert best_k([], linear(0.0)) == 0


def test_free_drafts_that_are_always_right_fill_the_round() -> None:
    assert best_k(geometric_survival(1.0, 8), linear(0.0)) == 8


@pytest.mark.parametrize(("c", "verify"), [(0.05, 0.0), (0.2, 0.1), (0.0, 0.0)])
def test_the_first_token_breaks_even_at_its_own_cost(c: float, verify: float) -> None:
    assert break_even(linear(c, verify)) == pytest.approx(c + verify, abs=1e-12)


@given(st.floats(0.01, 0.9), st.integers(1, 12))
def test_break_even_separates_gain_from_loss(c: float, k: int) -> None:
    cost = linear(c)
    alpha = break_even(cost, k)
    assert alpha is not None
    assert speedup(geometric_survival(alpha, k), k, cost) == pytest.approx(1.0, rel=1e-9)
    assert speedup(geometric_survival(alpha * 0.99, k), k, cost) < 1.0
    # No length does with less than the first token needs.
    least = break_even(cost)
    assert least is not None
    assert alpha >= least - 1e-12


def test_some_costs_never_break_even() -> None:
    assert break_even(linear(1.01), 3) is None


def test_alpha_for_undoes_expected_tokens() -> None:
    for alpha in (0.0, 0.3, 0.8, 1.0):
        tokens = expected_tokens(geometric_survival(alpha, 5), 5)
        assert alpha_for(tokens, 5) == pytest.approx(alpha, abs=1e-9)
    assert alpha_for(6.01, 5) is None
    assert alpha_for(1.0, 5) == 0.0


def test_saving_counts_training_once() -> None:
    assert net_saving(2.0, 10) == 5.0
    assert net_saving(2.0, 10, 0.25) == 4.75
    assert net_saving(1.0, 10, 0.25) == -0.25
