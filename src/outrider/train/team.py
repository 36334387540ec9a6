"""Who trains: this process alone, or the processes that a launcher started, which learn as one."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch

from outrider.errors import ConfigError, OutriderError, ProcessLostError

Value = TypeVar("Value")
Batch = TypeVar("Batch", bound=Any)

_CPU = torch.device("cpu")
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
"""What `accelerate launch` puts into the environment whatever its options, also for one process on another device."""
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
        return self._sum(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def average(self, module: torch.nn.Module, weight: float) -> None:
        # Not DistributedDataParallel: its mean counts processes, not positions, and it hooks one forward call.
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        means = self._sum(torch.cat([gradient.flatten() for gradient in gradients]).mul_(weight))
        for gradient, mean in zip(gradients, torch.split(means, [each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def from_main(self, work: Callable[[], Value]) -> Value:
        from accelerate.utils import broadcast_object_list

        box: list[tuple[Value] | None] = [None]
        try:
            if self.rank == 0:
                box[0] = (work(),)
        finally:
            # Also when it failed: the others learn of it here, not from a connection that breaks.
            with _others_alive():
                broadcast_object_list(box)
        if box[0] is None:
            raise OutriderError("the main process stopped, and this one with it; its own message says why")
        return box[0][0]

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        from accelerate.utils import reduce

        with _others_alive():
            summed: torch.Tensor = reduce(values, "sum")
        return summed


@contextmanager
def _others_alive() -> Iterator[None]:
    """A connection that breaks is a process that ended. Raises ProcessLostError."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLostError(
            f"another process of this run has ended ({str(error).splitlines()[-1][:80]}); start all of them again"
        ) from None


def launched_team(tell: Callable[[str], None]) -> Team:
    """The processes of `accelerate launch` or torchrun, or this one alone; ``tell`` what is waited for.

    Raises ConfigError.
    """
    size = _launched_size()
    if size == 1 and _ACCELERATE not in os.environ:
        return ALONE
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError:
        raise ConfigError(
            "started by a launcher of several processes, which takes accelerate: pip install 'outrider[train]', or "
            "start `outrider train run` by itself"
        ) from None
    if size > 1:
        tell(f"waiting for {size} processes at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
    # Without `cpu`, accelerate takes several processes on processors for so many single ones.
    cpu = not torch.accelerator.is_available()
    try:
        with _signals_as_usual():
            together = InitProcessGroupKwargs(timeout=_PATIENCE)
            found = Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=[together])
    except (ValueError, RuntimeError) as error:
        cause = str(error).splitlines()[0][:120]
        raise ConfigError(f"the processes could not meet ({cause}); start all of them again") from None
    if found.num_processes < size:
        raise ConfigError(
            f"{size} processes were launched, but accelerate sees {found.num_processes}; set ACCELERATE_USE_CPU=1 "
            "to train on processors"
        )
    if found.num_processes == 1:
        return Alone(found.device)
    if found.device.type == "cpu":
        atexit.register(_part)
    return Together(found.device, found.process_index, found.num_processes)


def _part() -> None:
    # Gloo's threads let go of their last tensors a little later; one that does as Python ends aborts the process.
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _launched_size() -> int:
    """WORLD_SIZE, if all else that several processes need is there too. Batch systems set some of it for any job."""
    numbers = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT")}
    size = numbers["WORLD_SIZE"] or "1"
    if size == "1":
        return 1
    wrong = next((f"{name}={value!r}" for name, value in numbers.items() if not value.isdecimal()), None)
    if wrong is None and not os.environ.get("MASTER_ADDR"):
        wrong = "MASTER_ADDR=''"
    if wrong is not None:
        raise ConfigError(
            f"WORLD_SIZE={size!r} says that several processes were started, but {wrong}; start them with torchrun or "
            "`accelerate launch`, or unset WORLD_SIZE"
        )
    return int(size)


@contextmanager
def _signals_as_usual() -> Iterator[None]:
    """An interrupt ends the process at once: Python's own handlers do not run while torch waits for a connection."""
    before = {which: signal.signal(which, signal.SIG_DFL) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The same dataclass with its tensors on ``device``."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)}
    return replace(batch, **tensors)
