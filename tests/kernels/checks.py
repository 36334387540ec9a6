"""What the extension refuses, said once more in Python for the reference that stands in for it."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


def checked(
    value: object, name: str, dtype: type[Scalar], *shape: int | None, writeable: bool = False
) -> NDArray[Scalar]:
    """The array itself when it is C-contiguous, of this type and shape (None: any length)."""
    if not isinstance(value, np.ndarray) or value.dtype != np.dtype(dtype):
        raise TypeError(f"{name} must be a numpy array of {np.dtype(dtype)}")
    if not value.flags.c_contiguous or (writeable and not value.flags.writeable):
        raise TypeError(f"{name} must be C-contiguous, and writeable where results go")
    fits = value.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, value.shape, strict=True))
    require(fits, f"{name} has shape {value.shape}, not {shape}")
    return value


def instance(value: object, kind: type, name: str) -> None:
    """TypeError unless it is one."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, not {type(value).__name__}")


def require(fits: Any, message: str) -> None:
    """ValueError unless it fits."""
    if not fits:
        raise ValueError(message)


def in_range(values: NDArray[np.int32], low: int, high: int, name: str) -> None:
    """ValueError unless low <= every value < high."""
    require(np.all((values >= low) & (values < high)), f"{name} must be from {low} to {high - 1}")
