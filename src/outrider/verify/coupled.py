"""Coupled verification: the output is plain sampling's, token for token, whatever was drafted.

Each position's token is a function of the target's distribution and of noise keyed by position alone; a draft
that was drawn with the same noise often agrees (Daliri et al. 2408.07978, the exponential race).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.types import Draft, Verdict

if TYPE_CHECKING:
    from outrider.verify.base import Draws, Rows


class CoupledVerifier:
    """Samples the target row by row and keeps the draft as long as it says the same; ignores ``logq_KV``."""

    name: str = "coupled"
    lossless: bool = True
    shared_noise: bool = True

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        """Draws nothing beyond the first disagreement."""
        assert len(logp_TV) == len(draft.tokens) + 1, "one row per draft token and one after them"
        for i, guess in enumerate(draft.tokens):
            token = draws.emit(i, logp_TV[i])
            if token != guess:
                return Verdict(i, token)
        last = len(draft.tokens)
        return Verdict(last, draws.emit(last, logp_TV[last]))
