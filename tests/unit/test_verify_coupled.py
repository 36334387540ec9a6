from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.sampling.rng import KeyedRandomness
from outrider.types import Draft, Verdict
from outrider.verify.coupled import CoupledVerifier
from outrider.verify.reference import (
    EnumeratingDraws,
    Model,
    Prefix,
    exact_law,
    plain_law,
    random_model,
    sequence_law,
    total_variation,
)

LENGTH = 12


def log_row(model: Model, prefix: Prefix) -> torch.Tensor:
    return torch.from_numpy(model(prefix)).float().log()


def decode(randomness: KeyedRandomness, p: Model, drafts: list[Prefix]) -> Prefix:
    """LENGTH tokens; round r judges ``drafts[r]``, later rounds have no draft."""
    tokens: Prefix = ()
    rounds = iter(drafts)
    while len(tokens) < LENGTH:
        draft = next(rounds, ())
        logp_TV = torch.stack([log_row(p, (*tokens, *draft[:i])) for i in range(len(draft) + 1)])
        verdict = CoupledVerifier().judge(Draft(draft), logp_TV, randomness.round(len(tokens)))
        tokens += (*draft[: verdict.kept], verdict.token)
    return tokens[:LENGTH]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    shared=st.booleans(),
    drafts=st.lists(st.lists(st.integers(0, 2), max_size=5).map(tuple), max_size=LENGTH),
)
def test_the_text_is_plain_samplings_whatever_is_drafted(seed: int, shared: bool, drafts: list[Prefix]) -> None:
    p = random_model(3, 1)
    assert decode(KeyedRandomness(seed, shared), p, drafts) == decode(KeyedRandomness(seed, shared), p, [])


def test_a_good_guess_is_kept_whole() -> None:
    """Without this, a rule that keeps nothing would pass the test above."""
    p, randomness = random_model(3, 1), KeyedRandomness(5, True)
    text = decode(randomness, p, [])
    logp_TV = torch.stack([log_row(p, text[:i]) for i in range(6)])
    assert CoupledVerifier().judge(Draft(text[:5]), logp_TV, randomness.round(0)) == Verdict(5, text[5])


@pytest.mark.parametrize("fixed", [(0, 0), (1, 2), (2, 0)])
def test_the_law_is_exact_for_any_fixed_draft(fixed: Prefix) -> None:
    p = random_model(3, 1)
    law = sequence_law(CoupledVerifier(), p, lambda prefix: fixed[len(prefix)], 2, length=3)
    assert total_variation(law, plain_law(p, 3)) < 1e-12
    kept = sum(chance for tokens, chance in exact_law(CoupledVerifier(), p, lambda _: 0, 1).items() if len(tokens) > 1)
    assert kept == pytest.approx(p(())[0])


class Noted(EnumeratingDraws):
    """Notes the positions whose noise was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        self.asked.append(i)
        return super().emit(i, logp_V)


def test_no_noise_is_drawn_past_the_first_disagreement() -> None:
    logp_TV = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).log()
    draws = Noted()
    assert CoupledVerifier().judge(Draft((1, 1, 1)), logp_TV, draws) == Verdict(2, 0)
    assert draws.asked == [0, 1, 2]


def test_shared_noise_agrees_more_often_than_the_proven_bound() -> None:
    """At least (1 - TV)/(1 + TV) = 2/3 of drafts agree (Daliri et al.); with independent noise it would be 0.29."""
    count = 4000
    logp_V, logq_V = torch.tensor([0.5, 0.25, 0.15, 0.10]).log(), torch.tensor([0.3, 0.4, 0.2, 0.1]).log()
    rates = {}
    for shared in (True, False):
        rounds = [KeyedRandomness(3, shared).round(start) for start in range(count)]
        rates[shared] = np.mean([draws.draft(0, logq_V) == draws.emit(0, logp_V) for draws in rounds])
    # Six standard deviations of a share of 4000 are at most 0.048: odds below 1e-8.
    assert rates[True] > 2 / 3 - 0.048
    assert rates[False] == pytest.approx(0.29, abs=0.048)
