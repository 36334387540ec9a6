"""What a plan reads: sizes of models, a device's figures, a bench record. No weights, and nothing is fetched."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.plan_spire import is_trained, trained_model
from outrider.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from outrider.plan.architecture import Storage
    from outrider.plan.hardware import Device
    from outrider.plan.memory import Model

_MATRIX = 1024
_REPEATS = 5
_MOST_LAYERS = 10_000


def storage(dtype: str, quantization: str | None) -> Storage:
    """How a model's numbers are held. Raises ConfigError for an unknown quantization."""
    from outrider.plan.architecture import WEIGHT_BITS, Storage

    if quantization is not None and quantization not in WEIGHT_BITS:
        raise ConfigError(f"quantization {quantization!r} is unknown; use {', '.join(WEIGHT_BITS)}, or leave it out")
    return Storage(dtype, quantization)


def planned_model(ref: str, role: str, held: Storage) -> Model:
    """A model's sizes, or a trained SPIRe draft's. ``role`` stands for it in commands where only sizes are known.

    Raises ModelError for what cannot be read or counted.
    """
    from outrider.models.registry import DEMO_MODELS
    from outrider.plan.architecture import read_architecture
    from outrider.plan.memory import Model

    if ref.lstrip().startswith("{"):
        return Model(role, role, read_architecture(_complete(_parse(ref, f"sizes of {role}"), role), role), held)
    name, location = ref, ref
    if ref in DEMO_MODELS:
        path = _pulled(ref)
        location, values = str(path), _gguf_config(path)
    else:
        path = _existing(ref)
        if path.suffix == ".gguf":
            values = _gguf_config(path)
        else:
            values = _read_json(path)
            if is_trained(values):
                return trained_model(values, path.parent, held)
            values = _complete(values, ref)
            # The folder is what an engine loads; another file's name can only stand for the model.
            name = location = str(path.parent) if path.name == "config.json" else path.stem
    return Model(name, location, read_architecture(values, ref), held)


def written(model: Model) -> str:
    """What an LLM would be given for the model."""
    from outrider.models.registry import DEMO_MODELS

    return model.name if model.name in DEMO_MODELS else model.location


def loadable(model: Model, option: str) -> str:
    """The same, of a model whose weights are there, as ``option`` needs them. Raises ConfigError."""
    reference = written(model)
    if reference == model.location and not Path(reference).expanduser().exists():
        raise ConfigError(
            f"{model.name} is known by its sizes alone, and {option} needs weights: give a demo name, a folder or a "
            "GGUF file"
        )
    return reference


def planned_device(name: str, dtype: str, bandwidth: float | None, memory: float | None, flops: float | None) -> Device:
    """A device of the catalogue or this machine, with a user's own figures in GB/s, GB and TFLOP/s."""
    from outrider.plan.hardware import GB, TERA, THIS, find_device

    for option, value in (("--bandwidth", bandwidth), ("--memory", memory), ("--flops", flops)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{option} {value:g} must be above 0")
    device = _this_machine(dtype) if name == THIS else find_device(name)
    return device.override(bandwidth and bandwidth * GB, memory and memory * GB, flops and flops * TERA)


def read_document(path: Path, option: str) -> object:
    """What a JSON file holds; ``option`` named it. Raises ConfigError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{option} {str(path)!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option} {str(path)!r} is not JSON: {str(error)[:80]}") from None


# --- models ---------------------------------------------------------------------------------------------------


def _pulled(name: str) -> Path:
    from outrider.models.pull import is_pulled, pulled_path
    from outrider.models.registry import DEMO_MODELS

    if not is_pulled(DEMO_MODELS[name]):
        raise ModelError(f"{name} is not in the cache; fetch it with: outrider pull {name}")
    return pulled_path(DEMO_MODELS[name])


def _existing(ref: str) -> Path:
    try:
        path = Path(ref).expanduser()
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):
        # A name too long or with a null byte, or "~name" of nobody: no file either way.
        pass
    raise ModelError(
        f"no model at {ref[:80]!r}; give a demo name, a folder with config.json, a .json or .gguf file, or sizes as in "
        "'{\"hidden_size\": 4096, ...}' (models of the Hub: download their config.json)"
    )


def _gguf_config(path: Path) -> Mapping[str, Any]:
    from outrider.models.checkpoint import read_config
    from outrider.models.resolve import ModelFiles

    return _values(read_config(ModelFiles(str(path), path.parent, path)))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not UTF-8 text") from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: not valid JSON: {str(error)[:80]}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{where}: must be a JSON object of a model's sizes, not a {type(values).__name__}")
    return values


def _complete(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A configuration with the defaults that its family's files leave out; sizes alone as they are."""
    if "model_type" not in values:
        return values
    layers = values.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        # Configurations hold a word for each layer.
        raise ModelError(f"{where}: num_hidden_layers={layers} is above {_MOST_LAYERS}")
    from transformers import AutoConfig

    from outrider.models.quiet import first_line, quiet_transformers

    try:
        with quiet_transformers():
            return _values(AutoConfig.for_model(**values))
    except Exception as error:
        # Each configuration class validates its own fields with its own kinds of error.
        raise ModelError(f"{where}: no valid configuration: {first_line(error)}") from error


def _values(config: Any) -> Mapping[str, Any]:
    """Of the language model, where a configuration describes others too."""
    values: Mapping[str, Any] = config.get_text_config().to_dict()
    return values


# --- this machine -----------------------------------------------------------------------------------------------


def _this_machine(dtype: str) -> Device:
    """Measured in about a second: a sum for bandwidth, a matrix product for arithmetic; memory as installed."""
    from outrider.hardware import physical_memory, processor, read_bandwidth
    from outrider.plan.hardware import THIS, Device

    print("outrider: measuring this machine", file=sys.stderr)
    sources = {
        "bandwidth": f"{processor().model}, measured: a sum of 512 MiB",
        "memory": "as the system says",
        dtype: f"measured: a product of {_MATRIX} x {_MATRIX} matrices in {dtype}",
    }
    return Device(THIS, read_bandwidth(), float(physical_memory()), {dtype: _product_flops(dtype)}, sources)


def _product_flops(dtype: str) -> float:
    import torch

    matrix = torch.ones(_MATRIX, _MATRIX, dtype=getattr(torch, dtype))
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return 2.0 * _MATRIX**3 / statistics.median(seconds)
