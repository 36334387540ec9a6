"""Checkpoints that a kill at any moment leaves whole: written beside the last one, then renamed over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelError
from outrider.files import replacing

if TYPE_CHECKING:
    import torch

_NAME = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint. If it cannot be written, the last one stays and OSError is raised."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / _NAME) as file:
        torch.save(state, file)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The folder's checkpoint, tensors and plain values only; None where there is none. Raises ModelError."""
    import torch

    path = folder / _NAME
    if not path.exists():
        return None
    try:
        state: dict[str, torch.Tensor | Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise ModelError(f"{path} cannot be read ({type(error).__name__}); remove it to start again") from error
    if not isinstance(state, dict) or not {"step", "module", "config"} <= state.keys():
        raise ModelError(f"{path} is no checkpoint of a run; remove it to start again")
    return state
