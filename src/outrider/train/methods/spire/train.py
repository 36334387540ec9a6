"""A SPIRe draft in training: its start from the target's weights, and the loss of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from outrider.draft.spire.config import SpireConfig
from outrider.draft.target_blocks import block_of_target, head_rows
from outrider.errors import ConfigError
from outrider.train.law import target_law
from outrider.train.methods.spire.model import Segments, SpireModule
from outrider.train.mixed_loss import Losses, mixed_loss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outrider.train.config import TrainConfig
    from outrider.train.segments import Batch


class SpireTraining:
    """Module and targets. ``tensors``: the target's weights by their Hugging Face names, tied or with a head."""

    def __init__(
        self,
        config: TrainConfig,
        spire: SpireConfig,
        tensors: Mapping[str, torch.Tensor],
        draft_ids: torch.Tensor,
        captured_layers: tuple[int, ...],
        max_positions: int,
        provenance: Mapping[str, Any],
    ) -> None:
        self.config, self.spire = config, spire
        self._draft_ids, self._provenance = draft_ids, dict(provenance)
        missing = [layer for layer in spire.reads if layer not in captured_layers]
        if missing:
            raise ConfigError(f"reads={spire.reads}: state {missing[0]} was not captured; captured: {captured_layers}")
        self._places = [captured_layers.index(layer) for layer in spire.reads]
        torch.manual_seed(config.seed)
        # A text's last segment goes on behind its end, where nothing is learnt.
        self.module = SpireModule(spire, max_positions + config.segment)
        # Not persistent: they go where the module goes, and no checkpoint holds them.
        embedding_VD, head_VD = tensors["model.embed_tokens.weight"].to(torch.bfloat16), head_rows(tensors, draft_ids)
        self.module.register_buffer("target_embedding_VD", embedding_VD, persistent=False)
        self.module.register_buffer("target_head_VD", head_VD, persistent=False)
        if config.pruned_init:
            start_from_target(self.module, tensors, head_VD)

    def card(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, so that it can become a draft by itself."""
        about = {"config": self.spire.to_dict(), "provenance": self._provenance}
        return {"draft": about, "draft_ids": self._draft_ids}

    def losses(self, batch: Batch) -> tuple[Losses, int]:
        """Sums over the batch's valid positions, and how many those are."""
        valid, target = batch.valid_BS, self.module.get_buffer
        segments = Segments(
            batch.tokens_BS, batch.positions_BS, batch.states_LBTD[self._places], batch.key_positions_BT
        )
        p_RV = target_law(batch.final_BSD[valid], batch.lse_BS[valid], target("target_head_VD"))
        embedded_BSD = target("target_embedding_VD")[batch.tokens_BS].float()
        with torch.autocast(embedded_BSD.device.type, torch.bfloat16):
            states_RD = self.module(embedded_BSD, segments, self.config.k)
            logits_RV = self.module.head(states_RD.flatten(1, 2)[valid])
        return mixed_loss(p_RV, logits_RV, self.config.omega, self.config.hard_targets), int(valid.sum())


@torch.no_grad()
def start_from_target(module: SpireModule, tensors: Mapping[str, torch.Tensor], head_VD: torch.Tensor) -> None:
    """Pruned initialisation: blocks, final norm and the head's rows of the target."""
    for layer, block in zip(module.layers, module.config.blocks, strict=True):
        for name, tensor in block_of_target(tensors, block).items():
            parameter = layer.get_parameter(name if name.endswith("norm") else f"{name}.weight")
            parameter.copy_(tensor)
    module.norm.copy_(tensors["model.norm.weight"].float())
    module.head.weight.copy_(head_VD)
