"""`outrider plan --html`: a plan and the article's figures as one file that needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli.bench_results import check_targets, write_atomically
from outrider.cli.plan_inputs import read_document
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.plan.ablation import Variant
    from outrider.plan.search import Prediction, Scenario

_NOTES = (
    "All figures are computed by Outrider's own cost model, in the setup of the SPIRe article (arXiv 2504.06419): "
    "k = 4, one byte a number, a machine of 600 FLOP a byte that reads and computes at once. Tau of each draft is the "
    "article's own, measured at a context of 512 and held there: 2.647 vanilla, 3.891 MagicDec, 3.401 SPIRe.",
    "They are limits: an independent reproduction on an H100 measured 0.75 of them, for all drafts alike.",
)


@dataclass(frozen=True)
class PageOrder:
    """A page that can be written: checked before anything long is begun."""

    path: Path
    variants: tuple[Variant, ...]
    source: str


def order_page(path: Path, ablation: Path | None) -> PageOrder:
    """Look at everything that the page needs. Raises ConfigError."""
    from outrider.plan.ablation import published, read_variants

    check_targets(None, path)
    if ablation is None:
        return PageOrder(path, published(), "tau as the article published it")
    variants = read_variants(read_document(ablation, "--ablation-from"), f"--ablation-from {str(ablation)!r}")
    return PageOrder(path, variants, f"tau measured ({ablation.name}), costs the article's")


def write_page(order: PageOrder, scenario: Scenario, predictions: Sequence[Prediction]) -> None:
    """Write it whole or not at all. Raises ConfigError where it cannot be written."""
    from outrider.bench.report import page

    try:
        write_atomically(order.path, page("outrider plan", _body(order, scenario, predictions)))
    except OSError as error:
        raise ConfigError(f"--html {str(order.path)!r} cannot be written: {error.strerror or error}") from None


def _body(order: PageOrder, scenario: Scenario, predictions: Sequence[Prediction]) -> Iterator[str]:
    from outrider.bench.report import charts
    from outrider.cli.plan_figures import article_figures
    from outrider.plan.report import plan_text

    yield f"<h1>outrider plan: {html.escape(scenario.target.name)}</h1>"
    yield f"<pre>{html.escape(plan_text(scenario, predictions))}</pre>"
    yield "<h1>The SPIRe article's figures</h1>"
    yield from (f'<p class="note">{html.escape(note)}</p>' for note in _NOTES)
    yield from charts(article_figures(order.variants, order.source))
