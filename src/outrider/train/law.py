"""The target's law of the next token, from what a capture keeps of a position."""

from __future__ import annotations

import torch


@torch.no_grad()
def target_law(final_RD: torch.Tensor, lse_R: torch.Tensor, head_VD: torch.Tensor) -> torch.Tensor:
    """Probabilities ``(R, V)`` of the head's tokens, not renormalised: the rest belongs to tokens left out."""
    return (final_RD.float() @ head_VD.T - lse_R[:, None]).exp_()
