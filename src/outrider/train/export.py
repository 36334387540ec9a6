"""From a checkpoint to a draft that the engine loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.weights import SpireWeights, save
from outrider.errors import ModelError
from outrider.train.checkpoint import load_checkpoint

if TYPE_CHECKING:
    import torch


def export_spire(run: Path, folder: Path, *, int8: bool) -> SpireWeights:
    """Write the draft that the run's checkpoint holds, with the run's provenance. Raises ModelError."""
    state = load_checkpoint(run)
    if state is None:
        raise ModelError(f"{run} holds no checkpoint; give the output folder of `outrider train run`")
    module: dict[str, torch.Tensor] = state["module"]
    tensors = {name.removesuffix(".weight"): tensor.float() for name, tensor in module.items()}
    draft: dict[str, Any] = state["draft"]
    weights = SpireWeights(SpireConfig.from_dict(draft["config"], str(run)), tensors, state["draft_ids"])
    provenance = {**draft["provenance"], "steps": state["step"], "training": state["config"]}
    save(weights, folder, provenance, int8=int8)
    return weights
