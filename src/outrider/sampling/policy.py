"""The one place where logits become probabilities, for the target model and for drafts alike.

A row's bits never depend on the rows beside it: operations that give the same bits in any order (maximum,
subtraction, division) run on all rows at once, everything that sums runs a row at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.sampling.params import SamplingParams

_SMALLEST_TEMPERATURE: Final = 1e-30
"""Smaller ones vanish in float32, and already leave only the exact maxima."""


def policy(logits_TV: torch.Tensor, params: SamplingParams, generated: int, stop_ids: frozenset[int]) -> torch.Tensor:
    """Log-probabilities (float32) that decoding uses for the rows of one sequence, in vLLM's order.

    ``generated`` output tokens are committed before row 0, so row i chooses output token ``generated + i``;
    ``stop_ids`` are impossible in rows before ``min_tokens``. Then temperature, min_p, top_k, top_p. Tokens equal to
    the last one kept by top_k or top_p are kept too, so that no order among equals is needed.

    At temperature 0 the float32 logits come back unnormalised: only their order matters.
    """
    x_TV = logits_TV.to(torch.float32).contiguous()
    x_TV = _hold_back_stops(x_TV, params.min_tokens - generated, stop_ids)
    if params.greedy:
        return x_TV
    # Relative to the maximum first: a tiny temperature then sends the others to -inf, and never anything to +inf.
    x_TV = (x_TV - x_TV.amax(-1, keepdim=True)) / max(params.temperature, _SMALLEST_TEMPERATURE)
    for x_V in x_TV:
        _filter(x_V, params)
    return _log_softmax_by_row(x_TV)


def target_logprobs(logits_TV: torch.Tensor) -> torch.Tensor:
    """What ``logprobs`` reports: log-softmax of the raw logits in float32, before any policy (vLLM's raw_logprobs)."""
    return _log_softmax_by_row(logits_TV.to(torch.float32).contiguous())


def fit_vocabulary(logits_TV: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """A draft's logits over the target's vocabulary: missing tokens are impossible, padding beyond it is cut."""
    missing = vocab_size - logits_TV.shape[-1]
    if missing <= 0:
        return logits_TV[..., :vocab_size]
    return torch.nn.functional.pad(logits_TV, (0, missing), value=-math.inf)


def _hold_back_stops(x_TV: torch.Tensor, rows: int, stop_ids: frozenset[int]) -> torch.Tensor:
    if rows <= 0 or not stop_ids:
        return x_TV
    vocab_size = x_TV.shape[-1]
    inside = sorted(token for token in stop_ids if 0 <= token < vocab_size)
    if len(inside) == vocab_size:
        raise RequestError(
            f"min_tokens leaves no token to choose: all {vocab_size} are stop tokens; set min_tokens=0 or fewer of them"
        )
    held_TV = x_TV.clone()
    held_TV[:rows, inside] = -math.inf
    return held_TV


def _log_softmax_by_row(x_TV: torch.Tensor) -> torch.Tensor:
    logp_TV = torch.empty_like(x_TV)
    for x_V, logp_V in zip(x_TV, logp_TV, strict=True):
        torch.log_softmax(x_V, -1, out=logp_V)
    return logp_TV


def _filter(x_V: torch.Tensor, params: SamplingParams) -> None:
    """Set what min_p, top_k and top_p drop from one row to -inf, in place; the row's maximum is 0."""
    if params.min_p > 0:
        _drop_below(x_V, math.log(params.min_p))
    if 0 < params.top_k < x_V.shape[0]:
        _drop_below(x_V, x_V.topk(params.top_k).values[-1].item())
    if params.top_p < 1:
        logp_V = torch.log_softmax(x_V, -1)
        _drop_below(logp_V, _least_of_nucleus(logp_V, params.top_p))
        x_V.copy_(logp_V)


def _least_of_nucleus(logp_V: torch.Tensor, top_p: float) -> float:
    """Log-probability of the last token of the smallest set, likeliest first, whose mass reaches ``top_p``."""
    row = logp_V.cpu().numpy()
    # All tokens less likely than (1 - top_p)/V weigh less than 1 - top_p together, so none of them is in the set:
    # sorting the few others is enough.
    candidates = np.sort(row[row >= math.log((1 - top_p) / row.size)])[::-1]
    mass = np.exp(candidates, dtype=np.float64).cumsum()
    last = min(int(mass.searchsorted(top_p)), candidates.size - 1)
    return float(candidates[last])


def _drop_below(x_V: torch.Tensor, least: float) -> None:
    # threshold_ keeps what is strictly above its limit, in a tenth of masked_fill's time.
    limit = np.nextafter(np.float32(least), np.float32(-math.inf))
    torch.threshold_(x_V, float(limit), -math.inf)
