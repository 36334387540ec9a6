"""How much of a draft survives: assumed, or measured by `outrider bench`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.plan.closed_form import geometric_survival

BENCH_SCHEMA = "outrider.bench/1"


@dataclass(frozen=True)
class Estimate:
    """Survival by position (unconditional), where it comes from, and the ends of tau's 95 % interval over tau.

    ``drafting`` is the share of rounds in which there was a draft: a lookup that finds nothing costs a plain round.
    ``draft_cost`` is what a draft token took where that was timed too, as a share of a plain step of the same run.
    """

    survival: tuple[float, ...]
    source: str
    low: float = 1.0
    high: float = 1.0
    drafting: float = 1.0
    draft_cost: float | None = None


@dataclass(frozen=True)
class Measured:
    """A configuration of a bench record that drafted. What the record does not tell of the drafter is None."""

    configuration: str
    method: str | None
    model: str | None
    rounds: int
    estimate: Estimate

    def fits(self, method: str, models: Sequence[str]) -> bool:
        """Whether this may be the drafter asked for; ``models`` are its draft model's names, none for any."""
        return self.method in (None, method) and (self.model is None or not models or self.model in models)


def assumed(alpha: float, k: int) -> Estimate:
    """Every draft token accepted with probability ``alpha``. Raises ConfigError outside 0 to 1."""
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"acceptance {alpha:g} must be a probability from 0 to 1, such as 0.8")
    return Estimate(geometric_survival(alpha, k), f"assumed {alpha:g}")


def read_measured(record: object, where: str) -> tuple[Measured, ...]:
    """Every drafting configuration of a record of `outrider bench`, its settings and batches pooled by rounds.

    Raises ConfigError for what is no such record, and where nothing drafted.
    """
    schema = record.get("schema") if isinstance(record, Mapping) else None
    if not isinstance(record, Mapping) or schema != BENCH_SCHEMA:
        raise ConfigError(
            f"{where}: schema {str(schema)[:60]!r} is not {BENCH_SCHEMA!r}; give a record of `outrider bench --output`"
        )
    try:
        rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in record["summary"]["rows"]:
            if row["acceptance"] and row["acceptance"]["drafted"]:
                rows[str(row["configuration"])].append(row)
        details = {name: record["details"].get(name, {}) for name in rows}
        found = tuple(_measured(name, of, details[name]) for name, of in rows.items() if not _chosen(details[name]))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where}: the record is damaged ({detail[:120]}); measure again") from error
    if rows and not found:
        raise ConfigError(
            f"{where}: the engine chose its draft lengths here, so that nothing is known of positions it passed over; "
            "measure a fixed length with `outrider bench --k 4`"
        )
    if not found:
        raise ConfigError(f"{where}: nothing drafted in this record; measure a drafter with `outrider bench`")
    return found


def choose(measured: Iterable[Measured], method: str, models: Sequence[str], where: str) -> Estimate:
    """What was measured of a drafter: at the largest k, over the most rounds. Raises ConfigError without any."""
    measured = tuple(measured)
    fitting = [each for each in measured if each.fits(method, models)]
    if not fitting:
        wanted = f"{method} {models[0]}" if models else method
        names = ", ".join(repr(each.configuration) for each in measured)
        raise ConfigError(f"{where} has no {wanted!r}, only {names}; measure it, or give an acceptance")
    # A drafter that the record names goes before one that merely may be it.
    best = max(fitting, key=lambda each: (each.method is not None, len(each.estimate.survival), each.rounds))
    return best.estimate


def drafting_share(drafted: int, rounds: int, k: int) -> float:
    """Of all rounds, those that would have given so many draft tokens at k each."""
    return min(1.0, drafted / (rounds * k))


def _chosen(details: Mapping[str, Any]) -> bool:
    """Whether draft lengths were a controller's: survival by position then says as much of it as of the drafter."""
    config = details.get("speculative_config")
    return config is not None and config.get("num_speculative_tokens") is None


def _measured(name: str, rows: Sequence[Mapping[str, Any]], details: Mapping[str, Any]) -> Measured:
    weights = [int(row["acceptance"]["rounds"]) for row in rows]
    rounds = sum(weights)

    def pooled(values: Iterable[float]) -> float:
        return math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / rounds

    positions = max(len(row["acceptance"]["survival"]) for row in rows)
    survival = [
        pooled(each[i] if i < len(each) else 0.0 for each in (row["acceptance"]["survival"] for row in rows))
        for i in range(positions)
    ]
    if not all(1.0 >= a >= b >= 0.0 for a, b in zip([1.0, *survival], survival, strict=False)):
        raise ValueError(f"survival {survival} of {name!r} rises or is no share")
    # One prompt alone has no interval.
    ends = ((end, "mean") for end in ("mean", "low", "high"))
    tau, low, high = (
        pooled(float(row["tau"][mean] if row["tau"][end] is None else row["tau"][end]) for row in rows)
        for end, mean in ends
    )
    config = details.get("speculative_config") or {}
    drafting = drafting_share(sum(int(row["acceptance"]["drafted"]) for row in rows), rounds, positions)
    estimate = Estimate(tuple(survival), f"measured, {name}, {rounds} rounds", low / tau, high / tau, drafting)
    return Measured(name, config.get("method"), config.get("model"), rounds, estimate)
