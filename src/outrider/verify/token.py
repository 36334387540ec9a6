"""Token-level verification: speculative sampling as first published.

Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318, algorithm 2. In log space throughout, and in the
dtype it is given.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from outrider.types import Draft, Verdict

if TYPE_CHECKING:
    from outrider.verify.base import Draws, Rows


class TokenVerifier:
    """Keeps each draft token with probability min(1, p/q); the first refusal is replaced from the residual."""

    name: str = "standard"
    lossless: bool = True
    shared_noise: bool = False

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        """``draft.logq_KV`` must be what the tokens were drawn from; None is a point mass on each."""
        assert len(logp_TV) == len(draft.tokens) + 1, "one row per draft token and one after them"
        for i in range(len(draft.tokens)):
            if not draws.accept(i, math.exp(min(0.0, log_ratio(draft, logp_TV, i)))):
                return Verdict(i, emit_residual(draft, logp_TV, i, 0.0, draws))
        last = len(draft.tokens)
        return Verdict(last, draws.emit(last, logp_TV[last]))


def log_ratio(draft: Draft, logp_TV: Rows, i: int) -> float:
    """log p(x)/q(x) of draft token i; -inf where the target refuses the token outright."""
    token = draft.tokens[i]
    logp = logp_TV[i][token].item()
    if draft.logq_KV is None:
        return logp
    logq = draft.logq_KV[i, token].item()
    assert logq > -math.inf, f"draft token {token} at position {i} is reported as drawn with probability 0"
    return logp - logq


def residual(draft: Draft, logp_TV: Rows, i: int, log_weight: float) -> torch.Tensor:
    """log max(0, w·p - q) at draft position i, unnormalised, w = exp(``log_weight``) at most 1; shape (V,).

    Against a point mass w·p - 1 is never positive, so the residual is w·p with the draft token taken out.
    """
    weighted_V = logp_TV[i].numpy() + log_weight
    if draft.logq_KV is None:
        weighted_V[draft.tokens[i]] = -math.inf
        return torch.from_numpy(weighted_V)
    logq_V = draft.logq_KV[i].to(logp_TV[i]).numpy()
    # Where q is 0 or not below w·p, the logarithm meets what `where` leaves out. Of what is added to a logarithm only
    # the absolute error counts, so log1p, which takes ten times as long, would add nothing.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        difference_V = weighted_V + np.log(1 - np.exp(logq_V - weighted_V))
    return torch.from_numpy(np.where(weighted_V > logq_V, difference_V, -math.inf))


def emit_residual(draft: Draft, logp_TV: Rows, i: int, log_weight: float, draws: Draws) -> int:
    """The token that replaces draft token i.

    A residual without mass means p and q agree and the refusal was a rounding error: then the target itself.
    """
    residual_V = residual(draft, logp_TV, i, log_weight)
    possible = bool(residual_V.numpy().max() > -math.inf)
    return draws.emit(i, residual_V if possible else logp_TV[i])
