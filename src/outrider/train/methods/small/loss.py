"""MixedLoss of a draft that has logits for frequent tokens only, and the logit 0 for every other one."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from outrider.train.mixed_loss import Losses, mixed_loss


def small_loss(p_RV: torch.Tensor, logits_RV: torch.Tensor, left_out: int, omega: float, hard: bool) -> Losses:
    """``mixed_loss`` under the law of the whole vocabulary, of which ``left_out`` tokens have the logit 0.

    They enter as one more column, their sum. The target's share of it is taken for none: each by itself is as good as
    never drafted. So alpha means what it means for a draft whose other tokens have q = 0.
    """
    if not left_out:
        return mixed_loss(p_RV, logits_RV, omega, hard)
    rest_R1 = torch.full((len(logits_RV), 1), math.log(left_out), device=logits_RV.device)
    whole_RV = torch.cat((logits_RV.float(), rest_R1), -1)
    losses = mixed_loss(torch.nn.functional.pad(p_RV, (0, 1)), whole_RV, omega, hard)
    # The column is many tokens, so it is never the likeliest.
    return replace(losses, hits=(p_RV.argmax(-1) == logits_RV.argmax(-1)).sum().to(losses.hits))
