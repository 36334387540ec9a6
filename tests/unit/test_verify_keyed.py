"""Rules and keyed randomness together: over many seeds, whole texts follow the target's law."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from outrider.sampling.rng import KeyedRandomness
from outrider.types import Draft
from outrider.verify import verifier_named
from outrider.verify.reference import Model, Prefix, plain_law

if TYPE_CHECKING:
    from outrider.verify.base import Verifier

FALSE_ALARM = 1e-9
TEXTS, LENGTH, K, VOCAB = 2500, 2, 2, 3


def rolled(*probabilities: float) -> Model:
    """A model whose row turns with every token that went before."""
    return lambda prefix: np.roll(probabilities, sum(prefix))


# Two tokens stay in the residual, else the noise of a replacement would not matter.
P, Q = rolled(0.05, 0.55, 0.4), rolled(0.7, 0.02, 0.28)


def log_row(model: Model, prefix: Prefix) -> torch.Tensor:
    return torch.from_numpy(model(prefix)).float().log()


def text(verifier: Verifier, randomness: KeyedRandomness) -> Prefix:
    """LENGTH tokens in as many rounds as it takes, K drafted in each."""
    tokens: Prefix = ()
    while len(tokens) < LENGTH:
        draws = randomness.round(len(tokens))
        draft, rows = tokens, []
        for i in range(K):
            rows.append(log_row(Q, draft))
            draft += (draws.draft(i, rows[i]),)
        logp_TV = torch.stack([log_row(P, draft[: len(tokens) + i]) for i in range(K + 1)])
        verdict = verifier.judge(Draft(draft[len(tokens) :], torch.stack(rows)), logp_TV, draws)
        tokens = (*draft[: len(tokens) + verdict.kept], verdict.token)
    return tokens[:LENGTH]


def chi_square_of_texts(name: str, shared_noise: bool) -> float:
    verifier = verifier_named(name)
    counts = Counter(text(verifier, KeyedRandomness(seed, shared_noise)) for seed in range(TEXTS))
    law = plain_law(P, LENGTH)
    return sum((counts[tokens] - TEXTS * chance) ** 2 / (TEXTS * chance) for tokens, chance in law.items())


@pytest.mark.parametrize("name", ["standard", "block", "coupled"])
def test_texts_follow_the_targets_law(name: str) -> None:
    limit = chi2.isf(FALSE_ALARM, df=VOCAB**LENGTH - 1)
    assert chi_square_of_texts(name, verifier_named(name).shared_noise) < limit


@pytest.mark.parametrize("name", ["standard", "block"])
def test_control_draft_noise_that_the_replacement_uses_again_is_seen(name: str) -> None:
    limit = chi2.isf(FALSE_ALARM, df=VOCAB**LENGTH - 1)
    assert chi_square_of_texts(name, shared_noise=True) > limit
