"""Trained drafts that come with the package, found by the shape of the target they were made for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import outrider
from outrider.models.decoder import DecoderRunner

if TYPE_CHECKING:
    from outrider.models.load import LoadedModel

DRAFTS = Path(outrider.__file__).parent / "drafts"
# Layers, width and vocabulary. A target fine-tuned from the same model fits too: a draft decides how fast, never what.
_MADE_FOR = {(30, 576, 49152): "smollm2-135m"}


def shipped_draft(target: LoadedModel) -> Path | None:
    """Folder of the draft for this target; None where there is none, or the target has no states to read."""
    runner = target.runner
    if not isinstance(runner, DecoderRunner):
        return None
    c = runner.config
    return shipped_for(c.num_layers, c.hidden_size, c.vocab_size)


def shipped_for(layers: int, width: int, vocab_size: int) -> Path | None:
    """Folder of the draft for a target of these sizes."""
    name = _MADE_FOR.get((layers, width, vocab_size))
    return None if name is None or not (DRAFTS / name).is_dir() else DRAFTS / name
