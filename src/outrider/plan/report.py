"""A plan as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict
from typing import Any

from outrider.plan.commands import FROM_CHECKPOINT, outrider_config, vllm_command
from outrider.plan.memory import Memory, gigabytes
from outrider.plan.search import EFFICIENCY, MAX_BATCH, MEASURED_EFFICIENCY, Prediction, Scenario, recommend

SCHEMA = "outrider.plan/1"


def plan_json(scenario: Scenario, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Everything as plain values: bytes, seconds, tokens per second of the whole batch, and ratios."""
    target, device = scenario.target, scenario.device
    machine, best = scenario.machine(target), recommend(predictions)
    return {
        "schema": SCHEMA,
        "target": {
            "name": target.name,
            **asdict(target.storage),
            "parameters": target.architecture.parameters,
            "weight_bytes": target.weight_bytes,
            "kv_bytes_per_token": target.footprint.kv_bytes(1),
        },
        "hardware": {
            "name": device.name,
            "bandwidth": machine.bandwidth,
            "flops": machine.flops,
            "memory": device.memory,
            "sources": device.sources_of(*target.storage.arithmetic),
        },
        "measured": None if scenario.curve is None else scenario.curve.to_json(),
        "batch": scenario.batch,
        "context": scenario.context,
        "plain": {
            "tokens_per_second": scenario.plain_tokens_per_second,
            "step_seconds": scenario.plain_seconds,
            "memory": _memory_json(scenario.memory()),
        },
        "drafters": [_prediction_json(scenario, each) for each in predictions],
        "recommended": {
            "drafter": best and best.candidate.name,
            "speculative_config": best and outrider_config(scenario, best),
            "vllm": vllm_command(scenario, best),
        },
    }


def plan_text(scenario: Scenario, predictions: Sequence[Prediction]) -> str:
    """The same for a reader: one column a drafter."""
    return "\n".join(
        [
            *_columns(list(_head(scenario))),
            "",
            *_columns(_table(scenario, predictions)),
            "",
            *_advice(scenario, predictions),
        ]
    )


def _prediction_json(scenario: Scenario, each: Prediction) -> dict[str, Any]:
    candidate, plain = each.candidate, scenario.plain_tokens_per_second
    return {
        "drafter": candidate.name,
        "method": candidate.method,
        "acceptance": {
            "source": candidate.estimate.source,
            "survival": list(candidate.estimate.survival),
            "drafting": candidate.estimate.drafting,
            "alpha": each.alpha,
        },
        "cost": _cost(scenario, each),
        "draft_cost": _draft_cost(scenario, each),
        "efficiency": candidate.efficiency(scenario),
        "k": each.k,
        "tau": each.tau,
        "speedup": {"low": each.low, "limit": each.speedup, "high": each.high},
        "tokens_per_second": {"low": plain * each.low, "limit": plain * each.speedup, "high": plain * each.high},
        "break_even": each.break_even,
        "least_break_even": each.least_break_even,
        "pays_at_batch": None
        if each.pays is None
        else {"from": each.pays[0], "to": each.pays[1], "of": scenario.most_batch},
        "compute_bound_from_batch": each.compute_bound_from,
        "memory": _memory_json(each.memory),
        "verdict": each.verdict,
        "speculative_config": outrider_config(scenario, each),
        "vllm": vllm_command(scenario, each),
    }


def _memory_json(memory: Memory) -> dict[str, Any]:
    return asdict(memory) | {"needed": memory.needed, "fits": memory.fits}


# --- text -----------------------------------------------------------------------------------------------------


def _head(scenario: Scenario) -> Iterator[list[str]]:
    target, device, machine = scenario.target, scenario.device, scenario.machine(scenario.target)
    held = target.storage.quantization or target.storage.dtype
    memory, sources = scenario.memory(), _distinct(device.sources_of(*target.storage.arithmetic).values())
    yield [
        "target",
        f"{target.name}, {_count(target.architecture.parameters)} parameters, "
        f"{gigabytes(target.weight_bytes)} in {held}, {target.footprint.kv_bytes(1) / 1e3:.0f} kB of KV a token",
    ]
    yield [
        "hardware",
        f"{device.name}: {machine.bandwidth / 1e9:,.4g} GB/s, {machine.flops / 1e12:,.4g} TFLOP/s, "
        f"{gigabytes(device.memory)} ({'; '.join(sources)})",
    ]
    yield ["load", f"batch {scenario.batch}, {scenario.context} tokens of context each"]
    limit = "at most " if scenario.curve is None else "measured passes: "
    yield [
        "plain",
        f"{limit}{_number(scenario.plain_tokens_per_second)} tok/s, {_number(1 / scenario.plain_seconds)} a request; "
        f"memory {gigabytes(memory.needed)} of {gigabytes(memory.usable)}, batch up to {memory.largest_batch}",
    ]


