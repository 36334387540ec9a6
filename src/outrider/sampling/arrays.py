"""Tensors as numpy arrays, for work on one row.

A round's own work goes through numpy: torch gives what has more than 32,768 elements (exp and log: 2,048) to OpenMP
threads, which spin for a while afterwards, on cores that the next forward pass needs.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]


def as_floats(x: torch.Tensor) -> Floats:
    """The values in float32; the tensor's own memory where they lie on the CPU in float32 already."""
    if x.dtype is not torch.float32 or x.requires_grad or not x.is_cpu:
        # Only where it must be: for one row each of these calls takes as long as the work on it.
        x = x.detach().float().cpu()
    array: Floats = x.numpy()
    return array
