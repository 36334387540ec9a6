"""The pruned draft among the methods: a small one of the target's width, begun with the target's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from outrider.train.methods.small.method import SmallMethod
from outrider.train.methods.spire.method import spire_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outrider.models.decoder import DecoderRunner
    from outrider.train.config import TrainConfig
    from outrider.train.methods.base import Material
    from outrider.train.methods.small.config import SmallConfig
    from outrider.train.methods.small.model import SmallModule
    from outrider.train.methods.small.train import SmallTraining
    from outrider.train.texts import TextSampler

_LAYERS = "model.layers."


class PrunedMethod(SmallMethod):
    """A SPIRe draft's blocks and nothing else of it: no target activations, no feedback memory, no window.

    What is left is a plain Llama model, so its batches and its Hugging Face folder are the small draft's.
    """

    # Window and sink say which captures are read, as for a small draft.
    unused = ("feedback", "sees_itself", "k")

    def check(self, config: TrainConfig, runner: DecoderRunner) -> None:
        """Raises ConfigError for blocks that the target has not, ModelError for those that are no plain Llama's."""
        spire_config(config, runner)

    def begin(self, config: TrainConfig, material: Material) -> tuple[SmallTraining, TextSampler]:
        """From the target's weights, unless they are to be random."""
        task, batches = super().begin(config, material)
        if config.pruned_init:
            start_from_target(task.module, material.tensors, config.blocks)
        return task, batches

    def shape(self, config: TrainConfig, material: Material) -> SmallConfig:
        """The target's widths, and one layer for every block."""
        target = material.runner.config
        return replace(
            super().shape(config, material),
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_layers=len(config.blocks),
            head_dim=target.head_dim,
        )


@torch.no_grad()
def start_from_target(module: SmallModule, tensors: Mapping[str, torch.Tensor], blocks: Sequence[int]) -> None:
    """Embedding, blocks, final norm and the head's rows of the target; ``tensors`` by their Hugging Face names.

    The embedding stays as it is, as in a SPIRe draft, whose embedding is the target's own.
    """
    head_VD = module.get_buffer("target_head_VD")
    for name, parameter in module.named_parameters():
        parameter.copy_(head_VD if name == "lm_head.weight" else tensors[_in_target(name, blocks)])
    module.model.embed_tokens.weight.requires_grad_(False)


def _in_target(name: str, blocks: Sequence[int]) -> str:
    """What the draft's layer i calls its own is in the target's block ``blocks[i]``."""
    if not name.startswith(_LAYERS):
        return name
    layer, part = name.removeprefix(_LAYERS).split(".", 1)
    return f"{_LAYERS}{blocks[int(layer)]}.{part}"
