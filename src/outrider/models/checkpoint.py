"""A model's configuration and weights from its files, whichever format they are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelError
from outrider.models.gguf_config import config_from_gguf, is_known
from outrider.models.gguf_file import open_gguf
from outrider.models.gguf_names import read_gguf_tensors, read_packed_gguf_tensors
from outrider.models.quiet import first_line, quiet_transformers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from transformers import PretrainedConfig

    from outrider.models.gguf_file import PackedRows
    from outrider.models.resolve import ModelFiles

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def read_config(files: ModelFiles, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """The model's Transformers configuration. Raises ``ModelError``."""
    from transformers import AutoConfig

    # Never left out: without an answer, Transformers would ask on the terminal and obey what stdin holds.
    source: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if files.gguf is not None:
        gguf = open_gguf(files.gguf)
        if is_known(gguf):
            return config_from_gguf(gguf)
        source["gguf_file"] = files.gguf.name
    else:
        read_json(files.folder / "config.json")
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(files.folder, local_files_only=True, **source)
    except Exception as error:
        # Each configuration class validates its own fields with its own kinds of error.
        raise transformers_error(files.name, "Transformers cannot read its configuration", error) from error


def transformers_error(name: str, failed: str, error: Exception) -> ModelError:
    """What Transformers raised as our one line; says how to allow a model's own code when that is what it lacks."""
    if "custom code" in str(error) and "trust_remote_code" in str(error):
        return ModelError(
            f"{name}: it needs Python code of its own to be run, which is not allowed; if you trust the code, "
            "allow it with --trust-remote-code (trust_remote_code=True)"
        )
    return ModelError(f"{name}: {failed}: {first_line(error)}")


def read_tensors(files: ModelFiles, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight as (Hugging Face name, dense tensor in ``dtype``), one at a time. Raises ``ModelError``."""
    if files.gguf is not None:
        return read_gguf_tensors(open_gguf(files.gguf), dtype)
    return _read_safetensors(files, dtype)


def read_packed_tensors(files: ModelFiles, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | PackedRows]]:
    """The same for a GGUF file, matrices packed as they are where the native kernels take them so."""
    assert files.gguf is not None, "only GGUF files hold packed matrices"
    return read_packed_gguf_tensors(open_gguf(files.gguf), dtype)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ``ModelError`` naming the file and what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def _read_safetensors(files: ModelFiles, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    missing = _indexed_names(files.folder)
    for path in _shards(files.folder):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - the handle is not iterable
                    missing.discard(name)
                    yield name, _dense(path, name, shard.get_tensor(name), dtype)
        except SafetensorError as error:
            raise ModelError(f"{path} is corrupt or truncated ({first_line(error)}); fetch it again") from error
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    if missing:
        raise ModelError(
            f"{files.folder / _INDEX} lists tensor {min(missing)!r}, but no shard has it; fetch the model again"
        )


def _dense(path: Path, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.element_size() == 1:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(
            f"{path}: tensor {name!r} is {kind}; quantised safetensors are not read, use the original weights"
        )
    return tensor.to(dtype)


def _shards(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        names = sorted(set(_weight_map(folder).values()))
        # A shard is a plain name in this folder: an index must not reach files elsewhere.
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise ModelError(f"{folder / _INDEX} names shard {outside[0]!r}, which is not in its own folder")
        return [folder / name for name in names]
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    return sorted(folder.glob("*.safetensors"))


def _indexed_names(folder: Path) -> set[str]:
    return set(_weight_map(folder)) if (folder / _INDEX).is_file() else set()


def _weight_map(folder: Path) -> dict[str, str]:
    names = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(shard, str) for shard in names.values()):
        raise ModelError(f"{folder / _INDEX} has no usable 'weight_map'; fetch the model again")
    return names
