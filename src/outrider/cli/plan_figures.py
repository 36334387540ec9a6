"""The SPIRe article's figures, drawn from our own cost model. Only pages import this: plotly is an extra."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from outrider.bench.plots import colour, laid_out
from outrider.plan import article
from outrider.plan.ablation import Variant
from outrider.plan.article import LLAMA, SMALL, TAU, Setup

_GAIN = "throughput over plain decoding's"


def article_figures(variants: Sequence[Variant], source: str) -> Iterator[tuple[str, go.Figure]]:
    """Titled figures; ``source`` says where tau of the ablation comes from."""
    batch, context = article.BATCH, article.CONTEXT
    yield f"Speedup against context, batch {batch}", _over_context(SMALL, article.CONTEXTS)
    yield "Speedup over batch and context, by draft: blue gains, red loses", _heat_map()
    yield f"Ablation of SPIRe, batch {batch}, context {context}: {source}", _ablation(variants)
    yield f"Llama-3-70B, batch {batch}: the same drafts at its size", _over_context(LLAMA, article.LLAMA_CONTEXTS)


def _over_context(setup: Setup, contexts: Sequence[int]) -> go.Figure:
    figure = go.Figure()
    for i, draft in enumerate(TAU):
        figure.add_scatter(
            name=draft,
            x=list(contexts),
            y=[setup.multiplier(draft, article.BATCH, context) for context in contexts],
            mode="lines+markers",
            line={"color": colour(i)},
        )
    figure.add_hline(y=1.0, line_dash="dot")
    figure.update_xaxes(type="log", tickvals=list(contexts), ticktext=[_short(context) for context in contexts])
    figure.update_yaxes(rangemode="tozero")
    return laid_out(figure, "tokens of context", _GAIN)


def _heat_map() -> go.Figure:
    figure = make_subplots(rows=1, cols=len(TAU), subplot_titles=list(TAU), shared_yaxes=True)
    contexts, batches = article.MAP_CONTEXTS, article.BATCHES
    for i, draft in enumerate(TAU):
        figure.add_heatmap(
            x=[_short(context) for context in contexts],
            y=[str(batch) for batch in batches],
            z=[[round(SMALL.multiplier(draft, batch, context), 3) for context in contexts] for batch in batches],
            texttemplate="%{z:.2f}",
            textfont={"size": 9},
            coloraxis="coloraxis",
            name=draft,
            row=1,
            col=i + 1,
        )
    # Named axes are words, not numbers to be spaced by their size.
    figure.update_xaxes(type="category", title_text="tokens of context")
    figure.update_yaxes(type="category")
    figure.update_layout(coloraxis={"colorscale": "RdBu", "cmid": 1.0, "showscale": False})
    laid_out(figure, "tokens of context", "batch")
    return figure.update_layout(margin={"t": 40}, showlegend=False)


def _ablation(variants: Sequence[Variant]) -> go.Figure:
    figure = go.Figure()
    figure.add_bar(
        name="multiplier",
        y=[html.escape(each.name) for each in variants],
        x=[each.multiplier for each in variants],
        text=[f"{each.multiplier:.2f} (tau {each.tau:.3f})" for each in variants],
        orientation="h",
        insidetextanchor="start",
        marker_color=colour(2),
        error_x=_intervals(variants),
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    laid_out(figure, _GAIN, "")
    return figure.update_layout(showlegend=False)


def _intervals(variants: Sequence[Variant]) -> dict[str, object] | None:
    """Tau's interval as the multiplier has it; none where nothing was measured."""
    if all(each.low is None for each in variants):
        return None
    scales = [each.multiplier / each.tau for each in variants]
    return {
        "type": "data",
        "symmetric": False,
        "array": [((each.high or each.tau) - each.tau) * scale for each, scale in zip(variants, scales, strict=True)],
        "arrayminus": [
            (each.tau - (each.low or each.tau)) * scale for each, scale in zip(variants, scales, strict=True)
        ],
    }


def _short(size: int) -> str:
    """1024 as 1k, 1048576 as 1M."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)
