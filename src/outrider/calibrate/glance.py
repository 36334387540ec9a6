"""What passes of few rows take, at a glance: enough for a controller to start with, and soon done."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from outrider.calibrate.timing import timed_pass

if TYPE_CHECKING:
    from outrider.models.base import TargetRunner

_ROWS = (1, 2, 3, 5, 9, 17)
_ROUNDS = 4
_SECONDS = 0.5


def glance(runner: TargetRunner, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Median seconds by packed rows, for a runner that nobody uses; nothing for one that cannot go back.

    A slow model is timed less often, and what takes longest not at all: at worst two passes of one row.
    """
    if runner.capabilities.rollback == "none" or runner.max_model_len <= _ROWS[-1]:
        return {}
    end, taken = clock() + _SECONDS, dict[int, list[float]]()
    runner.open(0)
    try:
        # The first pass of a shape prepares more than later ones do.
        for rows in _ROWS:
            if not taken or clock() < end:
                timed_pass(runner, 1, rows, 0, clock)
                taken[rows] = [timed_pass(runner, 1, rows, 0, clock)]
        for rows in (_ROUNDS - 1) * tuple(taken):
            if clock() < end:
                taken[rows].append(timed_pass(runner, 1, rows, 0, clock))
    finally:
        runner.close(0)
    return {rows: median(seconds) for rows, seconds in taken.items()}
