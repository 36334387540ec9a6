"""Real (p, q) rows, taken down while an engine serves: what its verifiers were shown, cut to a few tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from outrider.types import Draft, Verdict
from outrider.verify.reference import Row

if TYPE_CHECKING:
    from outrider.verify.base import Draws, Rows, Verifier

TOKENS: Final = 8
"""Tokens that a row is cut to, the drafted one first."""
DRAFTED: Final = 2
"""Draft positions taken of a round: every draft and every outcome of them is enumerated."""


@dataclass(frozen=True)
class CapturedRound:
    """One round as its verifier saw it, over ``TOKENS`` tokens a row; token 0 is the drafted one in every row."""

    verifier: Verifier
    p_TM: tuple[Row, ...]
    """The target's probabilities, renormalised; one row more than drafts."""
    q_KM: tuple[Row, ...] | None
    """What the drafts were reported to be drawn from, renormalised; None for point masses."""


@dataclass
class Capture:
    """Wraps verifiers so that the first ``per_sequence`` rounds with a draft are kept of each sequence."""

    per_sequence: int
    rounds: list[CapturedRound] = field(default_factory=list)
    rule: Verifier | None = None
    """The verifier wrapped last."""

    def __call__(self, verifier: Verifier) -> Verifier:
        self.rule = verifier
        return _Tapped(verifier, self.rounds.append, self.per_sequence)


class _Tapped:
    """A verifier that judges as the one inside does, and is overheard."""

    def __init__(self, inner: Verifier, take: Callable[[CapturedRound], None], room: int) -> None:
        self.name = inner.name
        self.lossless = inner.lossless
        self.shared_noise = inner.shared_noise
        self._inner = inner
        self._take = take
        self._room = room

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        if draft.tokens and self._room > 0:
            self._room -= 1
            self._take(capture(self._inner, draft, logp_TV))
        return self._inner.judge(draft, logp_TV, draws)


def capture(verifier: Verifier, draft: Draft, logp_TV: Rows) -> CapturedRound:
    """Cut a round to its first drafts and likeliest tokens."""
    # Under shared noise nothing is drawn from q: the draft is a function of the noise, and any draft must do.
    spread = draft.logq_KV is not None and not verifier.shared_noise
    count = min(len(draft.tokens), DRAFTED)
    p_TM, q_KM = [], []
    for i in range(count + 1):
        p_V = _probabilities(logp_TV[i])
        q_V = None
        if spread and i < count and draft.logq_KV is not None:
            q_V = _probabilities(draft.logq_KV[i])
        ids = likeliest(p_V, q_V, draft.tokens[i] if i < count else None)
        p_TM.append(_renormalised(p_V[ids]))
        if q_V is not None:
            q_KM.append(_renormalised(q_V[ids]))
    return CapturedRound(verifier, tuple(p_TM), tuple(q_KM) if spread else None)


def likeliest(p_V: Row, q_V: Row | None, drafted: int | None, count: int = TOKENS) -> list[int]:
    """The drafted token, then the likeliest under p and under q in turn; ``count`` in all where there are as many."""
    rows = [p_V] if q_V is None else [p_V, q_V]
    tops = [np.argsort(-row, kind="stable")[:count].tolist() for row in rows]
    drafted_first = [] if drafted is None else [drafted]
    ids = dict.fromkeys([*drafted_first, *(token for turn in zip(*tops, strict=True) for token in turn)])
    return list(ids)[:count]


def _probabilities(logp_V: torch.Tensor) -> Row:
    """Of log-weights that need not be normalised."""
    probabilities: Row = torch.softmax(logp_V.double(), -1).numpy()
    return probabilities


def _renormalised(p_M: Row) -> Row:
    return np.asarray(p_M / p_M.sum())
