"""Ranks of random choices: uniform where the odds are right, and not where a drafter or the noise cheats."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from outrider.audit.distribution import draw
from outrider.audit.draws import ACCEPTED, DRAFTED, EMITTED, DrawCheck, DrawWatch, rank
from outrider.audit.engine_sampler import EngineSampler
from outrider.config import VerifierName
from outrider.draft.base import Drafter
from outrider.draft.ngram import NgramDrafter
from outrider.sampling import rng
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import KeyedRandomness
from outrider.testing import RandomDrafter
from outrider.types import Draft, RequestState
from outrider.verify import verifier_named
from tests.support import make_engine
from tests.unit.audits import QUESTIONS, VOCAB, K

ALARM = 1e-6
LAW = np.log(np.array([0.4, 0.1, 0.3, 0.1, 0.1]))


def test_a_rank_is_the_mass_of_the_likelier_and_a_share_of_the_equal() -> None:
    assert rank(LAW, 0, 0.5) == pytest.approx(0.2)
    assert rank(LAW, 2, 0.0) == pytest.approx(0.4)
    assert [rank(LAW + 3.0, token, 1.0) for token in (1, 3, 4)] == pytest.approx([1.0] * 3), "no order among equals"


def test_ranks_are_uniform_for_tokens_of_that_law_and_for_no_other() -> None:
    """Fixed seed; a faultless rank would be refused with odds of 1e-6."""
    draws, luck = np.random.default_rng(1), random.Random(1).random
    for law, uniform in ((LAW, True), (LAW * 0.8, False)):
        tokens = draws.choice(5, 5000, p=np.exp(law) / np.exp(law).sum())
        p_value = kstest([rank(LAW, int(token), luck()) for token in tokens], "uniform").pvalue
        assert (p_value > ALARM) == uniform


def test_acceptances_have_ranks_too() -> None:
    watch, draws = DrawWatch(), random.Random(2)
    for _ in range(3000):
        probability = draws.random()
        watch.accepted(probability, draws.random() < probability)
    watch.accepted(1.0, True)
    watch.accepted(0.0, False)
    assert watch.check(ALARM).tests[ACCEPTED].count == 3000, "what is certain is no choice"
    assert watch.check(ALARM).passed
    for _ in range(3000):
        probability = draws.random()
        watch.accepted(probability, draws.random() < 0.7 * probability)
    assert watch.check(ALARM).rejected == (ACCEPTED,)


def overheard(drafter: Drafter, rule: VerifierName, samples: int = 300, seed: int | None = 4) -> DrawCheck:
    watch = DrawWatch()
    sampler = EngineSampler(make_engine(drafter, K, rule=rule), "", verifier=watch)
    draw(sampler, QUESTIONS, SamplingParams(max_tokens=24, seed=seed), samples, 0)
    return watch.check(ALARM)


@pytest.mark.parametrize("rule", ["standard", "block", "coupled"])
def test_the_draws_of_a_faultless_engine_are_fair(rule: VerifierName) -> None:
    check = overheard(RandomDrafter(VOCAB), rule)
    assert check.passed
    purposes = (EMITTED,) if rule == "coupled" else (DRAFTED, ACCEPTED, EMITTED)
    assert tuple(check.tests) == purposes
    assert min(test.count for test in check.tests.values()) > 500
    assert DRAFTED not in overheard(NgramDrafter(), rule, 10).tests, "point masses are not drawn"


class Cold(RandomDrafter):
    """From the third draft token on, tokens are drawn at half the temperature that is reported."""

    def _draft(self, sequence: RequestState, budget: int) -> Draft:
        draft = super()._draft(sequence, budget)
        if draft.logq_KV is None:
            return draft
        draws = sequence.randomness.round(len(sequence.tokens))
        return Draft(
            (*draft.tokens[:2], *(draws.draft(i, 2 * draft.logq_KV[i]) for i in range(2, budget))), draft.logq_KV
        )


class Withdrawing(RandomDrafter):
    """Takes tokens back after they were drawn, when its own q is low."""

    def _draft(self, sequence: RequestState, budget: int) -> Draft:
        draft = super()._draft(sequence, budget)
        for i, token in enumerate(draft.tokens):
            if draft.logq_KV is not None and draft.logq_KV[i, token] < math.log(0.15):
                return Draft(draft.tokens[:i], draft.logq_KV[:i] if i else None)
        return draft


@pytest.mark.parametrize("drafter", [Cold(VOCAB), Withdrawing(VOCAB)])
def test_a_q_that_tokens_were_not_drawn_from(drafter: Drafter) -> None:
    assert overheard(drafter, "block").rejected == (DRAFTED,)


LAWS = ((0.2, 0.13, 0.42, 0.25), (0.5, 0.02, 0.27, 0.21))
"""p and q of every position, unless a test has its own."""


def watched_rounds(rule: str, p: Sequence[float] = LAWS[0], q: Sequence[float] = LAWS[1]) -> DrawCheck:
    """One round of two drafts under each of 4000 keys."""
    watch = DrawWatch()
    verifier = watch.wrap(verifier_named(rule))
    logp_V, logq_V = torch.tensor(p).log(), torch.tensor(q).log()
    for key in range(4000):
        draws = KeyedRandomness(key, verifier.shared_noise).round(7)
        draft = Draft((draws.draft(0, logq_V), draws.draft(1, logq_V)), torch.stack([logq_V, logq_V]))
        verifier.judge(draft, torch.stack([logp_V] * 3), draws)
    return watch.check(ALARM)


def test_the_rounds_as_they_are() -> None:
    assert all(watched_rounds(rule).passed for rule in ("standard", "block", "coupled"))


def test_acceptances_that_share_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(self: rng.RoundDraws, i: int, probability: float) -> bool:
        return int(self._noise(rng._ACCEPT, 0, 0).block(0)[0]) * 2.0**-64 < probability

    monkeypatch.setattr(rng.RoundDraws, "accept", accept)
    assert watched_rounds("standard").rejected == (ACCEPTED,)


def test_a_replacement_drawn_with_the_noise_of_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng.RoundDraws, "draft", rng.RoundDraws.emit)
    # Tokens that p likes better than q does, and q not alike.
    laws = (0.02, 0.52, 0.46), (0.59, 0.05, 0.36)
    assert watched_rounds("standard", *laws).rejected == (EMITTED,)


def test_a_race_with_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    race = rng._race
    monkeypatch.setattr(rng, "_race", lambda logp, noise, ids=None: race(logp * np.float32(1.2), noise, ids))
    assert watched_rounds("coupled").rejected == (EMITTED,)
