"""Who trains: this process alone, or the processes that a launcher started, which learn as one."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch

from outrider.errors import ConfigError, OutriderError

Value = TypeVar("Value")
Batch = TypeVar("Batch", bound=Any)

_CPU = torch.device("cpu")
_LAUNCHERS = ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")
"""What torchrun and `accelerate launch` put into the environment, whatever their options."""
_PATIENCE = timedelta(days=7)
"""The others wait this long for the main process, which may have hours of text to prepare."""


class Team(Protocol):
    """Processes that take the same steps, each with batches of its own."""

    @property
    def rank(self) -> int:
        """0 for the main process: it alone writes files and tells how far the run is."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes; the same in all of them."""
        ...

    def average(self, module: torch.nn.Module, weight: float) -> None:
        """Make every gradient the mean of the processes' own; ``weight`` is this one's share, and shares add to 1."""
        ...

    def from_main(self, work: Callable[[], Value]) -> Value:
        """What the main process makes of ``work``. The others wait for it, and stop if it fails (OutriderError)."""
        ...


@dataclass(frozen=True)
class Alone:
    """One process."""

    device: torch.device = _CPU
    rank: int = 0
    size: int = 1

    def sums(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def average(self, module: torch.nn.Module, weight: float) -> None:
        """Its own mean is the mean."""

    def from_main(self, work: Callable[[], Value]) -> Value:
        return work()


ALONE = Alone()


@dataclass(frozen=True)
class Together:
    """Several processes, which ``accelerate`` has introduced to one another."""

    device: torch.device
    rank: int
    size: int

    def sums(self, values: Sequence[float]) -> list[float]:
        from accelerate.utils import reduce

        sums: torch.Tensor = reduce(torch.tensor(values, dtype=torch.float64, device=self.device), "sum")
        return sums.tolist()

    def average(self, module: torch.nn.Module, weight: float) -> None:
        from accelerate.utils import reduce

        # Not DistributedDataParallel: its mean counts processes, not positions, and it hooks one forward call.
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        means = reduce(torch.cat([gradient.flatten() for gradient in gradients]).mul_(weight), "sum")
        for gradient, mean in zip(gradients, means.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def from_main(self, work: Callable[[], Value]) -> Value:
        from accelerate.utils import broadcast_object_list

        box: list[tuple[Value] | None] = [None]
        try:
            if self.rank == 0:
                box[0] = (work(),)
        finally:
            # Also when it failed: the others learn of it here, not from a connection that breaks.
            broadcast_object_list(box)
        if box[0] is None:
            raise OutriderError("the main process stopped, and this one with it; its own message says why")
        return box[0][0]


def launched_team() -> Team:
    """The processes of `accelerate launch` or torchrun, or this one alone. Raises ConfigError."""
    if not any(name in os.environ for name in _LAUNCHERS):
        return ALONE
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError:
        raise ConfigError(
            "started by a launcher of several processes, which takes accelerate: pip install 'outrider[train]', or "
            "start `outrider train run` by itself"
        ) from None
    # Without `cpu`, accelerate takes several processes on processors for so many single ones.
    cpu = not torch.accelerator.is_available()
    found = Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)])
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if found.num_processes != launched:
        raise ConfigError(
            f"{launched} processes were launched, but accelerate sees {found.num_processes}; set ACCELERATE_USE_CPU=1 "
            "to train on processors"
        )
    if launched == 1:
        return Alone(found.device)
    if found.device.type == "cpu":
        # Gloo's threads let go of their last tensors a little later; one that does as Python ends aborts the process.
        atexit.register(torch.distributed.destroy_process_group)
    return Together(found.device, found.process_index, launched)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The same dataclass with its tensors on ``device``."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)}
    return replace(batch, **tensors)
