"""Several processes learn as one; alone, and in one process of a launcher, everything is as it was.

Run as a program, this file is one of the processes: of ``processes`` below.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outrider import LLM
from outrider.cli.main import run as command
from outrider.errors import ConfigError, ModelError, OutriderError
from outrider.train.capture import CaptureSettings, CaptureStore
from outrider.train.checkpoint import load_checkpoint
from outrider.train.config import TrainConfig
from outrider.train.loop import Progress, learning_rate, train
from outrider.train.methods.spire.model import Segments
from outrider.train.mixed_loss import Losses, mixed_loss
from outrider.train.run import Text, Watcher, run
from outrider.train.team import Alone, Together, launched_team, moved
from tests.unit import test_train_loop as spire
from tests.unit.decoders import VOCAB, load
from tests.unit.test_train_data import documents
from tests.unit.tiny_llama import write_target

ROOT = Path(__file__).parents[2]
CONFIG = TrainConfig(steps=6, warmup=2, learning_rate=0.05, clip=0.5)
PROMPTS = ("the cat", "a b c", "so", "what now", "yes")


@dataclass(frozen=True)
class Points:
    """As many rows as a batch happens to have."""

    x_RD: torch.Tensor
    y_R: torch.Tensor


@dataclass
class Fit:
    """A task in float64, where the order of a sum is all that tells one way to learn from another."""

    module: torch.nn.Module

    @classmethod
    def fresh(cls) -> Fit:
        torch.manual_seed(0)
        return cls(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double())

    def losses(self, batch: Points) -> tuple[Losses, int]:
        miss_R = self.module(batch.x_RD)[:, 0] - batch.y_R
        return Losses((miss_R**2).sum(), miss_R.detach().abs().sum(), (miss_R.detach() > 0).sum()), len(miss_R)

    def card(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Draws:
    """1 to 9 rows a batch; ``joined`` of them are one."""

    joined: int = 1
    steps_per_epoch: int = 1000
    broken: int | None = None
    """Number of a batch whose first row is no number."""
    end: int | None = None
    """Number of the first batch that cannot be had."""

    def batch(self, epoch: int, index: int) -> Points:
        if self.end is not None and index >= self.end:
            raise ModelError("no more")
        parts = [self._part(index * self.joined + i) for i in range(self.joined)]
        return Points(torch.cat([each.x_RD for each in parts]), torch.cat([each.y_R for each in parts]))

    def _part(self, number: int) -> Points:
        random = torch.Generator().manual_seed(number)
        x_RD = torch.randn(1 + 5 * number % 9, 4, generator=random, dtype=torch.float64)
        if number == self.broken:
            x_RD[0] = torch.nan
        return Points(x_RD, x_RD.prod(1) + number % 3)


def quiet(_: object) -> None:
    pass


def learnt(config: TrainConfig, draws: Draws, folder: Path, watch: Callable[[Progress], None] = quiet) -> Any:
    train(config, Fit.fresh(), draws, folder, watch, checkpoint_seconds=0.0)
    return load_checkpoint(folder)


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


# --- one process --------------------------------------------------------------------------------------------


def test_alone_every_bit_is_that_of_the_plain_loop(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a real draft, with autocast: weights and figures."""
    store = filled_store(tmp_path_factory.mktemp("captured"))
    task, cut = spire.task_of(spire.CONFIG, store)
    optimizer = torch.optim.AdamW(task.module.parameters(), betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    figures = []
    for step in range(spire.CONFIG.steps):
        optimizer.param_groups[0]["lr"] = learning_rate(spire.CONFIG, step)
        losses, rows = task.losses(cut.batch(*divmod(step, cut.steps_per_epoch)))
        mean = losses.loss / rows
        optimizer.zero_grad()
        mean.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(task.module.parameters(), 1.0)
        optimizer.step()
        figures.append((mean.item(), losses.accepted.item() / rows, losses.hits.item() / rows, rows))
    seen: list[Progress] = []
    state = spire.run(spire.CONFIG, store, tmp_path, seen.append)
    assert [(each.loss, each.alpha, each.hits, each.tokens) for each in seen] == figures
    assert spire.same(state["module"], task.module.state_dict())


def filled_store(folder: Path) -> CaptureStore:
    store = CaptureStore(folder, CaptureSettings((1, 3), 64, 5, 2))
    store.append(load(spire.LLAMA, iter(spire.TENSORS.items())), documents((60, 12), (50, 30), (90, 5)), lambda _: None)
    return store


def test_it_is_alone_unless_a_launcher_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    for name in ("LOCAL_RANK", "RANK"):
        # A batch system's, for any job.
        monkeypatch.setenv(name, "0")
        assert launched_team(quiet) == Alone()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with pytest.raises(ConfigError, match=r"pip install 'outrider\[train\]'"):
        launched_team(quiet)


def test_what_a_launcher_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process on another device is alone there; several must know of each other."""
    device = torch.device("meta")
    fake = SimpleNamespace(
        Accelerator=lambda **_: SimpleNamespace(num_processes=1, process_index=0, device=device),
        InitProcessGroupKwargs=lambda timeout: None,
    )
    monkeypatch.setitem(sys.modules, "accelerate", fake)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched_team(quiet) == Alone(device)
    given = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "29500", "MASTER_ADDR": "here"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="2 processes were launched, but accelerate sees 1; set ACCELERATE_USE_CPU"):
        launched_team(quiet)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", ""), ("LOCAL_RANK", ""), ("MASTER_PORT", "x"), ("MASTER_ADDR", ""), ("WORLD_SIZE", "two")],
)
def test_a_launch_by_halves_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody waits for others, or trains alone into the folder of all."""
    given = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "29500", "MASTER_ADDR": "here"}
    for each, usual in {**given, name: value}.items():
        monkeypatch.setenv(each, usual)
    with pytest.raises(ConfigError, match=f"several processes were started, but {name}='{value}'"):
        launched_team(quiet)


