"""Rotary embedding as a SPIRe draft uses it, in training and in decoding: pairs are (i, i + E / 2)."""

from __future__ import annotations

import torch

from outrider.draft.spire.config import SpireConfig
from outrider.models.decoder_config import RopeConfig
from outrider.models.rope import rotation_table


def rotations(config: SpireConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``(positions, E / 2)``."""
    turns_PE = rotation_table(RopeConfig(config.rope_theta), config.head_dim, positions)
    return turns_PE.real.contiguous(), turns_PE.imag.contiguous()


def turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads ``(..., heads, E)`` turned by ``(..., E / 2)``, in their own dtype."""
    low, high = heads.chunk(2, -1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(heads.dtype)
