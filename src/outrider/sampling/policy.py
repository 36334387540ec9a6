"""The one place where logits become probabilities, for the target model and for drafts alike.

A row's bits never depend on the rows beside it, because each is computed on its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from outrider.errors import RequestError
from outrider.sampling.arrays import Floats, as_floats

if TYPE_CHECKING:
    from collections.abc import Collection

    from outrider.sampling.params import SamplingParams

_SMALLEST_TEMPERATURE: Final = 1e-30
"""Smaller ones vanish in float32, and already leave only the exact maxima."""
_MAY_OVERFLOW: Final = 1e-3
"""Dividing by less may send logits to -inf; numpy warns of that unless told not to, which takes longer."""


class PolicyRows:
    """Log-probabilities (float32) that decoding uses for the rows of one sequence, in vLLM's order.

    ``generated`` output tokens are committed before row 0, so row i chooses output token ``generated + i``;
    ``stop_ids`` are impossible in rows before ``min_tokens``. Then temperature, min_p, top_k, top_p. Tokens equal to
    the last one kept by top_k or top_p are kept too, so that no order among equals is needed.

    At temperature 0 the float32 logits come back unnormalised: only their order matters. So do rows that are not
    ``normalised``, for who only draws from them: log-weights of the same law. A row is computed when it is first asked
    for, so that rows behind a refused draft token cost nothing.
    """

    def __init__(
        self,
        logits_TV: Floats,
        params: SamplingParams,
        generated: int,
        stop_ids: frozenset[int],
        normalised: bool = True,
    ) -> None:
        self._logits_TV = logits_TV
        self._params = params
        self._held_rows = params.min_tokens - generated if stop_ids else 0
        self._stop_ids = stop_ids
        self._normalised = normalised
        self._rows: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self._logits_TV)

    def __getitem__(self, i: int) -> torch.Tensor:
        """Row i, shape (V,); do not write to it."""
        if i not in self._rows:
            self._rows[i] = self._compute(i)
        return self._rows[i]

    def _compute(self, i: int) -> torch.Tensor:
        logits_V = self._logits_TV[i]
        if i < self._held_rows:
            if self._stop_ids.issuperset(range(logits_V.size)):
                raise RequestError(
                    f"min_tokens leaves no token to choose: all {logits_V.size} are stop tokens; set min_tokens=0 or "
                    "fewer of them"
                )
            logits_V = without(logits_V, self._stop_ids)
        if not self._params.greedy:
            logits_V = _log_weights(logits_V, self._params)
            if self._normalised:
                logits_V = _log_softmax(logits_V)
        return torch.from_numpy(logits_V)


def policy(logits_TV: torch.Tensor, params: SamplingParams, generated: int, stop_ids: frozenset[int]) -> torch.Tensor:
    """All of ``PolicyRows`` at once, shape (T, V)."""
    rows = PolicyRows(as_floats(logits_TV), params, generated, stop_ids)
    logp_TV = np.empty(logits_TV.shape, dtype=np.float32)
    for i in range(len(rows)):
        logp_TV[i] = rows[i].numpy()
    return torch.from_numpy(logp_TV)


def target_logprobs(logits_TV: torch.Tensor) -> torch.Tensor:
    """What ``logprobs`` reports: log-softmax of the raw logits in float32, before any policy (vLLM's raw_logprobs)."""
    logp_TV = np.empty(logits_TV.shape, dtype=np.float32)
    for i, logits_V in enumerate(as_floats(logits_TV)):
        logp_TV[i] = _log_softmax(logits_V)
    return torch.from_numpy(logp_TV)


def without(logits_V: Floats, tokens: Collection[int]) -> Floats:
    """The row with these tokens impossible, those that it has."""
    held_V = logits_V.copy()
    held_V[[token for token in tokens if 0 <= token < held_V.size]] = -math.inf
    return held_V


def _log_weights(logits_V: Floats, params: SamplingParams) -> Floats:
    x_V = _tempered(logits_V, params.temperature)
    if params.min_p > 0:
        x_V = _from(x_V, math.log(params.min_p))
    if 0 < params.top_k < x_V.size:
        x_V = _from(x_V, torch.from_numpy(x_V).topk(params.top_k).values[-1].item())
    if params.top_p < 1:
        x_V = _log_softmax(x_V)
        x_V = _from(x_V, _least_of_nucleus(x_V, params.top_p))
    return x_V


def _tempered(logits_V: Floats, temperature: float) -> Floats:
    # Relative to the maximum first: a tiny temperature then sends the others to -inf, and never anything to +inf.
    x_V: Floats = logits_V - logits_V[logits_V.argmax()]
    if temperature >= _MAY_OVERFLOW:
        x_V /= np.float32(temperature)
        return x_V
    with np.errstate(over="ignore"):
        x_V /= np.float32(max(temperature, _SMALLEST_TEMPERATURE))
    return x_V


def _from(x_V: Floats, least: float) -> Floats:
    """What is less likely than ``least`` becomes impossible."""
    kept = (x_V >= np.float32(least)).nonzero()[0]
    out_V = np.full_like(x_V, -math.inf)
    out_V[kept] = x_V[kept]
    return out_V


def _least_of_nucleus(logp_V: Floats, top_p: float) -> float:
    """Log-probability of the last token of the smallest set, likeliest first, whose mass reaches ``top_p``."""
    # All tokens less likely than (1 - top_p)/V weigh less than 1 - top_p together, so none of them is in the set:
    # sorting the few others is enough.
    candidates = np.sort(logp_V[(logp_V >= math.log((1 - top_p) / logp_V.size)).nonzero()[0]])[::-1]
    mass = np.exp(candidates, dtype=np.float64).cumsum()
    last = min(int(mass.searchsorted(top_p)), candidates.size - 1)
    return float(candidates[last])


def _log_softmax(x_V: Floats) -> Floats:
    # One row stays on one thread in torch too.
    return as_floats(torch.log_softmax(torch.from_numpy(x_V), -1))
