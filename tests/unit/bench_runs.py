"""Benchmark runs with scripted times, so that every figure of a table is known beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.bench.record import Acceptance, Answer, Arrival, Run, Sample, Settings, Task
from outrider.types import PhaseSeconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GREEDY = Settings(temperature=0.0, max_tokens=21)
SAMPLED = Settings(temperature=1.0, max_tokens=21)
TASKS = tuple(Task(f"t/{i}", "code" if i % 2 else "prose", f"prompt {i}") for i in range(4))
ROUNDS = 10
KEEPS = {"greedy": True, "seeded": True}
BANDWIDTH = {"peak_memory_bytes": 5e8, "read_bandwidth": 1e10}


def answer(per_round: int = 1, gap: float = 0.01, ttft: float = 0.1, token: int = 7, text: str = "words") -> Answer:
    """A first token after ``ttft``, then ten rounds of ``per_round`` tokens, one round every ``gap``.

    Drafts of a round: two, of which ``per_round - 1`` are kept; none where a round gives one token.
    """
    arrivals = [Arrival(ttft, 1), *(Arrival(ttft + gap * (i + 1), per_round) for i in range(ROUNDS))]
    drafted = 2 if per_round > 1 else 0
    rounds = [Acceptance.of_round(drafted, per_round - 1, per_round) for _ in range(ROUNDS)]
    return Answer(
        text,
        (token,) * (1 + ROUNDS * per_round),
        3,
        tuple(arrivals),
        "length",
        Acceptance.total([Acceptance.of_round(0, 0, 1), *rounds]),
        PhaseSeconds(draft=0.25 * gap * ROUNDS, target=0.75 * gap * ROUNDS),
        decode_phases=PhaseSeconds(draft=0.25 * gap * ROUNDS, target=0.75 * gap * ROUNDS),
    )


def broken(error: str = "the server left") -> Answer:
    return Answer("", None, None, (), None, error=error)


def run_of(
    answers: Mapping[str, Sequence[Answer]],
    *,
    tasks: Sequence[Task] = TASKS,
    settings: Settings = GREEDY,
    details: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """One answer a task for each configuration, the first of which is the baseline; ``fields`` are the samples'."""
    samples = [
        Sample(task, name, settings, 0, **{"batch": 1, "group": task.id, **fields}, answer=each)
        for name, given in answers.items()
        for task, each in zip(tasks, given, strict=False)
    ]
    about = {"time": "2026-01-01T00:00:00+00:00", "threads": 2, "machine": BANDWIDTH, **(provenance or {})}
    default = {name: {"model": "toy", "keeps_bytes": KEEPS, "weight_bytes": 5e7} for name in answers}
    return Run(tuple(samples), tuple(answers), next(iter(answers)), {**default, **(details or {})}, about)


def usual(**fields: Any) -> Run:
    """Plain decoding against a drafter that gives two tokens a round for the price of one."""
    return run_of({"plain": [answer()] * 4, "ngram k=2": [answer(2)] * 4}, **fields)
