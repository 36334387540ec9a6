from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from outrider.types import Draft
from outrider.verify import block
from outrider.verify.block import BlockVerifier
from outrider.verify.reference import (
    EnumeratingDraws,
    Prefix,
    Row,
    block_acceptances,
    exact_law,
    expected_emitted,
    plain_law,
    random_model,
    sequence_law,
    total_variation,
)
from outrider.verify.token import TokenVerifier, emit_residual

if TYPE_CHECKING:
    from outrider.verify.base import Draws


class Recorded(EnumeratingDraws):
    """Refuses every prefix and notes what it would have been accepted with."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[int, float] = {}

    def accept(self, i: int, probability: float) -> bool:
        self.asked[i] = probability
        return False


def test_the_papers_example_keeps_11_ninths_where_the_token_rule_keeps_10() -> None:
    """Two draft tokens, p = (1/3, 2/3), q = (2/3, 1/3); kept tokens, the bonus not counted."""

    def p(_: Prefix) -> Row:
        return np.array([1 / 3, 2 / 3])

    def q(_: Prefix) -> Row:
        return np.array([2 / 3, 1 / 3])

    assert expected_emitted(exact_law(BlockVerifier(), p, q, 2)) - 1 == pytest.approx(11 / 9, abs=1e-12)
    assert expected_emitted(exact_law(TokenVerifier(), p, q, 2)) - 1 == pytest.approx(10 / 9, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_keeps_at_least_as_much_as_the_token_rule_and_the_same_for_one_token(seed: int) -> None:
    p, q = random_model(3, 2 * seed), random_model(3, 2 * seed + 1)
    for k in (1, 2, 3):
        gain = expected_emitted(exact_law(BlockVerifier(), p, q, k)) - expected_emitted(
            exact_law(TokenVerifier(), p, q, k)
        )
        assert gain == pytest.approx(0.0, abs=1e-12) if k == 1 else gain > 1e-6


def test_acceptances_are_the_papers_formulas() -> None:
    rng = np.random.default_rng(0)
    p_TV, q_KV = rng.dirichlet(np.ones(4), size=5), rng.dirichlet(np.ones(4), size=4)
    for tokens in itertools.product(range(4), repeat=4):
        draws = Recorded()
        draft = Draft(tokens, torch.from_numpy(q_KV).log())
        BlockVerifier().judge(draft, torch.from_numpy(p_TV).log(), draws)
        assert [draws.asked[i] for i in range(4)] == pytest.approx(block_acceptances(p_TV, q_KV, tokens), abs=1e-12)


def test_a_point_mass_is_judged_like_its_one_hot_row() -> None:
    rng = np.random.default_rng(1)
    p_TV = rng.dirichlet(np.ones(3), size=4)
    for tokens in itertools.product(range(3), repeat=3):
        draws, one_hot_KV = Recorded(), np.eye(3)[list(tokens)]
        BlockVerifier().judge(Draft(tokens), torch.from_numpy(p_TV).log(), draws)
        assert [draws.asked[i] for i in range(3)] == pytest.approx(block_acceptances(p_TV, one_hot_KV, tokens))


def test_equal_rows_count_as_fully_paid_for() -> None:
    logp_TV = torch.full((3, 2), 0.5).log()
    draws = Recorded()
    BlockVerifier().judge(Draft((0, 1), logp_TV[:2]), logp_TV, draws)
    assert draws.asked == {0: 1.0, 1: 1.0}


def test_nothing_is_kept_past_a_token_the_target_refuses() -> None:
    logp_TV = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]).log()
    draws = Recorded()
    BlockVerifier().judge(Draft((0, 1), torch.full((2, 2), 0.5).log()), logp_TV, draws)
    assert draws.asked[1] == 0.0


def test_a_token_reported_as_impossible_is_our_bug() -> None:
    logq_KV = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log()
    with pytest.raises(AssertionError, match="probability 0"):
        BlockVerifier().judge(Draft((0, 1), logq_KV), torch.full((3, 2), 0.5).log(), Recorded())


def test_control_a_residual_without_the_prefixs_weight_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token rule's residual inside the block rule, a fault that has shipped elsewhere."""
    p, q = random_model(3, 1), random_model(3, 2)

    def unweighted(draft: Draft, logp_TV: torch.Tensor, i: int, log_weight: float, draws: Draws) -> int:
        assert log_weight <= 0 or math.isnan(log_weight)
        return emit_residual(draft, logp_TV, i, 0.0, draws)

    monkeypatch.setattr(block, "emit_residual", unweighted)
    law = sequence_law(BlockVerifier(), p, q, 2, length=3)
    assert total_variation(law, plain_law(p, 3)) > 1e-3
