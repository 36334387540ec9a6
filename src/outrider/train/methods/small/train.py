"""A small draft in training: the loss of a batch of whole texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from outrider.draft.target_blocks import head_rows
from outrider.train.law import target_law
from outrider.train.methods.small.config import SmallConfig
from outrider.train.methods.small.model import SmallModule
from outrider.train.mixed_loss import Losses, mixed_loss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outrider.train.config import TrainConfig
    from outrider.train.texts import TextBatch


class SmallTraining:
    """Module and targets. ``tensors``: the target's weights by their Hugging Face names, for its law alone."""

    def __init__(
        self,
        config: TrainConfig,
        small: SmallConfig,
        tensors: Mapping[str, torch.Tensor],
        draft_ids: torch.Tensor,
        provenance: Mapping[str, Any],
    ) -> None:
        self.config, self.small = config, small
        self._draft_ids, self._provenance = draft_ids, dict(provenance)
        torch.manual_seed(config.seed)
        self.module = SmallModule(small)
        # Not persistent: it goes where the module goes, and no checkpoint holds it.
        self.module.register_buffer("target_head_VD", head_rows(tensors, draft_ids), persistent=False)

    def card(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, so that it can become a draft by itself."""
        about = {"config": self.small.to_dict(), "provenance": self._provenance}
        return {"draft": about, "draft_ids": self._draft_ids}

    def losses(self, batch: TextBatch) -> tuple[Losses, int]:
        """Sums over the positions that the batch learns, and how many those are."""
        p_RV = target_law(batch.final_RD, batch.lse_R, self.module.get_buffer("target_head_VD"))
        with torch.autocast(p_RV.device.type, torch.bfloat16):
            logits_RV = self.module.lm_head(self.module(batch.tokens_BS)[batch.valid_BS])
        config = self.config
        return mixed_loss(p_RV, logits_RV, config.omega, config.hard_targets, self.small.left_out), len(p_RV)
