"""From a checkpoint to a draft that the engine loads."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import ModelError
from outrider.train.checkpoint import load_checkpoint
from outrider.train.config import TrainConfig
from outrider.train.methods import method_named


def export_draft(run: Path, folder: Path, *, int8: bool) -> str:
    """Write the draft that the run's checkpoint holds, with its provenance; says what it is. Raises OutriderError."""
    state = load_checkpoint(run)
    if state is None:
        raise ModelError(f"{run} holds no checkpoint; give the output folder of `outrider train run`")
    method = method_named(TrainConfig.from_dict(state["config"]).method)
    return method.export(state, run, folder, int8=int8)
