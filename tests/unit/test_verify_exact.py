"""Every accept rule against plain decoding, by exact enumeration, each test beside a control that must fail it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from outrider.types import Draft, Verdict
from outrider.verify import verifier_named
from outrider.verify.reference import (
    Model,
    Prefix,
    Proposal,
    Row,
    exact_law,
    expected_emitted,
    plain_law,
    random_model,
    sequence_law,
    total_variation,
)

if TYPE_CHECKING:
    from outrider.verify.base import Draws, Rows, Verifier

EXACT = 1e-12
WRONG = 1e-2
"""What a control must exceed: ten orders of magnitude above what an exact rule may show."""

SIZES = [(4, 1), (4, 2), (3, 3), (2, 4)]
"""Vocabulary size and draft length."""


def only(model: Model, tokens: list[int]) -> Model:
    """The model with every other token impossible."""

    def probabilities(prefix: Prefix) -> Row:
        weights = np.zeros_like(model(prefix))
        weights[tokens] = model(prefix)[tokens]
        return np.asarray(weights / weights.sum())

    return probabilities


def argmax_of(model: Model) -> Model:
    return lambda prefix: np.eye(len(model(prefix)))[model(prefix).argmax()]


def always(vocab_size: int) -> Proposal:
    """A drafter that proposes one token, a different one after every prefix."""
    return lambda prefix: (7 * len(prefix) + 3 * sum(prefix)) % vocab_size


def pairs(vocab_size: int) -> dict[str, tuple[Model, Proposal]]:
    """Target and drafter, both depending on the prefix."""
    p, q = random_model(vocab_size, 1), random_model(vocab_size, 2)
    first, second = [0], list(range(1, vocab_size))
    return {
        "random": (p, q),
        "equal": (p, p),
        "q with zeros": (p, random_model(vocab_size, 3, zeros=1)),
        "p with zeros": (random_model(vocab_size, 4, zeros=1), q),
        "both with zeros": (random_model(vocab_size, 5, zeros=vocab_size // 2), random_model(vocab_size, 6, zeros=1)),
        "disjoint": (only(p, second), only(q, first)),
        "point mass": (p, always(vocab_size)),
        "point mass, p with zeros": (random_model(vocab_size, 8, zeros=1), always(vocab_size)),
        "certain target": (argmax_of(p), q),
    }


@pytest.mark.parametrize("name", ["standard", "block", "coupled"])
@pytest.mark.parametrize("kind", list(pairs(2)))
@pytest.mark.parametrize(("vocab_size", "k"), SIZES)
def test_sampling_rules_emit_the_targets_law(name: str, kind: str, vocab_size: int, k: int) -> None:
    p, q = pairs(vocab_size)[kind]
    law = sequence_law(verifier_named(name), p, q, k, length=k + 1)
    assert total_variation(law, plain_law(p, k + 1)) < EXACT


@pytest.mark.parametrize("kind", list(pairs(2)))
@pytest.mark.parametrize(("vocab_size", "k"), SIZES)
def test_greedy_emits_the_argmax_chain(kind: str, vocab_size: int, k: int) -> None:
    p, q = pairs(vocab_size)[kind]
    law = exact_law(verifier_named("greedy"), p, q, k)
    assert sum(law.values()) == pytest.approx(1.0, abs=EXACT)
    chain = next(iter(plain_law(argmax_of(p), k + 1)))
    assert all(emitted == chain[: len(emitted)] for emitted in law)


@pytest.mark.parametrize("name", ["greedy", "standard", "block", "coupled"])
def test_no_draft_is_plain_decoding(name: str) -> None:
    p = random_model(4, 1)
    expected = plain_law(argmax_of(p) if name == "greedy" else p, 1)
    assert total_variation(exact_law(verifier_named(name), p, p, 0), expected) < EXACT


class InFloat32:
    """The rule as it runs in use."""

    lossless: bool = True
    shared_noise: bool = False

    def __init__(self, inner: Verifier) -> None:
        self.name: str = inner.name
        self._inner = inner

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        logq_KV = None if draft.logq_KV is None else draft.logq_KV.float()
        narrow_TV = torch.stack([logp_TV[i] for i in range(len(logp_TV))]).float()
        return self._inner.judge(Draft(draft.tokens, logq_KV), narrow_TV, draws)


@pytest.mark.parametrize("name", ["standard", "block", "coupled"])
@pytest.mark.parametrize("kind", list(pairs(2)))
def test_float32_is_exact_to_its_rounding(name: str, kind: str) -> None:
    p, q = pairs(3)[kind]
    law = sequence_law(InFloat32(verifier_named(name)), p, q, 2, length=3)
    assert total_variation(law, plain_law(p, 3)) < 1e-6


@pytest.mark.parametrize("name", ["standard", "block"])
def test_a_target_that_drafts_for_itself_keeps_everything(name: str) -> None:
    p = random_model(3, 1)
    assert expected_emitted(exact_law(verifier_named(name), p, p, 3)) == pytest.approx(4.0, abs=EXACT)


@pytest.mark.parametrize("name", ["standard", "block"])
@pytest.mark.parametrize(("vocab_size", "k"), SIZES)
def test_control_a_misreported_draft_distribution_is_seen(name: str, vocab_size: int, k: int) -> None:
    p, q = pairs(vocab_size)["random"]
    law = sequence_law(verifier_named(name), p, q, k, length=k + 1, reported=random_model(vocab_size, 99))
    assert total_variation(law, plain_law(p, k + 1)) > WRONG


@pytest.mark.parametrize("name", ["greedy", "coupled"])
def test_rules_that_ignore_the_draft_distribution_cannot_be_misled_by_it(name: str) -> None:
    p, q = pairs(3)["random"]
    truth = exact_law(verifier_named(name), p, q, 2)
    misled = exact_law(verifier_named(name), p, q, 2, reported=random_model(3, 99))
    assert total_variation(truth, misled) < EXACT


class FromTarget:
    """Draws that replace a refused token from the target instead of the residual: a common mistake."""

    def __init__(self, draws: Draws, logp_TV: Rows) -> None:
        self._draws = draws
        self._logp_TV = logp_TV

    def accept(self, i: int, probability: float) -> bool:
        return self._draws.accept(i, probability)

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        return self._draws.emit(i, self._logp_TV[i])


class ReplacesFromTarget(InFloat32):
    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        return self._inner.judge(draft, logp_TV, FromTarget(draws, logp_TV))


class KeepsOneTooMany(InFloat32):
    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        verdict = self._inner.judge(draft, logp_TV, draws)
        if verdict.kept == len(draft.tokens):
            return verdict
        return Verdict(verdict.kept + 1, draws.emit(verdict.kept + 1, logp_TV[verdict.kept + 1]))


@pytest.mark.parametrize("kind", ["random", "point mass"])
@pytest.mark.parametrize("name", ["standard", "block"])
@pytest.mark.parametrize(("vocab_size", "k"), SIZES)
def test_control_replacing_from_the_target_is_seen(name: str, kind: str, vocab_size: int, k: int) -> None:
    p, q = pairs(vocab_size)[kind]
    law = sequence_law(ReplacesFromTarget(verifier_named(name)), p, q, k, length=k + 1)
    assert total_variation(law, plain_law(p, k + 1)) > WRONG


@pytest.mark.parametrize("kind", ["random", "point mass"])
@pytest.mark.parametrize("name", ["greedy", "standard", "block", "coupled"])
def test_control_keeping_a_refused_token_is_seen(name: str, kind: str) -> None:
    p, q = pairs(3)[kind]
    target = argmax_of(p) if name == "greedy" else p
    law = sequence_law(KeepsOneTooMany(verifier_named(name)), p, q, 2, length=3)
    assert total_variation(law, plain_law(target, 3)) > WRONG
