"""What is asked: named workloads made from a seed, or the rows of a JSON Lines file."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.bench import builtin_workloads
from outrider.bench.prompt_file import read_tasks
from outrider.bench.record import Task
from outrider.errors import ConfigError

WORKLOADS = tuple(builtin_workloads.MAKERS)


@dataclass(frozen=True)
class Workload:
    """Tasks with a name; equal names and versions are equal tasks, ``limit`` aside."""

    name: str
    version: str
    tasks: tuple[Task, ...]


def load_workload(name_or_path: str, *, seed: int = 0, limit: int | None = None) -> Workload:
    """A named workload (``WORKLOADS``) or a file of prompts (see ``prompt_file``).

    ``seed`` makes the tasks of a named workload; a file's version is a hash of its bytes. ``limit`` keeps that many
    tasks, spread evenly over the categories: always the same ones, and those of a smaller limit among them. Raises
    ConfigError for an unknown name, a limit below 1 and a file that cannot be used.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit} must be 1 or more; leave it out to take every task")
    maker = builtin_workloads.MAKERS.get(name_or_path)
    if maker is None:
        workload = _from_file(Path(name_or_path))
    else:
        tasks = maker(name_or_path, seed)
        workload = Workload(name_or_path, f"{builtin_workloads.VERSION}, seed {seed}", tuple(tasks))
    return workload if limit is None else replace(workload, tasks=_spread(workload.tasks, limit))


def check_fits(workload: Workload, count_tokens: Callable[[Task], int], max_model_len: int, max_tokens: int) -> None:
    """Raise ConfigError if the model cannot hold one of the prompts together with its answer.

    For named workloads, whose point is their length; elsewhere a prompt that is too long costs its own answer only.
    """
    for task in workload.tasks:
        prompt, answer = count_tokens(task), task.max_tokens or max_tokens
        if prompt + answer > max_model_len:
            raise ConfigError(
                f"workload {workload.name!r}: {task.id} has {prompt} tokens, {prompt + answer} with its answer, and "
                f"max_model_len is {max_model_len}; take a shorter workload, fewer max_tokens or a model with a longer "
                "context"
            )


def _from_file(path: Path) -> Workload:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        known = ", ".join(WORKLOADS)
        detail = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"workload {str(path)[:80]!r} is neither a name ({known}) nor a file that can be read ({detail})"
        ) from None
    version = f"sha256:{hashlib.sha256(content).hexdigest()[:16]}"
    return Workload(path.name, version, tuple(read_tasks(content, path.name)))


def _spread(tasks: Sequence[Task], limit: int) -> tuple[Task, ...]:
    """One of each category in turn until there are enough; in their old order."""
    seen: dict[str, int] = defaultdict(int)
    turns = []
    for i, task in enumerate(tasks):
        turns.append((seen[task.category], i))
        seen[task.category] += 1
    return tuple(tasks[i] for i in sorted(i for _, i in sorted(turns)[:limit]))
