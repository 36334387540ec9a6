"""A SPIRe draft on disk: ``config.json`` and ``model.safetensors``, matrices as they are or in int8, a scale a row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.draft.spire.config import SpireConfig
from outrider.errors import ModelError
from outrider.files import replacing
from outrider.models.checkpoint import read_json

_CODES, _SCALE = ".codes", ".scale"
_LARGEST = 127


@dataclass(frozen=True)
class SpireWeights:
    """Tensors by name, float32: ``layers.{i}.{input_norm, mlp_norm, q, kv, out, gate_up, down}``, ``norm``, ``head``,
    ``mix`` ``(L, L + 1)`` (logits of shares); and ``draft_ids``, the target's ids of the draft's tokens, ascending."""

    config: SpireConfig
    tensors: dict[str, torch.Tensor]
    draft_ids: torch.Tensor

    def shares(self) -> torch.Tensor:
        """Of the stream before the layers and after each, in a layer's memory of an own position: ``(L, L + 1)``."""
        c = self.config
        if not c.feedback:
            return torch.eye(c.num_layers, c.num_layers + 1)
        return torch.softmax(self.tensors["mix"], -1)


def shapes(c: SpireConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a draft but its ids."""
    width = c.hidden_size
    layer = {
        "input_norm": (width,),
        "mlp_norm": (width,),
        "q": (c.query_width, width),
        "kv": (2 * c.kv_width, width),
        "out": (width, c.query_width),
        "gate_up": (2 * c.intermediate_size, width),
        "down": (width, c.intermediate_size),
    }
    named = {f"layers.{i}.{name}": shape for i in range(c.num_layers) for name, shape in layer.items()}
    head = (c.draft_vocab_size, width)
    return {**named, "norm": (width,), "head": head, "mix": (c.num_layers, c.num_layers + 1)}


def save(weights: SpireWeights, folder: Path, provenance: dict[str, Any], *, int8: bool) -> None:
    """Write a draft; ``int8`` keeps matrices as symmetric codes, one scale an output."""
    from safetensors.torch import save as serialise

    stored: dict[str, torch.Tensor] = {"draft_ids": weights.draft_ids.to(torch.int32)}
    for name, tensor in weights.tensors.items():
        if int8 and tensor.dim() == 2 and name != "mix":
            scale_O = tensor.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
            stored[name + _CODES] = (tensor / scale_O).round().to(torch.int8)
            stored[name + _SCALE] = scale_O[:, 0].contiguous()
        else:
            stored[name] = tensor.float().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    card = json.dumps({**weights.config.to_dict(), "provenance": provenance}, indent=1) + "\n"
    # The configuration last: a folder without one is no draft.
    for name, data in (("model.safetensors", serialise(stored)), ("config.json", card.encode())):
        with replacing(folder / name) as file:
            file.write(data)


def load(folder: Path) -> SpireWeights:
    """Read a draft. Raises ModelError for what is none, or not whole."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    values = read_json(folder / "config.json")
    values.pop("provenance", None)
    config = SpireConfig.from_dict(values, str(folder))
    path = folder / "model.safetensors"
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({error}); export the draft again") from error
    tensors = {}
    for name, shape in shapes(config).items():
        tensor = _tensor(stored, name)
        if tensor is None or tuple(tensor.shape) != shape:
            found = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}, not {shape}"
            raise ModelError(f"{path}: tensor {name!r} {found}; export the draft again")
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: tensor {name!r} has entries that are no numbers; export the draft again")
        tensors[name] = tensor
    ids = stored.get("draft_ids")
    wanted = (config.draft_vocab_size,)
    if ids is None or ids.is_floating_point() or ids.shape != wanted or not _are_ids(ids, config.vocab_size):
        raise ModelError(f"{path}: 'draft_ids' are not {config.draft_vocab_size} ascending ids of the target")
    return SpireWeights(config, tensors, ids.long())


def _tensor(stored: dict[str, torch.Tensor], name: str) -> torch.Tensor | None:
    codes, scale = stored.get(name + _CODES), stored.get(name + _SCALE)
    if codes is None or scale is None or scale.dim() != 1 or codes.shape[:1] != scale.shape:
        tensor = stored.get(name)
        return None if tensor is None else tensor.float()
    return codes.float() * scale[:, None]


def _are_ids(ids: torch.Tensor, vocab_size: int) -> bool:
    return bool((ids[1:] > ids[:-1]).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocab_size
