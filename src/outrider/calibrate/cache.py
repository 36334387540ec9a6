"""Measured curves in the cache folder: one file for a model, its numbers, this machine and this version."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import outrider
from outrider import kernels
from outrider.errors import ConfigError
from outrider.files import replacing
from outrider.hardware import processor
from outrider.models.cache import cache_folder
from outrider.models.registry import DEMO_MODELS
from outrider.plan.curves import CostCurve, read_curve

_FOLDER = "curves"


def curve_key(model: str, dtype: str, quantization: str | None = None) -> dict[str, Any]:
    """All that a curve depends on. ``model``: demo name, folder or file, as ``LLM`` takes it."""
    native, cpu = kernels.load().native, processor()
    return {
        "model": model if model in DEMO_MODELS else _fingerprint(Path(model).expanduser()),
        "dtype": dtype,
        "quantization": quantization,
        "processor": cpu.model,
        "kernels": native.level if native else kernels.TORCH,
        "threads": native.threads if native else cpu.threads,
        "outrider": outrider.__version__,
    }


def curve_path(key: dict[str, Any]) -> Path:
    """Where the curve of a key is, or will be."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    name = re.sub(r"[^\w.-]+", "-", Path(str(key["model"])).name)[:40]
    return cache_folder() / _FOLDER / f"{name}-{digest[:16]}.json"


def cached_curve(key: dict[str, Any]) -> CostCurve | None:
    """The curve that was measured for a key; None where there is none that can be read."""
    path = curve_path(key)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return read_curve(document["curve"], str(path)) if document["key"] == key else None
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        # ConfigError is a ValueError too: what cannot be used is measured again.
        return None


def store_curve(key: dict[str, Any], curve: CostCurve) -> Path:
    """Keep a curve, whole or not at all. Raises ConfigError where it cannot be written."""
    path = curve_path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps({"key": key, "curve": curve.to_json()}).encode())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; set OUTRIDER_CACHE to a folder that can"
        ) from None
    return path


def _fingerprint(path: Path) -> str:
    """A path with what tells another model at the same place: its configuration, or a file's size."""
    try:
        if path.is_dir():
            mark = hashlib.sha256((path / "config.json").read_bytes()).hexdigest()[:12]
        else:
            mark = str(path.stat().st_size)
        return f"{path.resolve()}#{mark}"
    except (OSError, ValueError):
        # A name of the Hub, or nothing at all: the name is all there is.
        return str(path)
