"""A small draft as a Hugging Face folder: the whole vocabulary, the target's tokenizer, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from outrider.files import replacing
from outrider.train.methods.small.config import SmallConfig

if TYPE_CHECKING:
    from outrider.models.tokenizer import Tokenizer

_CARD = "config.json"


def save_small(
    config: SmallConfig,
    module: Mapping[str, torch.Tensor],
    draft_ids: torch.Tensor,
    tokenizer: Tokenizer,
    provenance: Mapping[str, Any],
    folder: Path,
) -> None:
    """Write the folder, each file whole; ``module`` is a ``SmallModule``'s state."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    eos_ids = sorted(tokenizer.eos_ids)
    card = {**config.to_hugging_face(), "eos_token_id": eos_ids[0] if len(eos_ids) == 1 else eos_ids or None}
    files = dict(_tokenizer_files(tokenizer))
    files["provenance.json"] = _json(provenance)
    files["model.safetensors"] = save(whole_model(config, module, draft_ids), {"format": "pt"})
    # The configuration last: a folder without one is no model.
    files[_CARD] = _json(card)
    for name, content in files.items():
        with replacing(folder / name) as file:
            file.write(content)


def whole_model(
    config: SmallConfig, module: Mapping[str, torch.Tensor], draft_ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Tensors of the whole model; tokens that were not learnt have rows of zeros in the head, and so the logit 0."""
    tensors = {name: tensor.float().contiguous() for name, tensor in module.items()}
    head_VD = torch.zeros(config.vocab_size, config.hidden_size)
    head_VD[draft_ids] = tensors["lm_head.weight"]
    return {**tensors, "lm_head.weight": head_VD}


def _tokenizer_files(tokenizer: Tokenizer) -> Iterator[tuple[str, bytes]]:
    with TemporaryDirectory() as scratch:
        tokenizer.save(Path(scratch))
        for path in sorted(Path(scratch).iterdir()):
            if path.is_file():
                yield path.name, path.read_bytes()


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode()
