"""Real (p, q) rows cut to a few tokens, so that every outcome of a round can be enumerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from outrider.types import Draft
from outrider.verify.reference import Row

if TYPE_CHECKING:
    from outrider.verify.base import Rows, Verifier

TOKENS: Final = 8
"""Most tokens that a row is cut to."""
OUTCOMES: Final = TOKENS**3
"""Most token sequences that a cut round can end in: 2 drafts of 8 tokens, 4 of 3, 8 of 2."""
WIDE, DEEP = 2, 8
"""Most draft positions kept of a round: few, over many tokens, or as good as all of them, over few tokens."""


@dataclass(frozen=True)
class CapturedRound:
    """One round as its verifier saw it, over the same few tokens a row; token 0 is the drafted one in every row."""

    verifier: Verifier
    p_TM: tuple[Row, ...]
    """The target's probabilities, renormalised; one row more than drafts."""
    q_KM: tuple[Row, ...] | None
    """What the drafts were reported to be drawn from, renormalised; None for point masses."""


def capture(verifier: Verifier, draft: Draft, logp_TV: Rows, depth: int = WIDE) -> CapturedRound:
    """Cut a round to its first ``depth`` drafts, and to as many tokens as can be enumerated with them."""
    # Under shared noise nothing is drawn from q: the draft is a function of the noise, and any draft must do.
    spread = draft.logq_KV is not None and not verifier.shared_noise
    drafts = min(len(draft.tokens), depth)
    tokens = max(n for n in range(2, TOKENS + 1) if n ** (drafts + 1) <= OUTCOMES)
    p_TM, q_KM = [], []
    for i in range(drafts + 1):
        p_V = probabilities(logp_TV[i])
        q_V = None
        if spread and i < drafts and draft.logq_KV is not None:
            q_V = probabilities(draft.logq_KV[i])
        ids = chosen_tokens(p_V, q_V, draft.tokens[i] if i < drafts else None, tokens)
        p_TM.append(_renormalised(p_V[ids]))
        if q_V is not None:
            q_KM.append(_renormalised(q_V[ids]))
    return CapturedRound(verifier, tuple(p_TM), tuple(q_KM) if spread else None)


def chosen_tokens(p_V: Row, q_V: Row | None, drafted: int | None, count: int = TOKENS) -> list[int]:
    """The drafted token, then the likeliest under p and under q in turn; ``count`` in all where there are as many.

    Among ``TOKENS`` or more, the last is a rare one: of those that p allows, half are likelier.
    """
    by_p = np.argsort(-p_V, kind="stable")
    tops = [by_p[:count].tolist()]
    if q_V is not None:
        tops.append(np.argsort(-q_V, kind="stable")[:count].tolist())
    drafted_first = [] if drafted is None else [drafted]
    ids = list(dict.fromkeys([*drafted_first, *(token for turn in zip(*tops, strict=True) for token in turn)]))[:count]
    rare = int(by_p[np.count_nonzero(p_V) // 2])
    if count >= TOKENS and rare not in ids:
        ids[-1] = rare
    return ids


def probabilities(logp_V: torch.Tensor) -> Row:
    """Of log-weights that need not be normalised."""
    weights: Row = torch.softmax(logp_V.double(), -1).numpy()
    return weights


def _renormalised(p_M: Row) -> Row:
    return np.asarray(p_M / p_M.sum())
