"""Audits of toy engines, with faults to plant in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from outrider.audit.run import EngineAudit
from outrider.audit.samples import Question
from outrider.models.base import Capabilities
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.types import Draft, Verdict
from outrider.verify.token import TokenVerifier
from tests.support import MODEL, VOCAB, make_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.config import VerifierName
    from outrider.draft.base import Drafter
    from outrider.models.base import Feed, Scores
    from outrider.verify.base import Draws, Rows

K = 3
QUESTIONS = [Question(f"prompt {i}", "", ids) for i, ids in enumerate([(1, 2, 3, 1, 2), (4, 5, 4, 5, 4), (7,)])]
SAMPLED = SamplingParams(temperature=1.0, max_tokens=24, seed=5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


def make_audit(drafter: Drafter, *, runner: ToyRunner | None = None, rule: VerifierName = "auto") -> EngineAudit:
    """A plain engine and a speculative one; a ``runner`` with a fault serves the speculative one alone."""
    return EngineAudit(
        make_engine(runner=ToyRunner(MODEL, 4, 64)),
        make_engine(drafter, K, runner=runner or ToyRunner(MODEL, 4, 64), rule=rule),
        K,
    )


class WrongCommit(ToyRunner):
    """Rolls a slot back to ``off`` tokens beside where it was told to, and believes that it did as told."""

    def __init__(self, off: int) -> None:
        super().__init__(MODEL, 4, 2000)
        self._off = off
        self._told: dict[int, int] = {}

    def length(self, sequence_id: int) -> int:
        return self._told.get(sequence_id, super().length(sequence_id))

    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        scores = super().score(feeds, hidden, layers)
        for feed in feeds:
            if feed.sequence_id in self._told:
                self._told[feed.sequence_id] += len(feed.tokens)
        return scores

    def commit(self, sequence_id: int, length: int) -> None:
        if length < self.length(sequence_id):
            held = super().length(sequence_id)
            super().commit(sequence_id, max(0, min(held, held + length - self.length(sequence_id) + self._off)))
            self._told[sequence_id] = length

    def close(self, sequence_id: int) -> None:
        super().close(sequence_id)
        self._told.pop(sequence_id, None)


class NoisyRunner(ToyRunner):
    """Adds ``noise`` to the first logit of every row that is not alone: another kernel for more rows."""

    def __init__(self, noise: float, model: ToyModel = MODEL, promises: bool = False) -> None:
        super().__init__(model, 4, 64)
        self.capabilities = Capabilities(deterministic_shape=promises)
        self._noise = noise

    def _rows(self, feed: Feed) -> torch.Tensor:
        logits_TV = super()._rows(feed).clone()
        if feed.rows > 1:
            logits_TV[:, 0] += self._noise
        return logits_TV


Spoil: TypeAlias = Callable[[int, float, float], float]
"""From the draft position, the target's probability of its token and that of accepting it: the one it is given."""


class CornerVerifier:
    """Token-level rejection whose acceptances are spoilt."""

    name = "standard"
    lossless = True
    shared_noise = False

    def __init__(self, spoil: Spoil) -> None:
        self._spoil = spoil

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        p = [math.exp(logp_TV[i][token].item()) for i, token in enumerate(draft.tokens)]
        return TokenVerifier().judge(draft, logp_TV, _Spoilt(draws, p, self._spoil))


class GenerousVerifier(CornerVerifier):
    """Accepts a little too often."""

    def __init__(self) -> None:
        super().__init__(lambda _, __, probability: 1.02 * probability)


class _Spoilt:
    def __init__(self, draws: Draws, p: Sequence[float], spoil: Spoil) -> None:
        self._draws = draws
        self._p = p
        self._spoil = spoil

    def accept(self, i: int, probability: float) -> bool:
        return self._draws.accept(i, min(1.0, self._spoil(i, self._p[i], probability)))

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        return self._draws.emit(i, logp_V)


__all__ = ["GREEDY", "QUESTIONS", "SAMPLED", "VOCAB", "K", "make_audit"]
