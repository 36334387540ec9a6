"""Closed-loop measurement: every configuration answers the same tasks, in turn, in one process."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from outrider.bench.record import Sample, Settings, Task
from outrider.bench.subject import Request, Subject
from outrider.errors import ConfigError

_WARM_UP_TOKENS = 16
_SEED_BITS = 31
"""What every server takes: some read a seed as a signed 32-bit number."""


def measure(
    subjects: Sequence[Subject],
    tasks: Sequence[Task],
    settings_list: Sequence[Settings],
    *,
    batch: int = 1,
    repeats: int = 1,
) -> Iterator[Sample]:
    """Serve every task with every subject, ``batch`` at a time; samples come as they are measured.

    After a warm-up of each under every settings, subjects alternate group by group and each goes first in its turn, so
    that a machine that slows down or warms up favours none. A generator: whoever is interrupted holds all that was
    measured before.
    Raises ConfigError for a batch or a number of repeats below 1, and for names or tasks that are not unique.
    """
    _check(subjects, tasks, batch, repeats)
    return _measure(subjects, tasks, settings_list, batch, repeats)


def count_samples(
    subjects: Sequence[Subject], tasks: Sequence[Task], settings_list: Sequence[Settings], *, repeats: int = 1
) -> int:
    """How many samples ``measure`` will give, whatever the batch."""
    return len(subjects) * len(tasks) * len(settings_list) * repeats


def task_seed(seed: int | None, task_id: str) -> int | None:
    """A task's own seed: the same in every process and configuration, another for each task; None without a seed."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}:{task_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


def warm_up(subject: Subject, settings: Settings, chat: bool = True, batch: int = 1) -> None:
    """Serve ``batch`` short requests whose prompts are no workload's: a cache of prompts must not know the tasks."""
    tasks = [
        Task(f"warm-up/{i}", "warm-up", f"Say hello, then count to {10 + i}.", chat, max_tokens=_WARM_UP_TOKENS)
        for i in range(batch)
    ]
    subject.serve([Request(task, seed=task_seed(settings.seed, task.id)) for task in tasks], settings)


def check_unique(configurations: Iterable[str], tasks: Iterable[Task]) -> None:
    """Raise ConfigError for two configurations of one name or two tasks of one id."""
    for what, keys in (("configuration", configurations), ("task id", (task.id for task in tasks))):
        twice = next((key for key, times in Counter(keys).items() if times > 1), None)
        if twice is not None:
            raise ConfigError(f"{what} {twice!r} is there twice, so its results could not be told apart; rename one")


def _check(subjects: Sequence[Subject], tasks: Sequence[Task], batch: int, repeats: int) -> None:
    for name, value in (("batch", batch), ("repeats", repeats)):
        if value < 1:
            raise ConfigError(f"{name}={value} must be 1 or more")
    check_unique((subject.name for subject in subjects), tasks)


def _measure(
    subjects: Sequence[Subject], tasks: Sequence[Task], settings_list: Sequence[Settings], batch: int, repeats: int
) -> Iterator[Sample]:
    groups = [tasks[i : i + batch] for i in range(0, len(tasks), batch)]
    if groups:
        # Sampling takes other code than greedy decoding does, and a batch other shapes than a request alone.
        for subject, settings in product(subjects, settings_list):
            warm_up(subject, settings, groups[0][0].chat, len(groups[0]))
    for repeat in range(repeats):
        for turn, group in enumerate(groups, start=repeat):
            for settings in settings_list:
                for subject in _rotated(subjects, turn):
                    yield from _serve(subject, group, settings, repeat, batch)


def _rotated(subjects: Sequence[Subject], turn: int) -> list[Subject]:
    return [subjects[(turn + i) % len(subjects)] for i in range(len(subjects))]


def _serve(subject: Subject, group: Sequence[Task], settings: Settings, repeat: int, batch: int) -> list[Sample]:
    requests = [Request(task, seed=task_seed(settings.seed, task.id)) for task in group]
    answers = subject.serve(requests, settings)
    sample = Sample(group[0], subject.name, settings, repeat, batch, answers[0], group[0].id)
    return [replace(sample, task=task, answer=answer) for task, answer in zip(group, answers, strict=True)]
