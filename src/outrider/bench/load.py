"""Open-loop load: requests come when they come, whether or not the engine has finished the last one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.bench.harness import task_seed, warm_up
from outrider.bench.record import Answer, Sample, Settings, Task
from outrider.bench.subject import Interrupted, Request, Subject
from outrider.errors import ConfigError

_LOWEST_RATE = 1e-3


@dataclass(frozen=True)
class Limits:
    """Seconds within which an answer counts for goodput; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None

    def met(self, answer: Answer) -> bool:
        """Whether a whole answer came in time. One without a second arrival has no TPOT to miss."""
        if answer.error is not None or answer.ttft is None:
            return False
        late = self.ttft is not None and answer.ttft > self.ttft
        slow = self.tpot is not None and answer.tpot is not None and answer.tpot > self.tpot
        return not late and not slow


def check_rate(rate: float) -> None:
    """Raise ConfigError for what is no number of requests per second that anybody could wait for."""
    if not (math.isfinite(rate) and rate >= _LOWEST_RATE):
        raise ConfigError(f"rate={rate} must be a number of requests per second, {_LOWEST_RATE} or more")


def poisson_schedule(tasks: Sequence[Task], rate: float, settings: Settings) -> list[Request]:
    """Every task once, the first at 0 and then with exponential gaps of mean ``1 / rate`` seconds.

    Independent users make such a process: bursts and pauses, not a metronome. Seeded by ``settings.seed`` (0 where
    None), so that every subject meets the same bursts. Raises ConfigError as ``check_rate`` does.
    """
    check_rate(rate)
    gaps = random.Random(settings.seed or 0)
    requests, at = [], 0.0
    for task in tasks:
        requests.append(Request(task, at, task_seed(settings.seed, task.id)))
        at += gaps.expovariate(rate)
    return requests


def measure_load(subject: Subject, tasks: Sequence[Task], settings: Settings, rate: float) -> Iterator[Sample]:
    """Serve the tasks as a Poisson stream of ``rate`` requests per second, after a warm-up.

    Latencies count from the scheduled time, also when the engine was too busy to take a request in: otherwise an
    overloaded engine would measure its own queue away. A generator: whoever is interrupted holds what was complete.
    """
    requests = poisson_schedule(tasks, rate, settings)
    if tasks:
        warm_up(subject, settings, tasks[0].chat)
    interrupted: Interrupted | None = None
    answers: Sequence[Answer | None]
    try:
        answers = subject.serve(requests, settings)
    except Interrupted as error:
        answers, interrupted = error.answers, error
    for request, answer in zip(requests, answers, strict=True):
        if answer is not None:
            yield Sample(request.task, subject.name, settings, 0, 0, answer, request.task.id, rate, request.at)
    if interrupted is not None:
        raise interrupted
