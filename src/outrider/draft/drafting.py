"""One sequence's draft in the making, by any drafter that has logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from outrider.sampling.arrays import Floats, as_floats
from outrider.sampling.policy import PolicyRows, fit_vocabulary
from outrider.types import Draft, RequestState

if TYPE_CHECKING:
    from outrider.sampling.rng import RoundDraws


@dataclass
class Drafting:
    """One sequence's draft in the making."""

    sequence: RequestState
    budget: int
    draws: RoundDraws
    stop_ids: frozenset[int]
    floor: float = 0.0
    """Greedy drafts end before a token with which all of it would be less likely than this, by the drafter itself."""
    likely: float = 1.0
    tokens: list[int] = field(default_factory=list)
    logq: list[torch.Tensor] = field(default_factory=list)

    @property
    def wants_more(self) -> bool:
        return len(self.tokens) < self.budget

    def doubtful(self, logits_V: torch.Tensor) -> bool:
        """Whether the draft should end here; then it does. Decided on the whole law, before anything is drawn from it:
        to withdraw a token for its own likelihood would bend the output's law.
        """
        if self.floor == 0 or not self.sequence.params.greedy:
            return False
        # By numpy, as all that is done with rows here: torch shares work on long ones out to OpenMP threads, which then
        # spin while the next pass needs their cores.
        row_V = as_floats(logits_V)
        self.likely /= float(np.exp(row_V - row_V.max()).sum())
        if self.likely >= self.floor:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self.budget = len(self.tokens)

    def draw(self, logits_V: torch.Tensor, vocab_size: int) -> int | None:
        """Choose the next draft token and keep the very row it was chosen from.

        None, and the draft ends here, where the row leaves nothing to choose: a draft may know none of the tokens that
        are allowed, or be broken, and that must not stop the requests beside it.
        """
        logits_1V = as_floats(fit_vocabulary(logits_V[None], vocab_size))
        if not _possible(logits_1V):
            self._end()
            return None
        i = len(self.tokens)
        generated = len(self.sequence.tokens) - self.sequence.prompt_length + i
        # As the target's own rows: where noise is shared only the winner counts, and equal logits have equal winners.
        normalised = not self.sequence.randomness.shared_noise
        logq_V = PolicyRows(logits_1V, self.sequence.params, generated, self.stop_ids, normalised)[0]
        if not _possible(logq_V.numpy()):
            self._end()
            return None
        if self.sequence.params.greedy:
            token = int(logq_V.numpy().argmax())
        else:
            token = self.draws.draft(i, logq_V)
            self.logq.append(logq_V)
        self.tokens.append(token)
        return token

    def draft(self) -> Draft:
        # Under shared noise the verifier compares tokens only, and stacking k vocabularies is not free.
        if not self.logq or self.sequence.randomness.shared_noise:
            return Draft(tuple(self.tokens))
        return Draft(tuple(self.tokens), torch.from_numpy(np.stack([logq_V.numpy() for logq_V in self.logq])))


def _possible(row_V: Floats) -> bool:
    """Whether there is something to choose, and no NaN: a maximum is NaN where anything is."""
    return math.isfinite(row_V.max())


def begin(sequence: RequestState, budget: int, eos_ids: frozenset[int], floor: float = 0.0) -> Drafting:
    """An empty draft of at most ``budget`` tokens; ``eos_ids`` are what ``min_tokens`` holds back."""
    params = sequence.params
    stop_ids = (frozenset() if params.ignore_eos else eos_ids) | frozenset(params.stop_token_ids)
    return Drafting(sequence, budget, sequence.randomness.round(len(sequence.tokens)), stop_ids, floor)
