"""Target log-probabilities of emitted tokens, as users ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from outrider.sampling.policy import target_logprobs
from outrider.types import Logprob


def logprob_rows(
    logits_TV: torch.Tensor, tokens: Sequence[int], top: int, text_of: Callable[[int], str]
) -> list[dict[int, Logprob]]:
    """For each emitted token: itself and the ``top`` likeliest, from the target's raw logits at its own row.

    Raw means before temperature and truncation (vLLM's ``raw_logprobs``); rank 1 is the likeliest token.
    """
    logp_TV = target_logprobs(logits_TV[: len(tokens)])
    return [_row(logp_V, token, top, text_of) for logp_V, token in zip(logp_TV, tokens, strict=True)]


def _row(logp_V: torch.Tensor, token: int, top: int, text_of: Callable[[int], str]) -> dict[int, Logprob]:
    chosen = float(logp_V[token])
    rank = int(np.count_nonzero(logp_V.numpy() > chosen)) + 1
    row = {token: Logprob(chosen, rank, text_of(token))}
    if top:
        values, ids = torch.topk(logp_V, min(top, logp_V.shape[-1]))
        for rank, (value, other) in enumerate(zip(values.tolist(), ids.tolist(), strict=True), start=1):
            row.setdefault(other, Logprob(value, rank, text_of(other)))
    return row
