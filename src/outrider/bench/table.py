"""A summary as tables of text: what the terminal prints and what the HTML report lays out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.bench.record import Run

WIDTH = 120
_GAP = "  "
_NARROWEST = 12
_POSITIONS = 12
"""Draft positions that a table shows; the record has all."""

NOTE = (
    "ratio: a prompt's tok/s over the baseline's for the same prompt, geometric mean [95 % interval, bootstrap over "
    "prompts]. ITL: the wait from one arrival of tokens to the next; a round's tokens arrive together and count once. "
    "TPOT: time after the first arrival, per token. Latencies in milliseconds, p50 (p99). "
    "identical: answers equal to the baseline's."
)

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Cells as they are shown. The first ``labels`` columns are text that may be folded; the rest are figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = field(default=())
    labels: int = 1


def tables(summary: Summary) -> list[Table]:
    """Every table that has a row: configurations, load, categories, drafts and their positions, phases."""
    kinds = (_main, _load, _categories, _drafts, _positions, _phases)
    return [table for kind in kinds if (table := kind(summary)).rows]


def notes(run: Run, summary: Summary) -> list[str]:
    """Sentences under the tables: what the columns count, the physics, and what went wrong."""
    return [
        NOTE,
        *_broken_off(run.provenance),
        *_bandwidth(summary),
        *_memory(run.provenance),
        *_servers(run),
        *_errors(run),
    ]


def render(run: Run, summary: Summary, width: int = WIDTH) -> str:
    """The tables and notes as plain text, no line wider than ``width``."""
    blocks = [text(table, width) for table in tables(summary)]
    return "\n\n".join([*blocks, "\n".join(textwrap.fill(_plain(note), width) for note in notes(run, summary))])


def text(table: Table, width: int = WIDTH) -> str:
    """One table; labels are folded where the figures leave them too little room."""
    rows = [table.columns, *(tuple(map(_plain, row)) for row in table.rows)]
    widths = _widths(rows, table.labels, width)
    lines = [line for row in rows for line in _lines(row, widths, table.labels)]
    head = len(_lines(table.columns, widths, table.labels))
    rule = _GAP.join("-" * each for each in widths)
    return "\n".join([*textwrap.wrap(_plain(table.title), width), *lines[:head], rule, *lines[head:]])


# --- the tables -------------------------------------------------------------------------------------------

_KEY = ("configuration", "T", "batch")


def _key(row: Summary) -> tuple[str, ...]:
    return row["configuration"], f"{row['settings']['temperature']:g}", f"{row['batch']}"


def _main(summary: Summary) -> Table:
    columns = (*_KEY, "tok/s", "ratio", "tau", "accept", "TTFT", "ITL", "TPOT", "identical")
    rows = (
        (*_key(row), *_speed(row, row["tokens_per_second"]), *_latencies(row), _identical(row))
        for row in summary["rows"]
    )
    return Table(f"Speed (baseline: {summary['baseline']})", columns, tuple(rows))


def _load(summary: Summary) -> Table:
    columns = ("configuration", "T", "sent/s", "requests", "errors", "met", "goodput", "tok/s", "TTFT", "ITL", "TPOT")
    rows = (
        (
            row["configuration"],
            f"{row['settings']['temperature']:g}",
            f"{row['rate']:g}",
            f"{row['requests']}",
            f"{row['errors']}",
            f"{row['met']}",
            f"{_figure(row['goodput'], '.2f')}/s",
            _figure(row["tokens_per_second"], ".1f"),
            *_latencies(row),
        )
        for row in summary["load"]
    )
    return Table(f"Open loop, {_limits(summary)}", columns, tuple(rows))


def _categories(summary: Summary) -> Table:
    columns = ("category", *_KEY, "prompts", "request tok/s", "ratio", "tau", "accept", "identical")
    names = dict.fromkeys(name for row in summary["rows"] for name in row["categories"])
    rows = (
        # A batch's wall time belongs to no category alone: this is the speed that one request sees.
        (
            name,
            *_key(row),
            f"{figures['prompts']}",
            *_speed(figures, figures["request_tokens_per_second"]),
            _identical(figures),
        )
        for name in names
        for row in summary["rows"]
        if (figures := row["categories"].get(name))
    )
    # One category says no more than the table of all.
    return Table("By category", columns, tuple(rows) if len(names) > 1 else (), labels=2)


def _drafts(summary: Summary) -> Table:
    columns = (*_KEY, "rounds", "drafted", "accepted", "emitted", "accept", "tau")
    rows = (
        (
            *_key(row),
            *(f"{counts[name]}" for name in ("rounds", "drafted", "accepted", "emitted")),
            _figure(row["acceptance_rate"], ".1%"),
            interval(row["tau"]),
        )
        for row, counts in _drafting(summary)
    )
    return Table("Drafts (tau: tokens emitted per round)", columns, tuple(rows))


def _positions(summary: Summary) -> Table:
    columns = (*_KEY, "conditional %", "survival %")
    rows = (
        (*_key(row), _percents(counts["conditional"]), _percents(counts["survival"]))
        for row, counts in _drafting(summary)
        # Servers tell positions of all their requests together, if at all.
        if counts["survival"]
    )
    title = f"Draft tokens kept at positions 1 to {_POSITIONS}: of the rounds that reached it, and of all rounds"
    return Table(title, columns, tuple(rows))


def _drafting(summary: Summary) -> Iterator[tuple[Summary, Summary]]:
    """Rows that drafted, with their counts."""
    yield from ((row, counts) for row in summary["rows"] if (counts := row["acceptance"]) and counts["drafted"])


def _phases(summary: Summary) -> Table:
    names = next((tuple(row["phases"]) for row in summary["rows"] if row["phases"]), ())
    rows = (
        (*_key(row), f"{sum(phases.values()):.2f}", *(_share(phases[name], phases) for name in names))
        for row in summary["rows"]
        if (phases := row["phases"])
    )
    return Table("Time by phase, every step once", (*_KEY, "s", *names), tuple(rows))


# --- the notes --------------------------------------------------------------------------------------------


def _bandwidth(summary: Summary) -> Iterator[str]:
    if found := summary["bandwidth"]:
        yield (
            f"bandwidth limit: {found['weight_bytes'] / 1e6:.0f} MB of weights at "
            f"{found['read_bandwidth'] / 1e9:.1f} GB/s take {found['limit_seconds'] * 1e3:.2f} ms; a target pass of "
            f"{found['configuration']} takes {found['target_seconds'] * 1e3:.2f} ms, {found['ratio']:.2f} x the limit."
        )


def _broken_off(provenance: Mapping[str, Any]) -> Iterator[str]:
    measured, planned = (provenance.get("answers", {}).get(key, 0) for key in ("measured", "planned"))
    if measured < planned:
        yield f"broken off: {measured} of {planned} answers were measured."


def _memory(provenance: Mapping[str, Any]) -> Iterator[str]:
    if peak := provenance.get("machine", {}).get("peak_memory_bytes"):
        yield f"peak memory of this process: {peak / 1e6:.0f} MB."


def _servers(run: Run) -> Iterator[str]:
    """What servers counted over all of their requests; they do not tell it by request."""
    for name, details in run.details.items():
        if counted := details.get("acceptance"):
            tau = f", tau {counted['tau']:.2f} over rounds with a draft" if counted.get("tau") else ""
            kept = f"{counted['accepted']} of {counted['drafted']}"
            yield f"{name}: its server counted {kept} draft tokens accepted{tau}."


def _errors(run: Run) -> Iterator[str]:
    for name in run.configurations:
        sent = [sample for sample in run.samples if sample.configuration == name]
        failed = [sample for sample in sent if sample.answer.error is not None]
        if failed:
            task, error = failed[0].task, failed[0].answer.error
            yield f"{name}: {len(failed)} of {len(sent)} requests failed; the first, {task.id}: {error}"


def _limits(summary: Summary) -> str:
    wanted: Mapping[str, float | None] = next((row["limits"] for row in summary["load"]), {})
    parts = [f"{name.upper()} <= {value * 1e3:g} ms" for name, value in wanted.items() if value is not None]
    return f"goodput: requests answered with {' and '.join(parts)}" if parts else "goodput: requests answered"


# --- the cells --------------------------------------------------------------------------------------------


def _speed(figures: Summary, tokens_per_second: float | None) -> tuple[str, ...]:
    tau = figures["tau"]
    return (
        _figure(tokens_per_second, ".1f"),
        interval(figures["ratio"]),
        _figure(tau and tau["mean"], ".2f"),
        _figure(figures["acceptance_rate"], ".0%"),
    )


def _latencies(figures: Summary) -> tuple[str, ...]:
    return tuple(_milliseconds(figures[name]) for name in ("ttft", "itl", "tpot"))


def interval(found: Mapping[str, Any] | None) -> str:
    """A mean with its 95 % interval where it has one."""
    if found is None:
        return "-"
    if found["low"] is None:
        return f"{found['mean']:.2f}"
    return f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _identical(figures: Summary) -> str:
    same = figures["identical"]
    return f"{same['same']}/{same['of']}" if same else "-"


def _milliseconds(found: Mapping[str, float] | None) -> str:
    return f"{_three(found['p50'] * 1e3)} ({_three(found['p99'] * 1e3)})" if found else "-"


def _three(value: float) -> str:
    """Three digits are all that a latency is worth."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _percents(shares: Sequence[float]) -> str:
    return " ".join(f"{share * 100:.0f}" for share in shares[:_POSITIONS])


