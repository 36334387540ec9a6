"""The figures of a report, from a run and its summary. Only reports import this: plotly is an extra."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import qualitative

from outrider.bench.record import Run, Sample

Row = Mapping[str, Any]
_COLOURS = qualitative.Safe
_BINS = 60
_TICKS = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]


def figures(run: Run, summary: Mapping[str, Any]) -> Iterator[tuple[str, go.Figure]]:
    """Titled figures, those that have something to show. Every text in them is escaped: plotly reads tags."""
    rows = summary["rows"]
    made = (
        ("Speedup by category, with 95 % intervals", _speedup(rows)),
        ("Acceptance by draft position", _acceptance(rows)),
        ("Inter-token latency: the wait from one arrival of tokens to the next", _latency(run)),
        ("Time by phase, per token of an answer", _phases(rows)),
    )
    yield from ((title, figure) for title, figure in made if figure.data)


def _speedup(rows: Sequence[Row]) -> go.Figure:
    figure = go.Figure()
    for i, row in enumerate(rows):
        groups = {"all": row, **(row["categories"] if len(row["categories"]) > 1 else {})}
        found = {name: each["ratio"] for name, each in groups.items() if each["ratio"]}
        if found:
            means = [ratio["mean"] for ratio in found.values()]
            figure.add_bar(
                name=_label(row),
                x=[html.escape(name) for name in found],
                y=means,
                marker_color=colour(i),
                error_y={
                    "type": "data",
                    "symmetric": False,
                    # An interval of no width where one prompt gives none.
                    "array": [(ratio["high"] or ratio["mean"]) - ratio["mean"] for ratio in found.values()],
                    "arrayminus": [ratio["mean"] - (ratio["low"] or ratio["mean"]) for ratio in found.values()],
                },
            )
    figure.add_hline(y=1.0, line_dash="dot")
    return laid_out(figure, "", "tok/s over the baseline's")


def _acceptance(rows: Sequence[Row]) -> go.Figure:
    figure = go.Figure()
    for i, row in enumerate(rows):
        kept = row["acceptance"]
        if kept and kept["survival"]:
            for name, dash in (("conditional", "solid"), ("survival", "dash")):
                figure.add_scatter(
                    name=f"{_label(row)}, {name}",
                    x=list(range(1, len(kept[name]) + 1)),
                    y=kept[name],
                    mode="lines+markers",
                    line={"dash": dash, "color": colour(i)},
                )
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    figure.update_xaxes(dtick=1)
    return laid_out(figure, "draft position", "share kept")


def _latency(run: Run) -> go.Figure:
    """Shares of gaps in bins of equal width on a logarithmic scale, the same bins for all."""
    figure = go.Figure()
    gaps = {name: values for name, values in _gaps(run).items() if values}
    if not gaps:
        return figure
    every = np.concatenate(list(gaps.values()))
    edges = np.geomspace(every.min() * 0.99, every.max() * 1.01, _BINS + 1)
    middles = np.sqrt(edges[:-1] * edges[1:]).round(4).tolist()
    for i, (name, values) in enumerate(gaps.items()):
        shares = np.histogram(values, edges)[0] / len(values)
        line = {"shape": "hvh", "color": colour(i)}
        figure.add_scatter(name=name, x=middles, y=shares.round(5).tolist(), mode="lines", line=line)
    figure.update_xaxes(type="log")
    if every.max() > 10 * every.min():
        # Over decades plotly's own labels leave out the tens: "2" for 2 and for 20.
        figure.update_xaxes(tickvals=_TICKS, ticktext=[f"{tick:g}" for tick in _TICKS])
    figure.update_yaxes(tickformat=".0%")
    return laid_out(figure, "milliseconds", "share of waits")


def _gaps(run: Run) -> dict[str, list[float]]:
    """Milliseconds by configuration, temperature and load; waits of no measurable length have no place on the axis."""
    found: dict[str, list[float]] = {}
    for name in run.configurations:
        for sample in run.samples:
            if sample.configuration == name and sample.answer.error is None:
                found.setdefault(_sample_label(sample), []).extend(gap * 1e3 for gap in sample.answer.gaps if gap > 0)
    return found


def _phases(rows: Sequence[Row]) -> go.Figure:
    figure = go.Figure()
    rows = [row for row in rows if row["phases"] and row["tokens"]]
    names = list(rows[0]["phases"]) if rows else []
    for i, name in enumerate(names):
        figure.add_bar(
            name=name,
            y=[_label(row) for row in rows],
            x=[row["phases"][name] / row["tokens"] * 1e3 for row in rows],
            orientation="h",
            marker_color=colour(i),
        )
    figure.update_layout(barmode="stack", height=160 + 40 * len(rows))
    figure.update_yaxes(autorange="reversed", automargin=True)
    return laid_out(figure, "milliseconds of the engine's steps per token", "")


def laid_out(figure: go.Figure, x: str, y: str) -> go.Figure:
    """The look that all our figures share."""
    return figure.update_layout(
        template="plotly_white",
        xaxis_title=x,
        yaxis_title=y,
        margin={"t": 20, "r": 40},
        modebar={"orientation": "v"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "traceorder": "normal"},
        showlegend=True,
    )


def _label(row: Row) -> str:
    return _named(row["configuration"], row["settings"]["temperature"], f"batch {row['batch']}")


def _sample_label(sample: Sample) -> str:
    load = f"batch {sample.batch}" if sample.rate is None else f"{sample.rate:g} requests/s"
    return _named(sample.configuration, sample.settings.temperature, load)


def _named(configuration: str, temperature: float, load: str) -> str:
    return html.escape(f"{configuration}, T={temperature:g}, {load}")


def colour(i: int) -> str:
    """Of the i-th thing of a figure."""
    return str(_COLOURS[i % len(_COLOURS)])
