"""Block verification: the draft is judged as a whole, which keeps more tokens and stays exact.

Sun et al. 2403.10444, algorithm 2. A token that is too likely under the draft can be made up for by a later
one that is too unlikely, so a refusal at one position does not end the round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from outrider.types import Draft, Verdict
from outrider.verify.token import emit_residual, log_ratio

if TYPE_CHECKING:
    from outrider.verify.base import Draws, Rows


class BlockVerifier:
    """Keeps the longest prefix whose own acceptance succeeds; never fewer tokens in the mean than the token rule."""

    name: str = "block"
    lossless: bool = True
    shared_noise: bool = False

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        """``draft.logq_KV`` must be what the tokens were drawn from; None is a point mass on each."""
        k = len(draft.tokens)
        assert len(logp_TV) == k + 1, "one row per draft token and one after them"
        log_weights = _log_weights(draft, logp_TV)
        # Acceptances are independent, so the largest that succeeds is the first one met from the end.
        for kept in range(k, 0, -1):
            if draws.accept(kept - 1, _acceptance(draft, logp_TV, log_weights, kept)):
                break
        else:
            kept = 0
        if kept == k:
            return Verdict(k, draws.emit(k, logp_TV[k]))
        return Verdict(kept, emit_residual(draft, logp_TV, kept, log_weights[kept], draws))


def _log_weights(draft: Draft, logp_TV: Rows) -> list[float]:
    """log P_i, i = 0..k: the running ratio p/q of the first i tokens, capped at 1 after each."""
    log_weights = [0.0]
    for i in range(len(draft.tokens)):
        # After a token that the target refuses outright all weights are 0, whatever the rows say.
        refused = log_weights[-1] == -math.inf
        log_weights.append(-math.inf if refused else min(0.0, log_weights[-1] + log_ratio(draft, logp_TV, i)))
    return log_weights


def _acceptance(draft: Draft, logp_TV: Rows, log_weights: list[float], kept: int) -> float:
    """h_i, the probability that the first i = ``kept`` tokens are accepted as a prefix: Z / (Z + 1 - P_i)."""
    weight = log_weights[kept]
    if weight == -math.inf:
        return 0.0
    if kept == len(draft.tokens):
        return math.exp(weight)
    mass = _residual_mass(draft, logp_TV, kept, weight)
    lacking = -math.expm1(weight)
    # 0/0 says that the prefix is fully paid for and the next row agrees too.
    return mass / (mass + lacking) if mass + lacking > 0 else 1.0


def _residual_mass(draft: Draft, logp_TV: Rows, i: int, log_weight: float) -> float:
    """Z, the sum of max(0, P·p - q) at draft position i; a point mass leaves what p gives to other tokens."""
    if draft.logq_KV is None:
        return math.exp(log_weight) * -math.expm1(min(0.0, logp_TV[i][draft.tokens[i]].item()))
    weighted_V = logp_TV[i].numpy() + log_weight
    excess_V = np.exp(weighted_V) - np.exp(draft.logq_KV[i].to(logp_TV[i]).numpy())
    return float(np.maximum(excess_V, 0, out=excess_V).sum())
