"""MixedLoss of the SPIRe article: cross-entropy against the target's law, and the acceptance rate itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Losses:
    """Sums over rows, so that batches of different sizes add up."""

    loss: torch.Tensor
    accepted: torch.Tensor
    """Sum over rows of alpha = sum_x min(p, q)."""
    hits: torch.Tensor
    """Rows where both laws have the same likeliest token."""


def mixed_loss(p_RV: torch.Tensor, logits_RV: torch.Tensor, omega: float, hard: bool) -> Losses:
    """``omega * CE(p, q) + (1 - omega) * (-alpha)``, summed over rows (article, equation of MixedLoss).

    ``p_RV``: the target's probabilities of the draft's vocabulary, not renormalised: what is missing cannot be drafted.
    ``hard``: the cross-entropy is against the likeliest token instead (the article's ablation).
    """
    logq_RV = torch.log_softmax(logits_RV.float(), -1)
    alpha_R = torch.minimum(p_RV, logq_RV.exp()).sum(-1)
    best_R = p_RV.argmax(-1)
    entropy_R = torch.nn.functional.nll_loss(logq_RV, best_R, reduction="none") if hard else -(p_RV * logq_RV).sum(-1)
    loss = (omega * entropy_R - (1 - omega) * alpha_R).sum()
    return Losses(loss, alpha_R.sum().detach(), (best_R == logits_RV.argmax(-1)).sum().detach())
