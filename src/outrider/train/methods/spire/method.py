"""The SPIRe draft among the methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.weights import SpireWeights, save
from outrider.errors import ConfigError
from outrider.train.methods.spire.train import SpireTraining
from outrider.train.segments import SegmentSampler

if TYPE_CHECKING:
    from outrider.models.decoder import DecoderRunner
    from outrider.train.config import TrainConfig
    from outrider.train.methods.base import Material


class SpireMethod:
    """Some of the target's blocks, on its own activations."""

    unused = ()

    def check(self, config: TrainConfig, runner: DecoderRunner) -> None:
        """Raises ConfigError for blocks that the target has not, ModelError for blocks that this draft cannot hold."""
        spire_config(config, runner)

    def begin(self, config: TrainConfig, material: Material) -> tuple[SpireTraining, SegmentSampler]:
        """The draft as it starts, and segments of its texts."""
        runner, store = material.runner, material.store
        task = SpireTraining(
            config,
            spire_config(config, runner),
            material.tensors,
            material.draft_ids,
            store.settings.layers,
            runner.max_model_len,
            material.about,
        )
        sampler = SegmentSampler(
            store.rows(),
            store.documents,
            store.settings,
            length=config.segment,
            batch=config.batch,
            k=config.k,
            seed=config.seed,
        )
        return task, sampler

    def export(self, state: Mapping[str, Any], run: Path, folder: Path, *, int8: bool) -> str:
        """A folder for ``speculative_config={"method": "spire", "model": folder}``."""
        module, draft = state["module"], state["draft"]
        tensors = {name.removesuffix(".weight"): tensor.float() for name, tensor in module.items()}
        weights = SpireWeights(SpireConfig.from_dict(draft["config"], str(run)), tensors, state["draft_ids"])
        provenance = {**draft["provenance"], "steps": state["step"], "training": state["config"]}
        save(weights, folder, provenance, int8=int8)
        return f"{weights.config.num_layers} layers, {weights.config.draft_vocab_size} tokens"


def spire_config(config: TrainConfig, runner: DecoderRunner) -> SpireConfig:
    """The draft that a run makes."""
    deepest = runner.config.num_layers
    if not all(0 <= block < deepest for block in config.blocks):
        raise ConfigError(f"blocks={config.blocks}: {runner.name} has blocks 0 to {deepest - 1}")
    if not all(0 <= read <= deepest for read in config.reads):
        raise ConfigError(f"reads={config.reads}: {runner.name} has states 0 to {deepest}")
    return SpireConfig.of_target(
        runner.config,
        blocks=config.blocks,
        reads=config.reads,
        draft_vocab_size=config.draft_vocab_size,
        window=config.window,
        sink=config.sink,
        feedback=config.feedback,
        sees_itself=config.sees_itself,
    )
