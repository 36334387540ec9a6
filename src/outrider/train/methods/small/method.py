"""The small draft among the methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider.models.resolve import resolve
from outrider.models.tokenizer import load_tokenizer
from outrider.train.methods.small.config import SmallConfig
from outrider.train.methods.small.export import save_small
from outrider.train.methods.small.train import SmallTraining
from outrider.train.texts import TextSampler

if TYPE_CHECKING:
    from outrider.models.decoder import DecoderRunner
    from outrider.train.config import TrainConfig
    from outrider.train.methods.base import Material


class SmallMethod:
    """A language model of its own. It reads the captures of the SPIRe draft that has the same ``reads``."""

    unused: tuple[str, ...] = ("feedback", "sees_itself", "pruned_init", "k")

    def check(self, config: TrainConfig, runner: DecoderRunner) -> None:
        """Nothing to refuse: it shares the target's vocabulary, and no shape."""

    def begin(self, config: TrainConfig, material: Material) -> tuple[SmallTraining, TextSampler]:
        """As many positions a step as a SPIRe draft learns of ``batch`` segments."""
        task = SmallTraining(config, self.shape(config, material), material.tensors, material.draft_ids, material.about)
        return task, self.batches(config, material)

    def shape(self, config: TrainConfig, material: Material) -> SmallConfig:  # noqa: ARG002
        """An eighth of the target's blocks."""
        return SmallConfig.of_target(
            material.runner.config,
            draft_vocab_size=len(material.draft_ids),
            max_positions=material.runner.max_model_len,
        )

    def batches(self, config: TrainConfig, material: Material) -> TextSampler:
        """Whole texts of the material."""
        store = material.store
        return TextSampler(
            store.rows(),
            store.documents,
            material.documents,
            positions=config.batch * config.segment,
            seed=config.seed,
        )

    def export(self, state: Mapping[str, Any], run: Path, folder: Path, *, int8: bool) -> str:
        """A Hugging Face folder, with the tokenizer of the target that the run names."""
        if int8:
            method = state["config"]["method"]
            raise ConfigError(
                f"{run} holds a draft of method {method!r}, which is stored in float32; leave --int8 out, and load it "
                "with quantization='int8'"
            )
        draft = state["draft"]
        small = SmallConfig.from_dict(draft["config"])
        target = state["config"]["target"]
        tokenizer = load_tokenizer(resolve(target))
        provenance = {**draft["provenance"], "steps": state["step"], "training": state["config"]}
        save_small(small, state["module"], state["draft_ids"], tokenizer, provenance, folder)
        return f"{small.num_layers} layers of width {small.hidden_size}, {small.draft_vocab_size} tokens learnt"
