"""Greedy verification: at temperature 0 every exact rule becomes this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.types import Draft, Verdict

if TYPE_CHECKING:
    import torch

    from outrider.verify.base import Draws


class GreedyVerifier:
    """Keeps draft tokens while they are the target's likeliest, then emits the target's own.

    Among equals the lowest token id wins, as in plain greedy decoding. Draws nothing at random.
    """

    name: str = "greedy"
    lossless: bool = True
    shared_noise: bool = False

    def judge(self, draft: Draft, logp_TV: torch.Tensor, draws: Draws) -> Verdict:  # noqa: ARG002
        """Only the order within each row of ``logp_TV`` matters; it need not be normalised."""
        best = logp_TV.argmax(-1).tolist()
        assert len(best) == len(draft.tokens) + 1, "one row per draft token and one after them"
        kept = 0
        while kept < len(draft.tokens) and draft.tokens[kept] == best[kept]:
            kept += 1
        return Verdict(kept, best[kept])
