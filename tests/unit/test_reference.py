"""The instrument itself: enumeration must be complete, weighted right, and able to see a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from outrider.verify.reference import (
    EnumeratingDraws,
    block_acceptances,
    every_outcome,
    exact_law,
    expected_emitted,
    plain_law,
    random_model,
    sequence_law,
    total_variation,
)
from outrider.verify.token import TokenVerifier


def test_every_way_is_taken_once_with_its_weight() -> None:
    weights_V = torch.tensor([0.2, 0.0, 0.8], dtype=torch.float64).log()

    def play(draws: EnumeratingDraws) -> tuple[bool, int]:
        return draws.accept(0, 0.25), draws.emit(0, weights_V)

    outcomes = list(every_outcome(play))
    assert len(outcomes) == 4
    assert dict(outcomes) == pytest.approx({(True, 0): 0.05, (True, 2): 0.2, (False, 0): 0.15, (False, 2): 0.6})


def test_ways_may_depend_on_earlier_ones() -> None:
    def play(draws: EnumeratingDraws) -> int:
        rounds = 0
        while rounds < 4 and draws.accept(rounds, 0.5):
            rounds += 1
        return rounds

    assert dict(every_outcome(play)) == {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.0625, 4: 0.0625}


def test_certain_events_do_not_branch_and_a_probability_above_one_is_a_bug() -> None:
    assert list(every_outcome(lambda draws: draws.accept(0, 1.0))) == [(True, 1.0)]
    assert list(every_outcome(lambda draws: draws.accept(0, 0.0))) == [(False, 1.0)]
    with pytest.raises(AssertionError, match="no probability"):
        EnumeratingDraws().accept(0, 1.5)


def test_weights_need_not_be_normalised() -> None:
    outcomes = dict(every_outcome(lambda draws: draws.emit(0, torch.tensor([3.0, 1.0]).log())))
    assert outcomes == pytest.approx({0: 0.75, 1: 0.25})


def test_plain_law_multiplies_along_the_prefix() -> None:
    p = random_model(3, 1, zeros=1)
    law = plain_law(p, 2)
    assert math.fsum(law.values()) == pytest.approx(1.0)
    for (first, second), chance in law.items():
        assert chance == pytest.approx(p(())[first] * p((first,))[second])
    started = plain_law(p, 2, next(iter(law))[:1])
    assert math.fsum(started.values()) == pytest.approx(1.0)
    assert len({tokens[0] for tokens in started}) == 1


def test_laws_of_a_round_sum_to_one_after_any_prefix() -> None:
    p, q = random_model(3, 1), random_model(3, 2)
    laws = [exact_law(TokenVerifier(), p, q, 2, prefix=prefix) for prefix in ((), (1,), (1, 0))]
    assert [math.fsum(law.values()) for law in laws] == pytest.approx([1.0] * 3)
    assert total_variation(laws[0], laws[1]) > 1e-2


def test_a_round_longer_than_the_question_is_cut() -> None:
    p, q = random_model(2, 1), random_model(2, 2)
    assert total_variation(sequence_law(TokenVerifier(), p, q, 3, length=1), plain_law(p, 1)) < 1e-12


def test_total_variation_and_mean_length_by_hand() -> None:
    assert total_variation({(0,): 0.5, (1,): 0.5}, {(0,): 0.2, (2,): 0.8}) == pytest.approx(0.8)
    assert total_variation({(0,): 1.0}, {(0,): 1.0}) == 0.0
    assert expected_emitted({(0,): 0.25, (1, 1): 0.75}) == 1.75


def test_random_models_repeat_themselves_and_differ_by_prefix() -> None:
    p = random_model(4, 1, zeros=2)
    assert (p((1, 2)) == p((1, 2))).all()
    assert (p((1, 2)) != p((2, 1))).any()
    assert (p((0,)) != p(())).any()
    assert all((p((token,)) == 0).sum() == 2 for token in range(4))


def test_block_formulas_by_hand() -> None:
    """P_1 = 1/2, Z = max(1/6 - 2/3, 0) + max(1/3 - 1/3, 0) = 0; P_2 = P_1 * 2 = 1."""
    p_TV = np.array([[1 / 3, 2 / 3]] * 3)
    q_KV = np.array([[2 / 3, 1 / 3]] * 2)
    assert block_acceptances(p_TV, q_KV, (0, 1)) == pytest.approx([0.0, 1.0])
    assert block_acceptances(p_TV, q_KV, (1, 0)) == pytest.approx([1.0, 0.5])
