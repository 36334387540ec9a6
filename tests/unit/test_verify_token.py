from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from outrider.types import Draft, Verdict
from outrider.verify.reference import EnumeratingDraws, Prefix, Row, every_outcome, exact_law, expected_emitted
from outrider.verify.token import TokenVerifier

P = np.array([0.5, 0.25, 0.15, 0.10])
Q = np.array([0.3, 0.4, 0.2, 0.1])


def p(_: Prefix) -> Row:
    return P


def q(_: Prefix) -> Row:
    return Q


def test_the_textbook_pair_is_accepted_four_times_in_five() -> None:
    law = exact_law(TokenVerifier(), p, q, 1)
    accepted = sum(chance for tokens, chance in law.items() if len(tokens) == 2)
    assert accepted == pytest.approx(0.8, abs=1e-12)


def test_four_such_drafts_give_3_36_tokens_a_round() -> None:
    assert expected_emitted(exact_law(TokenVerifier(), p, q, 4)) == pytest.approx(3.3616, abs=1e-12)


def test_one_token_by_hand() -> None:
    """Draft token 1 is kept with 0.25/0.4; else only token 0 has more target than draft mass."""
    draft = Draft((1,), torch.from_numpy(Q)[None].log())
    logp_TV = torch.from_numpy(np.stack([P, P])).log()
    outcomes = list(every_outcome(lambda draws: TokenVerifier().judge(draft, logp_TV, draws)))
    assert sum(chance for verdict, chance in outcomes if verdict.kept) == pytest.approx(0.625)
    assert {verdict for verdict, _ in outcomes if not verdict.kept} == {Verdict(0, 0)}


def test_a_refused_point_mass_is_never_emitted_again() -> None:
    draft = Draft((1,))
    logp_TV = torch.from_numpy(np.stack([P, P])).log()
    outcomes = list(every_outcome(lambda draws: TokenVerifier().judge(draft, logp_TV, draws)))
    refused = {verdict.token: chance for verdict, chance in outcomes if not verdict.kept}
    assert refused == pytest.approx({0: 0.5, 2: 0.15, 3: 0.10})


def test_what_the_target_refuses_is_never_kept() -> None:
    draft = Draft((1,), torch.tensor([[0.5, 0.5]]).log())
    logp_TV = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log()
    outcomes = [verdict for verdict, _ in every_outcome(lambda draws: TokenVerifier().judge(draft, logp_TV, draws))]
    assert outcomes == [Verdict(0, 0)]


def test_a_token_reported_as_impossible_is_our_bug() -> None:
    draft = Draft((1,), torch.tensor([[1.0, 0.0]]).log())
    with pytest.raises(AssertionError, match="probability 0"):
        TokenVerifier().judge(draft, torch.full((2, 2), 0.5).log(), EnumeratingDraws())


class Refuses(EnumeratingDraws):
    """Refuses whatever has any chance to be refused, and everything else too: rounding at its worst."""

    def accept(self, i: int, probability: float) -> bool:
        return False


@pytest.mark.parametrize("logq_KV", [None, torch.tensor([[0.0, -math.inf]])])
def test_a_residual_without_mass_falls_back_to_the_target(logq_KV: torch.Tensor | None) -> None:
    """p and q agree, so a refusal can only be a rounding error."""
    logp_TV = torch.tensor([[0.0, -math.inf], [0.0, -math.inf]])
    assert TokenVerifier().judge(Draft((0,), logq_KV), logp_TV, Refuses()) == Verdict(0, 0)


def test_arguments_are_left_alone() -> None:
    logp_TV = torch.from_numpy(np.stack([P, P])).log()
    before_TV = logp_TV.clone()
    TokenVerifier().judge(Draft((1,)), logp_TV, Refuses())
    assert torch.equal(logp_TV, before_TV)
