"""Times forward passes of one or more models in turn, over batch, context and rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.errors import ConfigError
from outrider.models.base import Feed, TargetRunner
from outrider.plan.curves import CostCurve, Point, fit_curve

Report = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much."""
_CHUNK = 256
_LEAST_PASSES = 3
_MOST_PASSES = 9
_SECONDS = 60.0
"""Spent at most on each context, the least number of passes granted."""


@dataclass(frozen=True)
class Grid:
    """The points to time: sequences of a step, tokens of context of each, packed rows of all together."""

    batches: tuple[int, ...] = (1, 4, 8, 16)
    # With the most rows on top, the longest fits into 2048 positions.
    contexts: tuple[int, ...] = (64, 512, 1920)
    # Every draft length up to 8, and both sides of the widths at which kernels change.
    rows: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 20, 24, 32, 33, 40, 48, 56, 64, 72, 96, 128)

    @property
    def length(self) -> int:
        """Tokens that a sequence takes at most."""
        return self.contexts[-1] + self.rows[-1]

    def within(self, runner: TargetRunner) -> Grid:
        """What a runner has room for. Raises ConfigError where that is nothing, or it cannot go back."""
        if runner.capabilities.rollback == "none":
            raise ConfigError(f"{runner.name}: its cache cannot be rolled back, so that it cannot be calibrated")
        contexts = tuple(each for each in self.contexts if each + self.rows[-1] <= runner.max_model_len)
        if not contexts:
            raise ConfigError(
                f"{runner.name} holds {runner.max_model_len} tokens, and timing takes "
                f"{self.contexts[0] + self.rows[-1]}; it cannot be calibrated"
            )
        batches = tuple(each for each in self.batches if each <= runner.max_num_seqs)
        return replace(self, contexts=contexts, batches=batches)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Batches and packed rows that go together: a sequence has one row at least."""
        yield from ((batch, rows) for batch in self.batches for rows in self.rows if rows >= batch)


def calibrate(
    runners: Sequence[TargetRunner],
    report: Report,
    grid: Grid | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[CostCurve]:
    """A curve for each runner: medians of passes over all points of a context in turn, all runners together.

    What drifts within such a pass hits all points alike. Raises ConfigError for a runner too short to be timed.
    """
    grids = [(grid or Grid()).within(runner) for runner in runners]
    measured: list[dict[Point, float]] = [{} for _ in runners]
    try:
        for runner, each in zip(runners, grids, strict=True):
            for sequence in range(each.batches[-1]):
                runner.open(sequence)
        for context in sorted({context for each in grids for context in each.contexts}):
            here = [i for i, each in enumerate(grids) if context in each.contexts]
            for i in here:
                _fill(runners[i], grids[i].batches[-1], context, report)
            points = [(i, batch, rows) for i in here for batch, rows in grids[i].steps()]
            medians = _medians(runners, points, context, report, clock)
            for (i, batch, rows), seconds in medians.items():
                measured[i][batch, context, rows] = seconds
    finally:
        for runner, each in zip(runners, grids, strict=True):
            for sequence in range(each.batches[-1]):
                runner.close(sequence)
    return [fit_curve(each) for each in measured]


def _medians(
    runners: Sequence[TargetRunner],
    points: Sequence[tuple[int, int, int]],
    context: int,
    report: Report,
    clock: Callable[[], float],
) -> Mapping[tuple[int, int, int], float]:
    """Median seconds by runner, batch and rows. A first pass warms up, and says how many there is time for."""
    taken: dict[tuple[int, int, int], list[float]] = {point: [] for point in points}
    passes, done = _LEAST_PASSES, 0
    while done <= passes:
        for at, (i, batch, rows) in enumerate(points):
            taken[i, batch, rows].append(timed_pass(runners[i], batch, rows, context, clock))
            report(f"context {context}", done * len(points) + at + 1, (passes + 1) * len(points))
        if not done:
            first = sum(seconds.pop() for seconds in taken.values())
            passes = max(_LEAST_PASSES, min(_MOST_PASSES, int(_SECONDS / first) if first else _MOST_PASSES))
        done += 1
    return {point: statistics.median(seconds) for point, seconds in taken.items()}


def timed_pass(runner: TargetRunner, batch: int, rows: int, context: int, clock: Callable[[], float]) -> float:
    """Seconds of one pass, spread over the batch as evenly as can be; afterwards every slot is as before."""
    each, more = divmod(rows, batch)
    feeds = []
    for sequence in range(batch):
        length = each + (sequence < more)
        feeds.append(Feed(sequence, _tokens(runner, context, length), length))
    start = clock()
    runner.score(feeds)
    seconds = clock() - start
    for feed in feeds:
        runner.commit(feed.sequence_id, context)
    return seconds


def _fill(runner: TargetRunner, batch: int, context: int, report: Report) -> None:
    """Bring every slot to a length."""
    for sequence in range(batch):
        while (length := runner.length(sequence)) < context:
            runner.score([Feed(sequence, _tokens(runner, length, min(_CHUNK, context - length)), 0)])
        report(f"reading {context} tokens", sequence + 1, batch)


def _tokens(runner: TargetRunner, start: int, count: int) -> tuple[int, ...]:
    # Any text will do, but one that repeats nothing soon and has no single token in every row.
    return tuple((start + i) * 7919 % runner.vocab_size for i in range(count))
