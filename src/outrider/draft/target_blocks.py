"""A target whose states and blocks a draft is made of: its decoder, and its plain Llama blocks, fused, float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from outrider.errors import CapabilityError
from outrider.models.decoder import DecoderRunner

if TYPE_CHECKING:
    from outrider.models.load import LoadedModel

_PARTS = {
    "input_norm": ("input_layernorm",),
    "mlp_norm": ("post_attention_layernorm",),
    "q": ("self_attn.q_proj",),
    "kv": ("self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def decoder_of(target: LoadedModel, method: str) -> DecoderRunner:
    """The target's runner, if it hands out states. Raises CapabilityError naming the drafter that needs them."""
    runner = target.runner
    if isinstance(runner, DecoderRunner):
        return runner
    raise CapabilityError(
        f"speculative_config: method={method!r} reads activations of Outrider's own decoder, which does not run "
        f"{runner.name}; use method='ngram' or 'draft_model'"
    )


def block_of_target(tensors: Mapping[str, torch.Tensor], block: int) -> dict[str, torch.Tensor]:
    """Tensors of a draft layer from those of a target's block, given by their Hugging Face names."""
    at = f"model.layers.{block}."
    return {
        name: torch.cat([tensors[f"{at}{source}.weight"].float() for source in sources])
        for name, sources in _PARTS.items()
    }


def head_rows(tensors: Mapping[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Rows ``(V, D)`` of the target's head, tied or not, for these ids."""
    head_VD = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return head_VD[ids].float()
