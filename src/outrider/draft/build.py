"""A drafter from its configuration."""

from __future__ import annotations

from pathlib import Path

from outrider.config import MOST_TOKENS, SpeculativeConfig
from outrider.draft import check_pair
from outrider.draft.base import Drafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.none import NoDrafter
from outrider.draft.shipped import shipped_draft
from outrider.errors import CapabilityError
from outrider.models.load import LoadedModel, load_runner

_FLOOR = 0.15
"""Where the engine chooses draft lengths, a draft less likely than this is not worth its row of the target's pass."""


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
    k = speculation.num_speculative_tokens
    # No draft is longer than the text may become.
    most, floor = (MOST_TOKENS, _FLOOR) if k is None else (min(k, target.runner.max_model_len), 0.0)
    if speculation.method == "ngram":
        return NgramDrafter(speculation.lookup_min, speculation.lookup_max)
    if speculation.method == "auto":
        return _best_drafter(speculation, target, most, floor)
    if speculation.method == "spire":
        from outrider.draft.spire.build import build_spire

        assert speculation.model is not None
        return build_spire(Path(speculation.model), target, most, floor)
    if speculation.method == "sparse_self":
        from outrider.draft.sparse_self import build_sparse_self

        return build_sparse_self(target, most, dtype)
    return _draft_model(speculation, target, dtype, max_num_batched_tokens, trust_remote_code, floor)


def _best_drafter(speculation: SpeculativeConfig, target: LoadedModel, most: int, floor: float) -> Drafter:
    """Prompt lookup, and behind it the trained draft that is shipped for this target, if there is one."""
    lookup = NgramDrafter(speculation.lookup_min, speculation.lookup_max)
    folder = shipped_draft(target)
    if folder is None:
        return lookup
    from outrider.draft.several import SeveralDrafter
    from outrider.draft.spire.build import build_spire

    return SeveralDrafter([lookup, build_spire(folder, target, most, floor)])


def _draft_model(
    speculation: SpeculativeConfig,
    target: LoadedModel,
    dtype: str,
    max_num_batched_tokens: int,
    trust_remote_code: bool,
    floor: float,
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
    return ModelDrafter(draft.runner, target.runner.vocab_size, target.tokenizer.eos_ids, max_num_batched_tokens, floor)