def test_a_machine_that_lacks_the_text_is_told_so(tmp_path: Path) -> None:
    class Elsewhere(Alone):
        def from_main(self, work: Callable[[], Any]) -> Any:
            made = work()
            if isinstance(made, CaptureStore):
                made.folder = tmp_path / "on the main machine"
            return made

    (tmp_path / "data.jsonl").write_text('{"text": "a text to learn"}\n')
    llm = LLM(str(write_target(tmp_path / "target")), dtype="float32", speculative_config=None, max_model_len=64)
    text = Text((tmp_path / "data.jsonl",), tmp_path / "text")
    config, watcher = TrainConfig(method="small", draft_vocab_size=20), Watcher(lambda *_: None, quiet)
    with pytest.raises(ConfigError, match="is not on this machine; machines that train together share a text folder"):
        run(config, llm, text, tmp_path / "run", watcher, {}, Elsewhere())


# --- another device -----------------------------------------------------------------------------------------


def test_module_and_batches_are_on_the_teams_device(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    class Looks(Fit):
        def losses(self, batch: Points) -> tuple[Losses, int]:
            tensors = (batch.x_RD, batch.y_R, self.module(batch.x_RD), *self.module.parameters())
            assert {str(each.device) for each in tensors} == {"meta"}
            raise StopError

    with pytest.raises(StopError):
        train(CONFIG, Looks(Fit.fresh().module), Draws(), tmp_path, quiet, team=Alone(torch.device("meta")))


def test_drafts_go_where_their_module_goes(tmp_path: Path) -> None:
    """With the target's matrices, which no checkpoint holds; a tensor left behind would be refused in a product."""
    device = torch.device("meta")
    task, cut = spire.task_of(spire.CONFIG, filled_store(tmp_path))
    assert not [name for name in task.module.state_dict() if "target" in name]
    batch, module = moved(cut.batch(0, 0), device), task.module.to(device)
    segments = Segments(batch.tokens_BS, batch.positions_BS, batch.states_LBTD.float(), batch.key_positions_BT)
    embedded_BSD = module.get_buffer("target_embedding_VD")[batch.tokens_BS].float()
    logits_RV = module.head(module(embedded_BSD, segments, spire.CONFIG.k).flatten(0, 2))
    p_RV = torch.empty_like(logits_RV) @ torch.empty(VOCAB, VOCAB, device=device)
    assert module.get_buffer("target_head_VD").device == device
    losses = mixed_loss(p_RV, logits_RV, 0.5, False, left_out=5)
    losses.loss.backward()  # type: ignore[no-untyped-call]
    assert losses.loss.device == module.get_parameter("norm").grad.device == device  # type: ignore[union-attr]


# --- two processes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Both:
    """What two processes left."""

    folder: Path
    codes: tuple[int, ...]
    errors: tuple[str, ...]

    def said(self, rank: int) -> Any:
        return json.loads((self.folder / f"said.{rank}.json").read_text())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Two runs of this file, in the environment that torchrun makes."""
    folder = tmp_path_factory.mktemp("both")
    write_target(folder / "target")
    (folder / "data.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in PROMPTS))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    about = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""}
    threads = {"OMP_NUM_THREADS": "1", "OUTRIDER_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.unit.test_train_team", str(folder)],
            cwd=ROOT,
            env={**os.environ, **about, **threads, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = tuple(each.communicate(timeout=120)[1] for each in started)
    finally:
        for each in started:
            each.kill()
    return Both(folder, tuple(each.returncode for each in started), errors)


def one_process(folder: Path) -> None:
    """What one of them does."""
    team = launched_team(quiet)
    assert isinstance(team, Together)
    said: dict[str, Any] = {"rank": team.rank, "size": team.size}

    def fit(name: str, draws: Draws) -> list[Any]:
        task, seen = Fit.fresh(), list[Any]()
        try:
            train(
                replace(CONFIG, accumulate=2),
                task,
                draws,
                folder / name,
                lambda progress: seen.append((progress.step, progress.loss, progress.hits, progress.tokens)),
                team=team,
                checkpoint_seconds=0.0,
            )
        except OutriderError as error:
            seen.append(str(error))
        torch.save(task.module.state_dict(), folder / f"{name}.{team.rank}.pt")
        return seen

    said["whole"] = fit("whole", Draws())
    said["parts"] = fit("parts", Draws(end=16)) + fit("parts", Draws())
    # The last batch of the second process's fifth step.
    said["broken"] = fit("broken", Draws(broken=19))
    try:
        team.from_main((folder / "missing" / "file").read_text)
    except (OSError, OutriderError) as error:
        said["failure"] = type(error).__name__
    places = ("--data", folder / "data.jsonl", "--output", folder / "run", "--target", folder / "target")
    sizes = ("--max-model-len", 64, "--max-tokens", 8, "--set", "draft_vocab_size=20", "--set", "batch=1")
    arguments = ["train", "run", "--method", "small", "--dtype", "float32", "--steps", "50", *places, *sizes]
    said["command"] = command([str(each) for each in arguments])
    (folder / f"said.{team.rank}.json").write_text(json.dumps(said))
    train(CONFIG, Fit.fresh(), Draws(end=None if team.rank == 0 else 5), folder / "dead", quiet, team=team)


def test_two_processes_learn_what_one_does_of_all_their_batches(both: Both, tmp_path: Path) -> None:
    """Two batches each, of different sizes; every figure is that of all four."""
    seen: list[Progress] = []
    alone = learnt(CONFIG, Draws(joined=4), tmp_path, seen.append)
    assert_same(load_checkpoint(both.folder / "whole")["module"], alone["module"])  # type: ignore[index]
    for rank in range(2):
        assert_same(torch.load(both.folder / f"whole.{rank}.pt"), alone["module"])
    figures = [(each.step, each.loss, each.hits, each.tokens) for each in seen]
    for found, expected in zip(both.said(0)["whole"], figures, strict=True):
        assert tuple(found) == pytest.approx(expected, rel=1e-12)
    assert both.said(1)["whole"] == []


def test_the_sizes_of_their_batches_matter() -> None:
    """Or the mean over processes would do as well as that over positions."""
    rows = [[len(Draws()._part(4 * step + place).y_R) for place in range(4)] for step in range(CONFIG.steps)]
    assert any(a + c != b + d for a, b, c, d in rows)


def test_both_go_on_from_the_checkpoint_of_the_main_process(both: Both) -> None:
    whole = load_checkpoint(both.folder / "whole")
    parts = load_checkpoint(both.folder / "parts")
    assert whole is not None
    assert parts is not None
    assert (parts["step"], parts["processes"]) == (6, 2)
    assert_same(parts["module"], whole["module"])
    assert_same(torch.load(both.folder / "parts.1.pt"), whole["module"])
    *first, stopped, fifth, sixth = both.said(0)["parts"]
    assert ([step for step, *_ in first], stopped, fifth[0], sixth[0]) == ([1, 2, 3, 4], "no more", 5, 6)
    with pytest.raises(ModelError, match="another number of processes"):
        learnt(replace(CONFIG, accumulate=2), Draws(), both.folder / "parts")


def test_what_is_no_number_in_one_stops_both(both: Both) -> None:
    for rank in range(2):
        assert "step 4: the loss is nan; the last checkpoint is kept" in both.said(rank)["broken"][-1]
    kept = load_checkpoint(both.folder / "broken")
    assert kept is not None
    assert all(tensor.isfinite().all() for tensor in kept["module"].values())


def test_a_failure_of_the_main_process_reaches_the_other(both: Both) -> None:
    assert [both.said(rank)["failure"] for rank in range(2)] == ["FileNotFoundError", "OutriderError"]


def test_the_command_prepares_text_once_and_trains_in_both(both: Both) -> None:
    assert [both.said(rank)["command"] for rank in range(2)] == [0, 0]
    text = both.folder / "run" / "text"
    assert len((text / "continuations.jsonl").read_text().splitlines()) == len(PROMPTS)
    (index,) = text.glob("captured-*/documents.jsonl")
    assert len(index.read_text().splitlines()) == len(PROMPTS)
    state = load_checkpoint(both.folder / "run")
    assert state is not None
    assert (state["step"], state["processes"], state["config"]["method"]) == (50, 2, "small")
    assert "step 50/50" in both.errors[0]
    assert "trained 50 steps" in both.errors[0]
    assert "50" not in both.errors[1], "the main process alone tells"


def test_where_one_dies_the_other_does_not_wait(both: Both) -> None:
    """It says so in a line, and keeps what was learnt until then."""
    assert all(code == 1 for code in both.codes)
    assert "ProcessLostError: another process of this run has ended" in both.errors[0].strip().splitlines()[-1]
    state = load_checkpoint(both.folder / "dead")
    assert state is not None
    assert 0 < state["step"] < CONFIG.steps


if __name__ == "__main__":
    one_process(Path(sys.argv[1]))
