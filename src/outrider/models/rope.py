"""Rotary position embedding as one complex multiplication."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from outrider.models.decoder_config import RopeConfig

# Vectorised and scalar complex products round differently, so a row must never meet the scalar tail of a kernel: rows
# are whole vectors wide (LANES floats), and one call stays below the size at which torch splits work among threads.
LANES = 32
_SERIAL_ELEMENTS = 32768


def frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair, ``(head_dim / 2,)`` (RoFormer; Llama 3.1 for the stretched bands)."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    wavelength = 2 * math.pi / plain
    low, high = rope.original_length / rope.low_freq_factor, rope.original_length / rope.high_freq_factor
    share = (rope.original_length / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between = (1 - share) * plain / rope.factor + share * plain
    return torch.where(wavelength > low, plain / rope.factor, torch.where(wavelength < high, plain, between))


def rotation_table(rope: RopeConfig, head_dim: int, length: int) -> torch.Tensor:
    """``(length, head_dim / 2)`` complex: the turn of every pair at every position.

    Cosines are taken in double precision, so that an entry depends on its position alone and not on the table's size.
    """
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies(rope, head_dim)
    wide = angles.double()
    return torch.complex(wide.cos().float(), wide.sin().float())


def pair_order(head_dim: int) -> torch.Tensor:
    """Where each row of a q or k head goes so that the halves Transformers rotates together become neighbours."""
    return torch.arange(head_dim).view(2, -1).t().reshape(-1)


def rotate_rows(rows_NC: torch.Tensor, turns_NC: torch.Tensor) -> None:
    """Multiply complex rows by their turns in place."""
    count, width = rows_NC.shape
    step = max(1, (_SERIAL_ELEMENTS - 1) // width)
    if count <= step:
        rows_NC.mul_(turns_NC)
        return
    for start in range(0, count, step):
        rows_NC[start : start + step].mul_(turns_NC[start : start + step])
