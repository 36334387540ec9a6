"""Wall time of the phases of a step."""

from __future__ import annotations

import time


class PhaseClock:
    """Seconds since the last lap, on a monotonic clock."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed
