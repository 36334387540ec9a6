"""A run as one JSON document, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from types import NoneType
from typing import Any, TypeVar

from outrider.bench.load import Limits
from outrider.bench.record import SCHEMA, Acceptance, Answer, Arrival, Run, Sample, Settings, Task
from outrider.bench.summary import NO_LIMITS, summarise
from outrider.errors import ConfigError
from outrider.types import PhaseSeconds

Made = TypeVar("Made")
_NUMBER = (int, float)
_KINDS: Mapping[Any, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": _NUMBER,
    "str | None": (str, NoneType),
    "int | None": (int, NoneType),
    "float | None": (*_NUMBER, NoneType),
}
"""What JSON may hold for a field, by its annotation."""


def run_to_json(run: Run, limits: Limits = NO_LIMITS) -> dict[str, Any]:
    """Everything of a run, its summary too. Samples name their task and settings by index, arrivals are pairs.

    JSON has no NaN and no infinity: where an engine tells one of itself, there is None.
    """
    tasks = {task: i for i, task in enumerate(dict.fromkeys(sample.task for sample in run.samples))}
    settings = {each: i for i, each in enumerate(dict.fromkeys(sample.settings for sample in run.samples))}
    return {
        "schema": SCHEMA,
        "provenance": _finite(run.provenance),
        "configurations": list(run.configurations),
        "baseline": run.baseline,
        "details": _finite(run.details),
        "summary": summarise(run, limits),
        "settings": [asdict(each) for each in settings],
        "tasks": [asdict(task) for task in tasks],
        "samples": [
            vars(sample)
            | {"task": tasks[sample.task], "settings": settings[sample.settings], "answer": _answer_json(sample.answer)}
            for sample in run.samples
        ],
    }


def run_from_json(document: Mapping[str, Any]) -> Run:
    """The run that ``run_to_json`` was given. Raises ConfigError for any other document; the summary is not read."""
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != SCHEMA:
        raise ConfigError(
            f"schema {str(schema)[:60]!r} is not {SCHEMA!r}: no record of this version's `outrider bench`"
        )
    if "samples" not in document:
        raise ConfigError("the record has no samples; use the whole one, which `outrider bench --output` writes")
    try:
        settings = [_made(Settings, each) for each in document["settings"]]
        tasks = [_made(Task, each) for each in document["tasks"]]
        samples = tuple(_sample(each, tasks, settings) for each in document["samples"])
        configurations = tuple(document["configurations"])
        unknown = {*(sample.configuration for sample in samples), document["baseline"]} - {*configurations}
        if unknown:
            raise ValueError(f"unknown configuration {min(unknown)!r}")
        details = {name: dict(each) for name, each in document["details"].items()}
        return Run(samples, configurations, document["baseline"], details, dict(document["provenance"]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the record is damaged ({detail[:120]}); measure again with `outrider bench`") from error


def _answer_json(answer: Answer) -> dict[str, Any]:
    return asdict(answer) | {"arrivals": [[arrival.seconds, arrival.tokens] for arrival in answer.arrivals]}


def _sample(value: Mapping[str, Any], tasks: list[Task], settings: list[Settings]) -> Sample:
    parts = {
        "task": tasks[value["task"]],
        "settings": settings[value["settings"]],
        "answer": _answer(value["answer"]),
    }
    return _made(Sample, {**value, **parts})


def _answer(value: Mapping[str, Any]) -> Answer:
    read: dict[str, Callable[[Any], Any]] = {
        "token_ids": tuple,
        "arrivals": lambda pairs: tuple(_arrival(*pair) for pair in pairs),
        "acceptance": _acceptance,
        "phases": lambda each: _made(PhaseSeconds, each),
        "decode_phases": lambda each: _made(PhaseSeconds, each),
    }
    parts = {name: read[name](each) if name in read and each is not None else each for name, each in value.items()}
    if parts["arrivals"] is None:
        raise TypeError("arrivals is null")
    return _made(Answer, parts)


def _arrival(seconds: float, tokens: int) -> Arrival:
    if not math.isfinite(seconds) or tokens < 1:
        raise ValueError(f"an arrival of {tokens} tokens after {seconds} seconds")
    return _made(Arrival, {"seconds": seconds, "tokens": tokens})


def _acceptance(value: Mapping[str, Any]) -> Acceptance:
    parts = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}
    return _made(Acceptance, parts)


def _made(kind: Callable[..., Made], values: Mapping[str, Any]) -> Made:
    """A record of these values. Raises TypeError for one that is not of its field's type."""
    made = kind(**values)
    for field in fields(made):  # type: ignore[arg-type]
        value, allowed = getattr(made, field.name), _KINDS.get(field.type)
        if allowed is not None and not isinstance(value, allowed):
            raise TypeError(f"{field.name} is {type(value).__name__}, not {field.type}")
    return made


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