def _distinct(sources: Iterable[str]) -> list[str]:
    """Each once, and those that only begin another not at all."""
    sources = dict.fromkeys(sources)
    return [each for each in sources if not any(other != each and other.startswith(each) for other in sources)]


def _table(scenario: Scenario, predictions: Sequence[Prediction]) -> list[list[str]]:
    """One row a figure, one column a drafter."""
    plain = scenario.plain_tokens_per_second
    rows: dict[str, list[str]] = {
        "drafter": [each.candidate.name for each in predictions],
        "acceptance": [each.candidate.estimate.source for each in predictions],
        "cost": [_cost(scenario, each) for each in predictions],
        "draft cost": [f"{_draft_cost(scenario, each):.3f} of a plain step" for each in predictions],
        "best k": [str(each.k) for each in predictions],
        "tau": [f"{each.tau:.2f}" for each in predictions],
        "speedup": [f"{each.low:.2f} to {each.high:.2f}" for each in predictions],
        "tok/s": [f"{_number(plain * each.low)} to {_number(plain * each.high)}" for each in predictions],
        "equals alpha": ["-" if each.alpha is None else f"{each.alpha:.2f}" for each in predictions],
        "break-even alpha": [_break_even(each) for each in predictions],
        "pays at batch": [_pays(each, scenario.most_batch) for each in predictions],
        "memory": [f"{gigabytes(each.memory.needed)} of {gigabytes(each.memory.usable)}" for each in predictions],
        "verdict": [each.verdict for each in predictions],
    }
    return [[name, *cells] for name, cells in rows.items()]


def _advice(scenario: Scenario, predictions: Sequence[Prediction]) -> Iterator[str]:
    best = recommend(predictions)
    yield from _ranges({each.candidate.efficiency(scenario) for each in predictions})
    if best is None:
        yield "Plain decoding is the fastest here."
        yield "outrider: --speculative-config none"
    elif config := outrider_config(scenario, best):
        yield f"outrider: --speculative-config '{json.dumps(config)}'"
    else:
        yield f"outrider: does not run {best.candidate.name} with these weights yet"
    command, quantization = vllm_command(scenario, best), scenario.target.storage.quantization
    yield f"vllm:     {command or 'does not run this drafter'}"
    if command and quantization in FROM_CHECKPOINT:
        yield f"          with a checkpoint quantised to {quantization}"


def _ranges(efficiencies: Set[float]) -> Iterator[str]:
    """What the ends of the speedups are."""
    if EFFICIENCY in efficiencies:
        yield (
            f"Modelled: speedups range from {EFFICIENCY} of the device's limit, which a reproduction of SPIRe measured "
            "on an H100, to the limit."
        )
    if MEASURED_EFFICIENCY in efficiencies:
        yield (
            f"Measured: speedups range from {MEASURED_EFFICIENCY} of what the passes alone allow, since a round also "
            "samples, verifies and keeps its books, to all of it."
        )


def _cost(scenario: Scenario, each: Prediction) -> str:
    """Which of the two passes of a round were measured."""
    candidate = each.candidate
    if candidate.share is None and candidate.fixed_share is not None:
        return f"target {'modelled' if scenario.curve is None else 'measured'}, draft measured by the probe"
    if scenario.curve is None:
        return "modelled"
    if candidate.held(scenario.target) is None or candidate.measured(scenario) is not None:
        return "measured"
    return "target measured, draft modelled"


def _draft_cost(scenario: Scenario, each: Prediction) -> float:
    """A draft token's share of a plain step, as ``--draft-cost`` takes it."""
    plain = scenario.plain_seconds
    return each.candidate.cost(scenario).seconds(scenario.batch, scenario.context, plain) / plain


def _break_even(each: Prediction) -> str:
    least = "none" if each.least_break_even is None else f"{each.least_break_even:.2f}"
    if each.k < 2:
        return least
    return f"{least} at k 1, {'none' if each.break_even is None else f'{each.break_even:.2f}'} at k {each.k}"


def _pays(each: Prediction, most: int) -> str:
    if each.pays is None:
        return "none"
    first, last = each.pays
    if last < most:
        return f"{first} to {last}"
    return f"{first} and more" if most == MAX_BATCH else f"{first} to {last} at least"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
