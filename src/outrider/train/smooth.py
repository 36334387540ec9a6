"""What a training run tells while it runs: figures averaged over recent steps, and when it will be done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.train.loop import Progress

_STEPS = 50


@dataclass
class Smoothed:
    """The last steps; a mean weighs each by its positions."""

    recent: deque[Progress] = field(default_factory=lambda: deque(maxlen=_STEPS))

    def line(self, progress: Progress, steps: int) -> str:
        """Loss, estimated alpha, tokens a second and time left."""
        self.recent.append(progress)
        tokens = sum(each.tokens for each in self.recent)
        seconds = sum(each.seconds for each in self.recent)
        loss = sum(each.loss * each.tokens for each in self.recent) / tokens
        alpha = sum(each.alpha * each.tokens for each in self.recent) / tokens
        left = (steps - progress.step) * seconds / len(self.recent)
        return (
            f"step {progress.step}/{steps} loss {loss:.3f} alpha {alpha:.3f} {tokens / seconds:.0f} tok/s "
            f"lr {progress.learning_rate:.1e} left {int(left // 3600)}:{int(left % 3600 // 60):02}:{int(left % 60):02}"
        )
