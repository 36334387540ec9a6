"""One sequence's draft in the making, by any drafter that has logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from outrider.sampling.arrays import Floats, as_floats
from outrider.sampling.policy import PolicyRows, without
from outrider.types import Draft, RequestState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from outrider.sampling.rng import RoundDraws


@dataclass
class Drafting:
    """One sequence's draft in the making."""

    sequence: RequestState
    budget: int
    draws: RoundDraws
    stops: frozenset[int]
    """Places of the tokens that ``min_tokens`` still holds back."""
    vocab_size: int
    """The target's."""
    ids_W: NDArray[np.intp] | None = None
    """The target's ids of the W tokens that the drafter has logits of, ascending; None: they are the target's first."""
    floor: float = 0.0
    """Greedy drafts end before a token with which all of it would be less likely than this, by the drafter itself."""
    likely: float = 1.0
    tokens: list[int] = field(default_factory=list)
    laws: list[torch.Tensor] = field(default_factory=list)
    """Rows (W,) that tokens were drawn from, where a verifier looks at them."""

    @property
    def wants_more(self) -> bool:
        return len(self.tokens) < self.budget

    def doubtful(self, logits_W: torch.Tensor) -> bool:
        """Whether the draft should end here; then it does. Decided on the whole law, before anything is drawn from it:
        to withdraw a token for its own likelihood would bend the output's law.
        """
        if self.floor == 0 or not self.sequence.params.greedy:
            return False
        # By numpy, as all that is done with rows here: torch shares work on long ones out to OpenMP threads, which then
        # spin while the next pass needs their cores.
        row_W = as_floats(logits_W)
        self.likely /= float(np.exp(row_W - row_W.max()).sum())
        if self.likely >= self.floor:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self.budget = len(self.tokens)

    def draw(self, logits_W: torch.Tensor) -> int | None:
        """Choose the next draft token and keep the very row it was chosen from.

        None, and the draft ends here, where the row leaves nothing to choose: a draft may know none of the tokens that
        are allowed, or be broken, and that must not stop the requests beside it.
        """
        generated = len(self.sequence.tokens) - self.sequence.prompt_length + len(self.tokens)
        row_W = as_floats(logits_W)[: self.vocab_size]
        if generated < self.sequence.params.min_tokens:
            row_W = without(row_W, self.stops)
        best = int(row_W.argmax())
        # Where anything is NaN, that is the place of the maximum.
        if not math.isfinite(row_W[best]):
            self._end()
            return None
        place = best if self.sequence.params.greedy else self._sampled(row_W, generated)
        token = place if self.ids_W is None else int(self.ids_W[place])
        self.tokens.append(token)
        return token

    def _sampled(self, row_W: Floats, generated: int) -> int:
        # As the target's own rows: where noise is shared only the winner counts, and equal logits have equal winners.
        compared = self.sequence.randomness.shared_noise
        logq_W = PolicyRows(row_W[None], self.sequence.params, generated, frozenset(), not compared)[0]
        if not compared:
            self.laws.append(logq_W)
        return self.draws.draft(len(self.tokens), logq_W, self.ids_W)

    def draft(self) -> Draft:
        # Under shared noise the verifier compares tokens only, and k vocabularies are not free.
        if not self.laws:
            return Draft(tuple(self.tokens))
        logq_KV = np.full((len(self.laws), self.vocab_size), -math.inf, np.float32)
        for logq_V, logq_W in zip(logq_KV, self.laws, strict=True):
            logq_V[slice(logq_W.shape[0]) if self.ids_W is None else self.ids_W] = logq_W.numpy()
        return Draft(tuple(self.tokens), torch.from_numpy(logq_KV))


def begin(
    sequence: RequestState,
    budget: int,
    eos_ids: frozenset[int],
    vocab_size: int,
    *,
    ids_W: NDArray[np.intp] | None = None,
    floor: float = 0.0,
) -> Drafting:
    """An empty draft of at most ``budget`` tokens for a target of ``vocab_size``; ``eos_ids`` end its texts.

    ``ids_W`` and ``floor``: see ``Drafting``.
    """
    params, stops = sequence.params, frozenset[int]()
    if params.min_tokens > len(sequence.tokens) - sequence.prompt_length:
        stops = (frozenset() if params.ignore_eos else eos_ids) | frozenset(params.stop_token_ids)
        if ids_W is not None:
            stops = frozenset(np.isin(ids_W, list(stops)).nonzero()[0].tolist())
    draws = sequence.randomness.round(len(sequence.tokens))
    return Drafting(sequence, budget, draws, stops, vocab_size, ids_W, floor)
