"""A run as one JSON document, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from outrider.bench.load import Limits
from outrider.bench.record import SCHEMA, Acceptance, Answer, Arrival, Run, Sample, Settings, Task
from outrider.bench.summary import NO_LIMITS, summarise
from outrider.errors import ConfigError
from outrider.types import PhaseSeconds


def run_to_json(run: Run, limits: Limits = NO_LIMITS) -> dict[str, Any]:
    """Everything of a run, its summary too. Samples name their task and settings by index, arrivals are pairs."""
    tasks = {task: i for i, task in enumerate(dict.fromkeys(sample.task for sample in run.samples))}
    settings = {each: i for i, each in enumerate(dict.fromkeys(sample.settings for sample in run.samples))}
    return {
        "schema": SCHEMA,
        "provenance": dict(run.provenance),
        "configurations": list(run.configurations),
        "baseline": run.baseline,
        "details": {name: dict(details) for name, details in run.details.items()},
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
        settings = [Settings(**each) for each in document["settings"]]
        tasks = [Task(**each) for each in document["tasks"]]
        samples = tuple(_sample(each, tasks, settings) for each in document["samples"])
        configurations = tuple(document["configurations"])
        unknown = {*(sample.configuration for sample in samples), document["baseline"]} - {*configurations}
        if unknown:
            raise ValueError(f"unknown configuration {min(unknown)!r}")
        details = {name: dict(each) for name, each in document["details"].items()}
        return Run(samples, configurations, document["baseline"], details, dict(document["provenance"]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the record is damaged ({detail[:120]}); measure again with `outrider bench`") from error


def _answer_json(answer: Answer) -> dict[str, Any]:
    return asdict(answer) | {"arrivals": [[arrival.seconds, arrival.tokens] for arrival in answer.arrivals]}


def _sample(value: Mapping[str, Any], tasks: list[Task], settings: list[Settings]) -> Sample:
    fields = {
        "task": tasks[value["task"]],
        "settings": settings[value["settings"]],
        "answer": _answer(value["answer"]),
    }
    return Sample(**{**value, **fields})


def _answer(value: Mapping[str, Any]) -> Answer:
    read: dict[str, Callable[[Any], Any]] = {
        "token_ids": tuple,
        "arrivals": lambda pairs: tuple(Arrival(float(seconds), int(tokens)) for seconds, tokens in pairs),
        "acceptance": _acceptance,
        "phases": lambda each: PhaseSeconds(**each),
        "decode_phases": lambda each: PhaseSeconds(**each),
    }
    fields = {name: read[name](each) if name in read and each is not None else each for name, each in value.items()}
    return Answer(**fields)


def _acceptance(value: Mapping[str, Any]) -> Acceptance:
    fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}
    return Acceptance(**fields)
