"""Does a row's result depend on the rows beside it? Asked of the kernels of this machine, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equality of values; -0.0 equals 0.0, NaN equals nothing."""
    return torch.equal(left, right)


def rows_are_independent(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], counts: Iterable[int]
) -> bool:
    """Compare ``function`` on all rows with the same rows in smaller numbers and at other places.

    Every input and the output have rows as their first dimension.
    """
    whole = function(*inputs)
    rows = len(whole)
    for count in counts:
        for start in {0, (rows - count) // 2, rows - count}:
            part = function(*(x[start : start + count] for x in inputs))
            if not same_bits(part, whole[start : start + count]):
                return False
    return True
