from __future__ import annotations

import pytest
import torch

from outrider.types import Draft, Verdict
from outrider.verify.greedy import GreedyVerifier
from outrider.verify.reference import EnumeratingDraws

LOGITS_TV = torch.tensor([[0.0, 9.0, 1.0], [5.0, 5.0, 2.0], [-1.0, -3.0, -0.5]])
"""Argmax chain 1, 0 (a tie), 2; unnormalised on purpose."""


@pytest.mark.parametrize(
    ("tokens", "verdict"),
    [
        ((1, 0), Verdict(2, 2)),
        ((1, 1), Verdict(1, 0)),
        ((2, 0), Verdict(0, 1)),
        ((1, 2), Verdict(1, 0)),
    ],
)
def test_keeps_the_argmax_prefix(tokens: tuple[int, ...], verdict: Verdict) -> None:
    draws = EnumeratingDraws()
    assert GreedyVerifier().judge(Draft(tokens), LOGITS_TV, draws) == verdict
    assert draws.weight == 1.0
    assert draws.unexplored == []


def test_the_first_of_equals_wins_in_a_wide_row_too() -> None:
    logits_TV = torch.zeros(1, 49152)
    logits_TV[0, [40000, 123, 30000]] = 1.0
    assert GreedyVerifier().judge(Draft(), logits_TV, EnumeratingDraws()) == Verdict(0, 123)


def test_a_row_too_few_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="one row"):
        GreedyVerifier().judge(Draft((1, 0, 2)), LOGITS_TV, EnumeratingDraws())
