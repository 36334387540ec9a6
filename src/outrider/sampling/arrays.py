"""Tensors as numpy arrays, for work on one row.

A round's own work goes through numpy: torch gives what has more than 32,768 elements (exp and log: 2,048) to OpenMP
threads, which spin for a while afterwards, on cores that the next forward pass needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = NDArray[np.float32]


def as_floats(x: torch.Tensor) -> Floats:
    """The values in float32; the tensor's own memory where they lie on the CPU in float32 already."""
    array: Floats = x.detach().float().cpu().numpy()
    return array
