"""A drafter from its configuration."""

from __future__ import annotations

from pathlib import Path

from outrider.config import SpeculativeConfig
from outrider.draft import check_pair
from outrider.draft.base import Drafter
from outrider.draft.none import NoDrafter
from outrider.errors import CapabilityError
from outrider.models.load import LoadedModel, load_runner


def build_drafter(
    speculation: SpeculativeConfig | None,
    target: LoadedModel,
    *,
    dtype: str,
    max_num_batched_tokens: int,
    trust_remote_code: bool,
) -> Drafter:
    """The drafter that proposes for ``target``; ``dtype`` is what a draft model takes unless it has its own.

    Raises CapabilityError when the two do not go together, and what loading a draft model raises.
    """
    if speculation is None or speculation.num_speculative_tokens == 0:
        return NoDrafter()
    if target.runner.capabilities.rollback == "none":
        raise CapabilityError(
            f"{target.runner.name}: its cache cannot be rolled back, so rejected drafts of {speculation.method!r} "
            "would stay in it; use speculative_config=None"
        )
    if speculation.method == "ngram":
        from outrider.draft.ngram import NgramDrafter

        return NgramDrafter(speculation.lookup_min, speculation.lookup_max)
    if speculation.method == "spire":
        from outrider.draft.spire.build import build_spire

        assert speculation.model is not None
        return build_spire(Path(speculation.model), target, speculation.num_speculative_tokens)
    return _draft_model(speculation, target, dtype, max_num_batched_tokens, trust_remote_code)


def _draft_model(
    speculation: SpeculativeConfig,
    target: LoadedModel,
    dtype: str,
    max_num_batched_tokens: int,
    trust_remote_code: bool,
) -> Drafter:
    from outrider.draft.model import ModelDrafter

    assert speculation.model is not None
    # Slots no longer than the target's: nothing beyond them is ever drafted.
    draft = load_runner(
        speculation.model,
        dtype=speculation.dtype or dtype,
        quantization=speculation.quantization,
        max_num_seqs=target.runner.max_num_seqs,
        longest=target.runner.max_model_len,
        trust_remote_code=trust_remote_code,
    )
    check_pair(target.tokenizer, draft.tokenizer)
    return ModelDrafter(
        draft.runner, target.runner.vocab_size, target.tokenizer.eos_ids, max_num_batched_tokens=max_num_batched_tokens
    )
