"""What the engines' answers come to: a row of figures for each engine, precision and mode, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.bench.figures import per_second, same_answer
from outrider.bench.record import Answer, Task
from outrider.bench.statistics import paired_ratio

PLAIN = "plain"


@dataclass(frozen=True)
class Row:
    """One contender's answers by task, or why there are none."""

    engine: str
    precision: str
    mode: str
    answers: Mapping[str, Answer] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    load: float = 0.0
    """Processes that wanted to run over the minute before, the start of the engine included."""

    @property
    def kind(self) -> tuple[str, str]:
        return self.engine, self.precision

    @property
    def answered(self) -> dict[str, Answer]:
        return {task: answer for task, answer in self.answers.items() if answer.error is None}


def speed(answers: Sequence[Answer]) -> float | None:
    """Tokens over seconds, reading the prompts included; None without answers."""
    return per_second((answer.tokens, answer.seconds) for answer in answers)


def figures(row: Row, plain: Row | None, tasks: Sequence[Task], lengths: Mapping[str, int]) -> dict[str, Any]:
    """A row of the table in plain JSON; ``plain`` is the same engine and precision without drafts."""
    answered = row.answered
    by_category: dict[str, list[Answer]] = {task.category: [] for task in tasks}
    for task in tasks:
        if task.id in answered:
            by_category[task.category].append(answered[task.id])
    failed = [answer.error for answer in row.answers.values() if answer.error is not None]
    pairs = [(answered[id], plain.answered[id]) for id in answered if plain and id in plain.answered]
    ratios = [
        [math.log(ours.tokens_per_second / theirs.tokens_per_second)]
        for ours, theirs in pairs
        if ours.tokens_per_second and theirs.tokens_per_second
    ]
    return {
        "engine": row.engine,
        "precision": row.precision,
        "mode": row.mode,
        "error": row.error,
        "failed": len(failed),
        "first_failure": failed[0] if failed else None,
        "tokens_per_second": speed(list(answered.values())),
        "by_category": {category: speed(each) for category, each in by_category.items()},
        "ratio": paired_ratio(ratios),
        "identical": {"same": sum(same_answer(*pair) for pair in pairs), "of": len(pairs)} if pairs else None,
        "tau": together(list(answered.values())),
        "other_prompts": sum(a.prompt_tokens not in (None, lengths[id]) for id, a in answered.items()),
        "load": row.load,
        "details": dict(row.details),
        "answers": {id: [a.tokens, round(a.seconds, 4)] for id, a in answered.items()},
    }


def together(answers: Sequence[Answer]) -> float | None:
    """Mean tokens of an arrival: tau as a client sees it, which every engine tells alike; None without answers."""
    arrivals = sum(len(answer.arrivals) for answer in answers)
    return sum(answer.tokens for answer in answers) / arrivals if arrivals else None


def all_figures(rows: Sequence[Row], tasks: Sequence[Task], lengths: Mapping[str, int]) -> list[dict[str, Any]]:
    """Every row's, each speculative one against its own plain, the fastest of an engine and precision marked."""
    plain = {row.kind: row for row in rows if row.mode == PLAIN}
    made = [figures(row, None if row.mode == PLAIN else plain.get(row.kind), tasks, lengths) for row in rows]
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for each in made:
        kind = each["engine"], each["precision"]
        if (each["tokens_per_second"] or 0.0) > (best[kind]["tokens_per_second"] or 0.0 if kind in best else 0.0):
            best[kind] = each
    return [{**each, "best": any(each is winner for winner in best.values())} for each in made]


def table(made: Sequence[Mapping[str, Any]], categories: Sequence[str]) -> str:
    """Markdown; the fastest mode of an engine and precision in bold."""
    head = ["engine", "precision", "mode", "tok/s", "x plain", "identical to own plain", "tau", *categories]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 3 + "---:|" * (len(head) - 3)]
    for each in made:
        mode = f"**{each['mode']}**" if each["best"] else each["mode"]
        cells = [each["engine"], each["precision"], mode]
        if each["tokens_per_second"] is None:
            reason = each["error"] or each["first_failure"] or "no answer"
            cells += ["-", "-", "not measured: " + reason.replace("|", "/"), *["-"] * (len(head) - 6)]
        else:
            cells += _cells(each, categories)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(each: Mapping[str, Any], categories: Sequence[str]) -> list[str]:
    ratio, identical = each["ratio"], each["identical"]
    whole = number(each["tokens_per_second"]) + (f" ({each['failed']} failed)" if each["failed"] else "")
    return [
        whole + (f" ({each['other_prompts']} other prompts)" if each["other_prompts"] else ""),
        "" if ratio is None else f"{ratio['mean']:.2f}",
        "" if identical is None else f"{identical['same']}/{identical['of']}",
        "" if each["tau"] is None else f"{each['tau']:.2f}",
        *(number(each["by_category"][category]) for category in categories),
    ]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
