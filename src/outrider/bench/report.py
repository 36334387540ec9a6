"""A benchmark as one HTML file that needs no network: tables, figures, answers, and where it all comes from."""

from __future__ import annotations

import html
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from outrider.bench.record import Run, Sample
from outrider.bench.table import Table, notes, tables
from outrider.errors import ConfigError

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LONGEST_TEXT = 4000

# Nothing may be fetched, whatever a prompt or an answer says.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
.label { text-align: left; white-space: normal; }
.wide { overflow-x: auto; } .chart { height: 26rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .5rem; }
.note { color: #555; } .bad { color: #b00020; }
"""


def require_plotly() -> None:
    """Raise ConfigError where reports cannot be made; to be asked before anything is measured."""
    if importlib.util.find_spec("plotly") is None:
        raise ConfigError("--html needs plotly, which is not installed: pip install 'outrider[plot]'")


def render(run: Run, summary: Mapping[str, Any]) -> str:
    """The whole page. Every text that is not ours is escaped: prompts, answers, names, the command line."""
    require_plotly()
    from outrider.bench.plots import figures

    title = "outrider bench"
    if model := next((details["model"] for details in run.details.values() if details.get("model")), None):
        title += f": {model}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="note">{html.escape(str(run.provenance.get("time", "")))}</p>',
        *map(_table, tables(summary)),
        *(f'<p class="note">{html.escape(note)}</p>' for note in notes(run, summary)),
        *charts(figures(run, summary)),
        "<h2>Answers</h2>",
        *_answers(run),
        "<h2>Configurations</h2>",
        _json(run.details),
        "<h2>Provenance</h2>",
        _json(run.provenance),
    ]
    return page(title, body)


def page(title: str, body: Iterable[str]) -> str:
    """A page that fetches nothing: ``body`` is markup, with plotly's script at hand."""
    from plotly.offline import get_plotlyjs

    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            *body,
            "</body></html>\n",
        ]
    )


def charts(figures: Iterable[tuple[str, go.Figure]]) -> Iterator[str]:
    """Titled figures as markup for ``page``."""
    for i, (title, figure) in enumerate(figures):
        chart = figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"chart-{i}",
            config={"displaylogo": False, "responsive": True},
        )
        yield f'<h2>{html.escape(title)}</h2>\n<div class="chart">{chart}</div>'


def _table(table: Table) -> str:
    heads = "".join(_cell("th", name, i < table.labels) for i, name in enumerate(table.columns))
    rows = (
        "<tr>" + "".join(_cell("td", cell, i < table.labels) for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{html.escape(table.title)}</h2>\n<div class="wide"><table><thead><tr>{heads}</tr></thead>\n<tbody>'
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _cell(tag: str, text: str, label: bool) -> str:
    kind = ' class="label"' if label else ""
    return f"<{tag}{kind}>{html.escape(text)}</{tag}>"


def _answers(run: Run) -> Iterator[str]:
    """A prompt, folded away, with what each configuration first answered to it."""
    by_task: dict[str, dict[tuple[str, float], Sample]] = {}
    for sample in run.samples:
        by_task.setdefault(sample.task.id, {}).setdefault((sample.configuration, sample.settings.temperature), sample)
    for task_id, first in by_task.items():
        task = next(iter(first.values())).task
        yield f"<details><summary>{html.escape(f'{task_id} ({task.category})')}</summary>{_pre(task.prompt)}"
        yield from map(_answer, first.values())
        yield "</details>"


def _answer(sample: Sample) -> str:
    answer = sample.answer
    speed = f", {answer.tokens_per_second:.1f} tok/s" if answer.tokens_per_second else ""
    head = html.escape(
        f"{sample.configuration}, T={sample.settings.temperature:g}: {answer.tokens} tokens{speed}, "
        f"{answer.finish_reason or 'not finished'}"
    )
    failed = f'<p class="bad">{html.escape(answer.error)}</p>' if answer.error else ""
    return f"<p><b>{head}</b></p>{failed}{_pre(answer.text)}"


def _pre(text: str) -> str:
    shown = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}\n[{len(text) - _LONGEST_TEXT} more]"
    return f"<pre>{html.escape(shown)}</pre>"


def _json(value: Mapping[str, Any]) -> str:
    return f"<pre>{html.escape(json.dumps(value, indent=2, ensure_ascii=False, default=str))}</pre>"
