"""MixedLoss of the SPIRe article: cross-entropy against the target's law, and the acceptance rate itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

_ROWS = 32
"""X: rows at a time: what a vocabulary needs of them stays in a core's cache, where whole tensors go through memory."""


@dataclass(frozen=True)
class Losses:
    """Sums over rows, so that batches of different sizes add up."""

    loss: torch.Tensor
    accepted: torch.Tensor
    """Sum over rows of alpha = sum_x min(p, q)."""
    hits: torch.Tensor
    """Rows whose likeliest token by the target's law is the draft's too; among equals any counts."""


def mixed_loss(p_RV: torch.Tensor, logits_RV: torch.Tensor, omega: float, hard: bool, left_out: int = 0) -> Losses:
    """``omega * CE(p, q) + (1 - omega) * (-alpha)``, summed over rows (article, equation of MixedLoss).

    ``p_RV``: the target's probabilities of the draft's vocabulary, not renormalised: what is missing cannot be drafted.
    ``hard``: the cross-entropy is against the likeliest token instead (the article's ablation). ``left_out``: tokens
    that the draft has beside these, each with the logit 0; the target's share of them is taken for none, as each by
    itself is as good as never drafted.
    """
    sums_3 = _MixedLoss.apply(p_RV, logits_RV, omega, hard, left_out)  # type: ignore[no-untyped-call]
    return Losses(sums_3[0], sums_3[1].detach(), sums_3[2].detach())


class _MixedLoss(torch.autograd.Function):
    """Loss and gradient in one visit of every row.

    With m = 1 where q < p: d CE / d logit = P q - p for P = sum p, and d alpha / d logit = q (m - sum q m).
    """

    @staticmethod
    def forward(
        ctx: Any, p_RV: torch.Tensor, logits_RV: torch.Tensor, omega: float, hard: bool, left_out: int
    ) -> torch.Tensor:
        gradient_RV = torch.empty_like(logits_RV)
        sums_3 = p_RV.new_zeros(3)
        chunks = zip(*(torch.split(each, _ROWS) for each in (p_RV, logits_RV, gradient_RV)), strict=True)
        for p_XV, logits_XV, gradient_XV in chunks:
            sums_3 += _rows(p_XV, logits_XV.to(p_XV.dtype), omega, hard, left_out, gradient_XV)
        ctx.save_for_backward(gradient_RV)
        return sums_3

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[None, torch.Tensor, None, None, None]:
        (gradient_RV,) = ctx.saved_tensors
        return None, gradient_RV * upstream[0][0].to(gradient_RV.dtype), None, None, None


def _rows(
    p_XV: torch.Tensor,
    logits_XV: torch.Tensor,
    omega: float,
    hard: bool,
    left_out: int,
    gradient_XV: torch.Tensor,
) -> torch.Tensor:
    """Loss, alpha and hits, summed; the gradient of the loss by logits is written to ``gradient_XV``."""
    q_XV = torch.softmax(logits_XV, -1)
    # log q of the likeliest token is its logit less the log of the partition function, which softmax kept to itself.
    top_X1, top_q_X1 = logits_XV.amax(-1, keepdim=True), q_XV.amax(-1, keepdim=True)
    lse_X1 = top_X1 - top_q_X1.log()
    if left_out:
        whole_X1 = torch.logaddexp(lse_X1, lse_X1.new_tensor(math.log(left_out)))
        q_XV, lse_X1 = q_XV.mul_((lse_X1 - whole_X1).exp()), whole_X1
    accepted = torch.minimum(p_XV, q_XV).sum()
    best_X1 = p_XV.argmax(-1, keepdim=True)
    hits = (logits_XV.gather(-1, best_X1) == top_X1).sum()
    if hard:
        entropy = (lse_X1 - logits_XV.gather(-1, best_X1)).sum()
        aim_XV, mass_X1 = torch.zeros_like(p_XV).scatter_(-1, best_X1, 1.0), torch.ones_like(lse_X1)
    else:
        aim_XV, mass_X1 = p_XV, p_XV.sum(-1, keepdim=True)
        entropy = (mass_X1 * lse_X1).sum() - torch.dot(p_XV.flatten(), logits_XV.flatten())
    # Straight into numbers: a bool tensor, or torch.where, takes several times as long.
    short_XV = torch.lt(q_XV, p_XV, out=torch.empty_like(p_XV)).mul_(q_XV)
    pull_X1 = omega * mass_X1 + (1 - omega) * short_XV.sum(-1, keepdim=True)
    gradient_XV.copy_(q_XV.mul_(pull_X1).sub_(aim_XV, alpha=omega).sub_(short_XV, alpha=1 - omega))
    return torch.stack((omega * entropy - (1 - omega) * accepted, accepted, hits))
