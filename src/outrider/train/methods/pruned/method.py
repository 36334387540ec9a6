"""The pruned draft among the methods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outrider.draft.target_blocks import head_rows
from outrider.train.methods.pruned.train import freeze_embedding, start_from_target
from outrider.train.methods.small.method import SmallMethod
from outrider.train.methods.small.train import SmallTraining
from outrider.train.methods.spire.method import spire_config

if TYPE_CHECKING:
    from outrider.models.decoder import DecoderRunner
    from outrider.train.config import TrainConfig
    from outrider.train.methods.base import Material
    from outrider.train.texts import TextSampler


class PrunedMethod(SmallMethod):
    """A SPIRe draft's blocks and nothing else of it: no target activations, no feedback memory, no window.

    What is left is a plain Llama model, so its batches and its Hugging Face folder are the small draft's.
    """

    unused = ("feedback", "sees_itself", "k", "window", "sink")

    def check(self, config: TrainConfig, runner: DecoderRunner) -> None:
        """Raises ConfigError for blocks that the target has not, ModelError for those that are no plain Llama's."""
        spire_config(config, runner)

    def begin(self, config: TrainConfig, material: Material) -> tuple[SmallTraining, TextSampler]:
        """As many positions a step as a SPIRe draft learns of ``batch`` segments."""
        target = material.runner.config
        shape = replace(
            self.shape(material),
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_layers=len(config.blocks),
            head_dim=target.head_dim,
        )
        task = SmallTraining(config, shape, material.tensors, material.draft_ids, material.about)
        if config.pruned_init:
            start_from_target(
                task.module, material.tensors, config.blocks, head_rows(material.tensors, material.draft_ids)
            )
            freeze_embedding(task.module)
        return task, self.batches(config, material)
