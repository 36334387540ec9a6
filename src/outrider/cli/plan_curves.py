"""`outrider plan --calibrate`: models timed on this machine, their curves kept, found again and printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from outrider.cli.plan_inputs import loadable, written
from outrider.cli.progress import progress_bar
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.calibrate.timing import Grid
    from outrider.plan.curves import CostCurve
    from outrider.plan.memory import Memory, Model

_SHOWN_ROWS = (1, 2, 3, 5, 9, 17, 33, 64)


def calibrate_models(models: Sequence[Model]) -> dict[Model, CostCurve]:
    """Time models in turn and keep their curves. Nothing is kept of what was interrupted.

    Raises ConfigError for what cannot be loaded or does not fit, and what ``load_runner`` raises.
    """
    from outrider.calibrate.cache import store_curve
    from outrider.calibrate.timing import calibrate
    from outrider.models.load import load_runner

    references = [loadable(model, "--calibrate") for model in models]
    grid = _grid(models)
    runners = [
        load_runner(
            reference,
            dtype=model.storage.dtype,
            quantization=model.storage.quantization,
            max_num_seqs=grid.batches[-1],
            longest=grid.length,
        ).runner
        for reference, model in zip(references, models, strict=True)
    ]
    with progress_bar() as report:
        curves = dict(zip(models, calibrate(runners, report, grid), strict=True))
    for model, curve in curves.items():
        print(f"outrider: {_label(model)}: timed, kept in {store_curve(_key(model), curve)}", file=sys.stderr)
    return curves


def known_curves(models: Sequence[Model], batch: int, context: int) -> dict[Model, CostCurve]:
    """Curves that were measured on this machine, of models that have one which reaches so far."""
    from outrider.calibrate.cache import cached_curve

    curves = {}
    for model in models:
        curve = cached_curve(_key(model))
        if curve is None:
            continue
        if curve.covers(batch, context):
            curves[model] = curve
            print(f"outrider: {_label(model)}: passes as --calibrate timed them on this machine", file=sys.stderr)
        else:
            print(
                f"outrider: {_label(model)}: modelled, since it was timed up to batch {curve.batches[-1]} and "
                f"{curve.contexts[-1]} tokens of context",
                file=sys.stderr,
            )
    return curves


def curves_text(curves: Mapping[Model, CostCurve]) -> str:
    """Milliseconds by packed rows: a line for each batch and context."""
    return "\n\n".join("\n".join(_lines(_label(model), curve)) for model, curve in curves.items())


def curves_json(curves: Mapping[Model, CostCurve]) -> dict[str, Any]:
    """Each with its model's name and numbers."""
    return {
        "curves": [
            {"model": model.name, **asdict(model.storage), "curve": curve.to_json()} for model, curve in curves.items()
        ]
    }


def _label(model: Model) -> str:
    return f"{model.name} in {model.storage.quantization or model.storage.dtype}"


def _lines(name: str, curve: CostCurve) -> Iterator[str]:
    yield f"{name}: milliseconds of a pass by rows of all sequences together"
    yield f"{'batch':>6} {'context':>8}" + "".join(f"{rows:>9}" for rows in _SHOWN_ROWS)
    for batch in curve.batches:
        for context in curve.contexts:
            cells = (
                f"{curve.seconds(rows, context, batch) * 1e3:9.2f}" if rows >= batch else f"{'-':>9}"
                for rows in _SHOWN_ROWS
            )
            yield f"{batch:>6} {context:>8}" + "".join(cells)


def _key(model: Model) -> dict[str, Any]:
    from outrider.calibrate.cache import curve_key

    return curve_key(written(model), model.storage.dtype, model.storage.quantization)


def _grid(models: Sequence[Model]) -> Grid:
    """All points whose KV fits into memory beside the weights."""
    from outrider.calibrate.timing import Grid
    from outrider.hardware import physical_memory
    from outrider.plan.memory import gigabytes, plan_memory

    grid = Grid()

    def needs(batch: int) -> list[Memory]:
        return [plan_memory("this machine", physical_memory(), model, batch, grid.length) for model in models]

    batches = tuple(
        batch for batch in grid.batches if sum(need.needed for need in needs(batch)) <= needs(batch)[0].usable
    )
    if not batches:
        need = max(needs(1), key=lambda need: need.needed)
        raise ConfigError(
            f"{' and '.join(model.name for model in models)} cannot be timed together: the largest needs "
            f"{gigabytes(need.needed)}, and {gigabytes(need.usable)} are there for all"
        )
    return replace(grid, batches=batches)
