"""`outrider doctor`: what this machine offers and what is installed, for users and for bug reports."""

from __future__ import annotations

import json
import platform
from typing import Annotated, Any

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Report versions, processor, kernels, memory bandwidth, disk and demo models. Nothing is fetched."""
    report = examine()
    typer.echo(json.dumps(report) if as_json else _page(report))


def examine() -> dict[str, Any]:
    """The report as plain values; bandwidth in bytes per second, disk in bytes."""
    from importlib.metadata import version

    from outrider import __version__
    from outrider.hardware import processor, read_bandwidth
    from outrider.models.cache import cache_folder, free_bytes
    from outrider.models.pull import is_pulled
    from outrider.models.registry import DEMO_MODELS

    cpu = processor()
    return {
        "outrider": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "platform": platform.platform(),
        "cpu": cpu.model,
        "isa": cpu.isa,
        "cores": cpu.cores,
        "threads": cpu.threads,
        "onednn_bf16": cpu.bf16,
        "kernels": _kernels(),
        "read_bandwidth": read_bandwidth(),
        "cache": str(cache_folder()),
        "cache_free": free_bytes(cache_folder()),
        "demo_models": {name: is_pulled(model) for name, model in DEMO_MODELS.items()},
    }


def _kernels() -> dict[str, Any]:
    """The native kernels' level and threads (None where they are off, and why), and the levels that could be chosen."""
    from outrider.kernels import load

    kernels = load()
    native = kernels.native
    return {
        "level": native and native.level,
        "threads": native and native.threads,
        "levels": list(kernels.levels),
        "off": kernels.reason,
    }


def _kernels_line(kernels: dict[str, Any]) -> str:
    levels = f"available: {', '.join(kernels['levels'])}" if kernels["levels"] else "no level available"
    if kernels["off"]:
        return f"torch ({kernels['off']}; {levels})"
    return f"native, {kernels['level']}, {kernels['threads']} threads ({levels})"


def _page(report: dict[str, Any]) -> str:
    models = report["demo_models"].items()
    slow = "no" if report["kernels"]["level"] else "no (bfloat16 will be slow; try --dtype float32)"
    shown = report | {
        "onednn_bf16": "yes" if report["onednn_bf16"] else slow,
        "kernels": _kernels_line(report["kernels"]),
        "read_bandwidth": f"{report['read_bandwidth'] / 1e9:.1f} GB/s",
        "cache_free": f"{report['cache_free'] / 1e9:.1f} GB",
        "demo_models": ", ".join(f"{name} ({'here' if here else 'not fetched'})" for name, here in models),
    }
    width = max(map(len, shown))
    return "\n".join(f"{key.replace('_', ' '):<{width}}  {value}" for key, value in shown.items())
