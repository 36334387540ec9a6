"""From a sequence's logits to the tokens its round emits: policy, then the accept rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.engine.logprobs import logprob_rows
from outrider.engine.sequence import Sequence
from outrider.sampling.arrays import as_floats
from outrider.sampling.policy import PolicyRows
from outrider.types import Draft, Logprob

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Judged:
    """A verdict spelled out: the tokens it emits and, where asked for, a row of log-probabilities for each."""

    kept: int
    tokens: tuple[int, ...]
    logprobs: list[dict[int, Logprob]] | None


def judge(seq: Sequence, draft: Draft, logits_TV: torch.Tensor, text_of: Callable[[int], str]) -> Judged | None:
    """Judge one sequence's draft; changes nothing. None when the model gave NaN, from which nothing can be drawn."""
    # A NaN in the hidden state reaches every column, so one column tells.
    floats_TV = as_floats(logits_TV)
    if any(map(math.isnan, floats_TV[:, 0].tolist())):
        return None
    normalised = not seq.verifier.shared_noise
    rows_TV = PolicyRows(floats_TV, seq.params, seq.generated, seq.stop_ids, normalised)
    verdict = seq.verifier.judge(draft, rows_TV, seq.randomness.round(len(seq.tokens)))
    tokens = (*draft.tokens[: verdict.kept], verdict.token)
    rows = None
    if seq.params.logprobs is not None:
        rows = logprob_rows(logits_TV, tokens, seq.params.logprobs, text_of)
    return Judged(verdict.kept, tokens, rows)
