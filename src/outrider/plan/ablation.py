"""What parts of a draft are worth: the article's numbers, or those that `outrider train evaluate` measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.plan.article import ABLATIONS, BATCH, CONTEXT, SMALL, K
from outrider.plan.closed_form import expected_tokens

LOOKUP = "ngram"


@dataclass(frozen=True)
class Variant:
    """A draft with what it earns. ``low`` and ``high`` are the ends of tau's 95 % interval, where there is one."""

    name: str
    tau: float
    k: int
    low: float | None = None
    high: float | None = None

    @property
    def multiplier(self) -> float:
        """What SPIRe's costs in the article's setup make of tau, at the point of its figure."""
        return SMALL.multiplier("SPIRe", BATCH, CONTEXT, self.tau, self.k)


def published() -> tuple[Variant, ...]:
    """The article's ablation."""
    return tuple(Variant(name, tau, K) for name, tau in ABLATIONS.items())


def read_variants(document: object, where: str) -> tuple[Variant, ...]:
    """Of the output of `outrider train evaluate --json`: tau from the survival of each row, but lookup's, which costs
    nothing like a draft. Raises ConfigError.
    """
    rows = document.get("evaluations") if isinstance(document, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(f"{where} has no evaluations; give the output of `outrider train evaluate --json`")
    rows = [row for row in rows if row.get("draft") != LOOKUP]
    if not rows:
        raise ConfigError(f"{where} has no evaluation of a trained draft")
    try:
        variants = [_variant(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where}: an evaluation is damaged ({detail[:120]}); measure again") from None
    return tuple(_distinct(variants, rows))


def _variant(row: Mapping[str, Any]) -> Variant:
    survival = [float(share) for share in row["survival"]]
    if not survival or not all(1.0 >= a >= b >= 0.0 for a, b in zip([1.0, *survival], survival, strict=False)):
        raise ValueError(f"survival {survival} rises or is no share")
    low, high = (None, None) if row.get("interval") is None else map(float, row["interval"])
    k = len(survival)
    return Variant(str(row["draft"]), expected_tokens(survival, k), k, low, high)


def _distinct(variants: Sequence[Variant], rows: Sequence[Mapping[str, Any]]) -> list[Variant]:
    """With temperature and context in the names of drafts that were measured more than once."""
    often = Counter(each.name for each in variants)
    found = []
    for each, row in zip(variants, rows, strict=True):
        about = f", T={row.get('temperature')}, context {row.get('context') or 'whole'}, k={each.k}"
        name = each.name + (about if often[each.name] > 1 else "")
        found.append(Variant(name, each.tau, each.k, each.low, each.high))
    return found
