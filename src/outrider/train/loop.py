"""The training loop, flat: batch, loss, step, checkpoint. What a step does follows from its number and the process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outrider.errors import ModelError, ProcessLostError
from outrider.train.checkpoint import load_checkpoint, save_checkpoint
from outrider.train.config import TrainConfig
from outrider.train.team import ALONE, Team, moved

if TYPE_CHECKING:
    from outrider.train.methods.base import Batch, Sampler, Task


@dataclass(frozen=True)
class Progress:
    """One step, for whoever watches."""

    step: int
    loss: float
    """Mean over positions."""
    alpha: float
    """Mean acceptance probability of a draft token at temperature 1, teacher-forced."""
    hits: float
    """Share of positions whose likeliest token is the target's."""
    learning_rate: float
    tokens: int
    """Positions learnt, in all processes."""
    seconds: float


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


def train(
    config: TrainConfig,
    task: Task[Batch],
    sampler: Sampler[Batch],
    folder: Path,
    watch: Callable[[Progress], None],
    *,
    team: Team = ALONE,
    checkpoint_seconds: float = 120.0,
) -> None:
    """Train to ``config.steps``, from the folder's checkpoint if it has one.

    Every process of ``team`` takes batches of its own; a step is one of the mean over the positions of all. Only the
    main process watches and writes. Stopped by an exception, KeyboardInterrupt among them, the last checkpoint is
    whole. Raises ModelError when the loss is no longer a number; the checkpoint before it stays.
    """
    task.module.to(team.device)
    optimizer = torch.optim.AdamW(
        task.module.parameters(), betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
    )
    step = _resume(folder, task.module, optimizer, config, team)
    saved = time.monotonic()
    try:
        while step < config.steps:
            progress = _step(config, task, sampler, optimizer, step, team)
            step = progress.step
            if team.rank == 0:
                watch(progress)
                if time.monotonic() - saved > checkpoint_seconds:
                    save_checkpoint(folder, _state(step, task, optimizer, config, team))
                    saved = time.monotonic()
    except (KeyboardInterrupt, ProcessLostError):
        # Between two steps or within one: gradients of a step cut short are thrown away with it.
        if team.rank == 0:
            save_checkpoint(folder, _state(step, task, optimizer, config, team))
        raise
    team.from_main(lambda: save_checkpoint(folder, _state(step, task, optimizer, config, team)))


def _step(
    config: TrainConfig,
    task: Task[Batch],
    sampler: Sampler[Batch],
    optimizer: torch.optim.Optimizer,
    step: int,
    team: Team,
) -> Progress:
    began, rate = time.perf_counter(), learning_rate(config, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    numbers = ((step * config.accumulate + turn) * team.size + team.rank for turn in range(config.accumulate))
    own = _backward(task, (sampler.batch(*divmod(each, sampler.steps_per_epoch)) for each in numbers), team)
    loss, accepted, hits, rows = team.sums(own)
    if not math.isfinite(loss):
        raise ModelError(f"step {step}: the loss is {loss}; the last checkpoint is kept")
    team.average(task.module, own[-1] / rows)
    torch.nn.utils.clip_grad_norm_(task.module.parameters(), config.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    figures = (loss / rows, accepted / rows, hits / rows)
    return Progress(step + 1, *figures, rate, int(rows), time.perf_counter() - began)


def _backward(task: Task[Batch], batches: Iterable[Batch], team: Team) -> tuple[float, float, float, int]:
    """Leave gradients of the mean over the batches' positions; sums of loss, alpha and hits, and the positions."""
    loss, accepted, hits, seen = 0.0, 0.0, 0.0, 0
    for batch in batches:
        losses, rows = task.losses(moved(batch, team.device))
        for parameter in task.module.parameters():
            if parameter.grad is not None:
                parameter.grad *= seen / (seen + rows)
        seen += rows
        mean = losses.loss / seen
        mean.backward()  # type: ignore[no-untyped-call]
        loss += mean.item() * seen
        accepted, hits = accepted + losses.accepted.item(), hits + losses.hits.item()
    return loss, accepted, hits, seen


def _state(
    step: int, task: Task[Any], optimizer: torch.optim.Optimizer, config: TrainConfig, team: Team
) -> dict[str, Any]:
    return {
        "step": step,
        "processes": team.size,
        "module": task.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "config": config.to_dict(),
        **task.card(),
    }


def _resume(
    folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, config: TrainConfig, team: Team
) -> int:
    # Machines need not share the folder, and all go on from the same step.
    state = team.from_main(lambda: load_checkpoint(folder))
    if state is None:
        return 0
    # More steps may be asked for than before; everything else makes another run.
    # A setting that is younger than the checkpoint had its default then.
    before = TrainConfig().to_dict() | state["config"]
    differs = [key for key, value in config.to_dict().items() if key != "steps" and before[key] != value]
    if state.get("processes", 1) != team.size:
        differs.append("number of processes")
    if differs:
        raise ModelError(f"{folder} holds a run with another {', '.join(differs)}; use the same or another folder")
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
