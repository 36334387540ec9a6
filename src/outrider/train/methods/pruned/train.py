"""A pruned draft in training: a small one of the target's width, begun with the target's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outrider.train.methods.small.model import SmallModule


@torch.no_grad()
def start_from_target(
    module: SmallModule, tensors: Mapping[str, torch.Tensor], blocks: Sequence[int], head_VD: torch.Tensor
) -> None:
    """Embedding, blocks, final norm and the head's rows of the target; ``tensors`` by their Hugging Face names."""
    for name, parameter in module.named_parameters():
        parameter.copy_(head_VD if name == "lm_head.weight" else tensors[_in_target(name, blocks)])


def freeze_embedding(module: SmallModule) -> None:
    """As in a SPIRe draft, whose embedding is the target's own."""
    module.model.embed_tokens.weight.requires_grad_(False)


def _in_target(name: str, blocks: Sequence[int]) -> str:
    """What the draft's layer i calls its own is in the target's block ``blocks[i]``."""
    start, layers, rest = name.partition("model.layers.")
    if not layers:
        return name
    layer, _, part = rest.partition(".")
    return f"{start}{layers}{blocks[int(layer)]}.{part}"