def _share(seconds: float, phases: Mapping[str, float]) -> str:
    total = sum(phases.values())
    return f"{seconds / total:.1%}" if total else "-"


# --- the layout -------------------------------------------------------------------------------------------


def _plain(cell: str) -> str:
    """Names come from files and servers: nothing in them may steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in cell)


def _widths(rows: Sequence[Sequence[str]], labels: int, width: int) -> list[int]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while over > 0 and max(widths[:labels]) > _NARROWEST:
        widest = widths.index(max(widths[:labels]))
        widths[widest] -= 1
        over -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], labels: int) -> list[str]:
    folded = [textwrap.wrap(cell, each) or [""] for cell, each in zip(row[:labels], widths, strict=False)]
    height = max(map(len, folded))
    columns = [*(_padded(lines, height) for lines in folded), *(_padded([cell], height) for cell in row[labels:])]
    return [_aligned(cells, widths, labels) for cells in zip(*columns, strict=True)]


def _padded(lines: Iterable[str], height: int) -> list[str]:
    lines = list(lines)
    return lines + [""] * (height - len(lines))


def _aligned(cells: Sequence[str], widths: Sequence[int], labels: int) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:labels], widths, strict=False)]
    right = [cell.rjust(width) for cell, width in zip(cells[labels:], widths[labels:], strict=True)]
    return _GAP.join([*left, *right]).rstrip()
