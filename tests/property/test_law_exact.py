"""Invariant 3, exactly: whatever drafts and however long, the engine's output has plain decoding's law.

The whole engine loop runs once for every way its random decisions can come out, each with its exact weight.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from outrider.control.base import Offers
from outrider.control.goodput import GoodputController
from outrider.draft.drafting import begin
from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.several import SeveralDrafter
from outrider.engine import engine as engine_module
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.sampling.policy import policy
from outrider.testing import AdversarialDrafter, RandomDrafter, ScheduledController
from outrider.types import Choice, Draft, RequestState, StepTrace
from outrider.verify.reference import EnumeratingDraws, Law, every_outcome, total_variation
from tests.support import SteadyCost, make_engine, run_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.config import VerifierName
    from outrider.control.base import Controller
    from outrider.draft.base import Drafter

V = 3
PROMPT = (0, 1)
TARGET = ToyModel(V, 2, seed=3)
DRAFT = ToyModel(V, 2, seed=4)

# Rows are float32 and laws are summed in float64: they may differ by the rounding of a few tokens.
ROUNDING = 1e-6


@dataclass(frozen=True)
class EnumeratedRandomness:
    """Stands in for ``KeyedRandomness`` and its rounds: drafts, acceptances and tokens follow one script of choices."""

    draws: EnumeratingDraws
    shared_noise: bool = False

    def round(self, start: int) -> EnumeratedRandomness:
        del start
        return self

    def accept(self, i: int, probability: float) -> bool:
        return self.draws.accept(i, probability)

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        return self.draws.emit(i, logp_V)

    def draft(self, i: int, logq_W: torch.Tensor, ids_W: object = None) -> int:
        """A place is drawn, whatever token it stands for."""
        return self.emit(i, logq_W)


class Liar(RandomDrafter):
    """Draws from its laws and reports uniform ones."""

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        drafts = super().propose(sequences, budgets)
        return [d if d.logq_KV is None else Draft(d.tokens, torch.full_like(d.logq_KV, 1 / V).log()) for d in drafts]


class Narrow(RandomDrafter):
    """Knows some of the target's tokens, and what the draft model thinks of those."""

    ids_W = np.array([0, 2])

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: RequestState, budget: int) -> Draft:
        row = begin(sequence, budget, frozenset(), V, ids_W=self.ids_W)
        while row.wants_more:
            row.draw(DRAFT.logits((*sequence.tokens, *row.tokens))[torch.from_numpy(self.ids_W)])
        return row.draft()


class Reacting:
    """Drafts more after a round that kept something: a controller may learn from past rounds."""

    def __init__(self) -> None:
        self._k = 2

    def choose(self, sequences: Sequence[RequestState], offers: Offers) -> list[Choice]:
        return [Choice(self._k, each[0]) if each else Choice() for each in map(offers, sequences)]

    def observe(self, trace: StepTrace) -> None:
        self._k = 2 if any(round_.kept for round_ in trace.rounds) else 1

    def close(self, sequence_id: int) -> None:
        """Nothing is a sequence's own."""


PARAMS = {
    "as it is": SamplingParams(max_tokens=3),
    "two likeliest": SamplingParams(max_tokens=3, temperature=1.7, top_k=2),
    "nucleus": SamplingParams(max_tokens=3, temperature=0.8, top_p=0.8),
    "no end before the second": SamplingParams(max_tokens=3, min_tokens=1, stop_token_ids=(2,)),
}
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(ToyRunner(DRAFT, 2, 16), V),
    "the target itself": lambda: ModelDrafter(ToyRunner(TARGET, 2, 16), V),
    "random": lambda: RandomDrafter(V, zeros=0.4),
    "narrow": lambda: Narrow(V),
    "ngram": lambda: NgramDrafter(1, 2),
    "several": lambda: SeveralDrafter([NgramDrafter(1, 2), ModelDrafter(ToyRunner(DRAFT, 2, 16), V)]),
    "adversarial": lambda: AdversarialDrafter(V, 2),
}
CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "two": lambda: ScheduledController([2]),
    "ragged": lambda: ScheduledController([1, 0, 2]),
    "reacting": Reacting,
    "goodput": lambda: GoodputController(SteadyCost({1: 1.0, 5: 1.1}), most=2),
}


def plain(params: SamplingParams, tokens: tuple[int, ...] = (), target: ToyModel = TARGET) -> Law:
    """Law of plain decoding by its definition, without the engine."""
    if len(tokens) == params.max_tokens or (tokens and tokens[-1] in params.stop_token_ids):
        return {tokens: 1.0}
    logits_1V = target.logits((*PROMPT, *tokens))[None]
    p_V = policy(logits_1V, params, len(tokens), frozenset(params.stop_token_ids))[0].double().exp()
    law: Law = {}
    for token, chance in enumerate(p_V.tolist()):
        if chance > 0:
            law |= {longer: chance * more for longer, more in plain(params, (*tokens, token), target).items()}
    return law


def engine_law(
    monkeypatch: pytest.MonkeyPatch,
    drafter: Callable[[], Drafter],
    controller: Callable[[], Controller],
    params: SamplingParams,
    rule: VerifierName,
) -> Law:
    """Exact probability of every output of the real engine."""

    def once(draws: EnumeratingDraws) -> tuple[int, ...]:
        monkeypatch.setattr(engine_module, "KeyedRandomness", lambda _seed, _shared: EnumeratedRandomness(draws))
        engine = make_engine(drafter(), controller(), runner=ToyRunner(TARGET, 1, 16), rule=rule)
        return run_one(engine, PROMPT, params).outputs[0].token_ids

    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for tokens, weight in every_outcome(once):
        law[tokens] += weight
    return dict(law)


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_invariant_3_the_law_is_plain_decodings(
    monkeypatch: pytest.MonkeyPatch, drafter: Callable[[], Drafter], params: SamplingParams, rule: VerifierName
) -> None:
    law = engine_law(monkeypatch, drafter, CONTROLLERS["two"], params, rule)
    assert total_variation(law, plain(params)) < ROUNDING


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("drafter", ["model", "several"])
@pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)
def test_invariant_3_whatever_the_controller(
    monkeypatch: pytest.MonkeyPatch, controller: Callable[[], Controller], drafter: str, rule: VerifierName
) -> None:
    params = SamplingParams(max_tokens=4, top_k=2)
    law = engine_law(monkeypatch, DRAFTERS[drafter], controller, params, rule)
    assert total_variation(law, plain(params)) < ROUNDING


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_drafter_that_lies_about_its_law_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: VerifierName) -> None:
    law = engine_law(monkeypatch, lambda: Liar(V), CONTROLLERS["two"], PARAMS["as it is"], rule)
    assert total_variation(law, plain(PARAMS["as it is"])) > 0.05
