"""What a training method gives: a task for the loop, batches for the task, and a draft from the task's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

    from outrider.models.decoder import DecoderRunner
    from outrider.train.capture import CaptureStore
    from outrider.train.config import TrainConfig
    from outrider.train.continuations import Document
    from outrider.train.mixed_loss import Losses

Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)
Batch_contra = TypeVar("Batch_contra", contravariant=True)


class Task(Protocol[Batch_contra]):
    """A draft in training."""

    @property
    def module(self) -> torch.nn.Module: ...

    def losses(self, batch: Batch_contra) -> tuple[Losses, int]:
        """Sums over the positions of a batch that are learnt, and how many those are."""
        ...

    def card(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, so that it can become a draft by itself."""
        ...


class Sampler(Protocol[Batch_co]):
    """Batches in an order that the number of a step determines, so that a run goes on anywhere."""

    @property
    def steps_per_epoch(self) -> int: ...

    def batch(self, epoch: int, index: int) -> Batch_co:
        """Batch ``index`` of an epoch; the same every time it is asked for."""
        ...


@dataclass(frozen=True)
class Material:
    """What every method is trained on: what the target said and thought, and the target itself."""

    runner: DecoderRunner
    documents: Sequence[Document]
    store: CaptureStore
    """The documents' rows, in their order."""
    tensors: Mapping[str, torch.Tensor]
    """The target's weights by their Hugging Face names."""
    draft_ids: torch.Tensor
    """Target ids that the draft may propose, ascending."""
    about: Mapping[str, Any]
    """Provenance."""


class Method(Protocol):
    """One way to make a draft."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Settings of a run that mean nothing to it."""
        ...

    def check(self, config: TrainConfig, runner: DecoderRunner) -> None:
        """Refuse, before any work, settings that do not fit the target. Raises ConfigError or ModelError."""
        ...

    def begin(self, config: TrainConfig, material: Material) -> tuple[Task[Any], Sampler[Any]]:
        """A fresh draft and its batches."""
        ...

    def export(self, state: Mapping[str, Any], run: Path, folder: Path, *, int8: bool) -> str:
        """Write the draft of a checkpoint, and say in a few words what it is. Raises OutriderError."""
        ...
