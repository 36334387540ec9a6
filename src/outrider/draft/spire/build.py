"""A SPIRe drafter for a loaded target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.draft.spire.config import Fit, SpireConfig, misfit
from outrider.draft.spire.drafter import SpireDrafter, SpireStep
from outrider.draft.spire.step_native import NativeSpireStep
from outrider.draft.spire.step_torch import TorchSpireStep
from outrider.draft.spire.weights import SpireWeights, load
from outrider.draft.target_blocks import decoder_of
from outrider.errors import CapabilityError

if TYPE_CHECKING:
    from outrider.models.decoder import DecoderRunner
    from outrider.models.load import LoadedModel


def build_spire(folder: Path, target: LoadedModel, most: int, floor: float = 0.0) -> SpireDrafter:
    """The draft in ``folder``, for drafts of at most ``most`` tokens. ``floor``: see ``Drafting``.

    Raises ModelError for a folder that holds none, and CapabilityError for a target that it was not made for.
    """
    runner = decoder_of(target, SpireDrafter.name)
    weights = load(folder)
    _check_fit(weights.config, runner, folder)
    sizes = {"max_num_seqs": runner.max_num_seqs, "max_model_len": runner.max_model_len, "most": most}
    step, eos_ids = _step(weights, runner, most), target.tokenizer.eos_ids
    return SpireDrafter(weights.config, step, weights.draft_ids, eos_ids=eos_ids, floor=floor, **sizes)


def _check_fit(draft: SpireConfig, runner: DecoderRunner, folder: Path) -> None:
    c = runner.config
    mine = Fit(draft.vocab_size, draft.hidden_size, max(draft.reads))
    wrong = misfit(mine, Fit(c.vocab_size, c.hidden_size, c.num_layers), runner.name)
    if wrong is not None:
        raise CapabilityError(f"speculative_config: {folder} {wrong}")


def _step(weights: SpireWeights, runner: DecoderRunner, most: int) -> SpireStep:
    from outrider.models.decoder_native import NativeForward
    from outrider.models.decoder_torch import TorchForward

    window, forward = weights.config.window, runner.forward
    sizes = {
        "slots": runner.max_num_seqs,
        "ring": runner.max_model_len if window is None else window + most,
        "max_model_len": runner.max_model_len,
    }
    if isinstance(forward, NativeForward):
        return NativeSpireStep(weights, forward.native, forward.pool, forward.weights.embedding, **sizes)
    assert isinstance(forward, TorchForward)
    table_VD = forward.weights.embedding
    return TorchSpireStep(weights, lambda ids: table_VD[list(ids)], **sizes)
