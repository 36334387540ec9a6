"""The training loop: it learns, and whatever stops it, it goes on as if nothing had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.cli import train as cli
from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.weights import load as load_draft
from outrider.errors import ConfigError, ModelError
from outrider.train.capture import CaptureSettings, CaptureStore
from outrider.train.checkpoint import load_checkpoint, save_checkpoint
from outrider.train.config import TrainConfig
from outrider.train.export import export_draft
from outrider.train.loop import Progress, learning_rate, train
from outrider.train.methods.spire.train import SpireTraining
from outrider.train.segments import SegmentSampler
from outrider.train.smooth import Smoothed
from tests.unit.decoders import VOCAB, families, load, random_weights
from tests.unit.test_train_data import documents

LLAMA = families()["llama-tied"]
CONFIG = TrainConfig(
    blocks=(1, 3), reads=(1, 3), draft_vocab_size=VOCAB, window=5, sink=2, k=4, segment=8, batch=4, steps=12, warmup=2
)
TENSORS = dict(random_weights(LLAMA))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CaptureStore:
    store = CaptureStore(tmp_path_factory.mktemp("captured"), CaptureSettings((1, 3), 64, 5, 2))
    runner = load(LLAMA, iter(TENSORS.items()))
    store.append(runner, documents((60, 12), (50, 30), (90, 5)), lambda _: None)
    return store


def task_of(config: TrainConfig, store: CaptureStore) -> tuple[SpireTraining, SegmentSampler]:
    target = load(LLAMA, iter(TENSORS.items())).config
    names = ("blocks", "reads", "draft_vocab_size", "window", "sink", "feedback")
    own = {name: getattr(config, name) for name in names}
    task = SpireTraining(
        config, SpireConfig.of_target(target, **own), TENSORS, torch.arange(VOCAB), (1, 3), 128, {"by": "a test"}
    )
    cut = SegmentSampler(
        store.rows(), store.documents, store.settings, length=config.segment, batch=config.batch, k=config.k, seed=0
    )
    return task, cut


def run(config: TrainConfig, store: CaptureStore, folder: Path, watch: Callable[[Progress], None] | None = None) -> Any:
    task, cut = task_of(config, store)
    train(config, task, cut, folder, watch or (lambda _: None))
    state = load_checkpoint(folder)
    assert state is not None
    return state


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_it_learns(store: CaptureStore, tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(replace(CONFIG, steps=60, learning_rate=3e-3), store, tmp_path, seen.append)
    assert [each.step for each in seen] == list(range(1, 61))
    assert sum(each.loss for each in seen[-10:]) < 0.9 * sum(each.loss for each in seen[:10])
    assert sum(each.alpha for each in seen[-10:]) > 1.2 * sum(each.alpha for each in seen[:10])
    assert all(0 <= each.alpha <= 1 and 0 <= each.hits <= 1 for each in seen)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_stopped_and_gone_on_with_it_is_the_same_run(
    stop: type[BaseException], store: CaptureStore, tmp_path: Path
) -> None:
    """An interrupt saves where it stands; anything else leaves the last checkpoint, here the one of step 4."""
    whole = run(CONFIG, store, tmp_path / "whole")

    def stops(progress: Progress) -> None:
        if progress.step == 7:
            raise stop

    task, cut = task_of(CONFIG, store)
    with pytest.raises(stop):
        train(CONFIG, task, cut, tmp_path / "parts", stops, checkpoint_seconds=0.0)
    state = load_checkpoint(tmp_path / "parts")
    assert state is not None
    assert state["step"] == (7 if stop is KeyboardInterrupt else 6)
    parts = run(CONFIG, store, tmp_path / "parts")
    assert parts["step"] == 12
    assert same(parts["module"], whole["module"])


def test_more_steps_go_on_and_other_settings_do_not(store: CaptureStore, tmp_path: Path) -> None:
    run(CONFIG, store, tmp_path)
    seen: list[int] = []
    run(replace(CONFIG, steps=14), store, tmp_path, lambda progress: seen.append(progress.step))
    assert seen == [13, 14]
    for other in (replace(CONFIG, omega=1.0), replace(CONFIG, k=2, seed=1)):
        with pytest.raises(ModelError, match=r"another (omega|k, seed)"):
            run(other, store, tmp_path)


def test_a_loss_that_is_no_number_keeps_the_last_checkpoint(
    store: CaptureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(replace(CONFIG, steps=3), store, tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    task, cut = task_of(CONFIG, store)
    batch = cut.batch
    monkeypatch.setattr(cut, "batch", lambda *at: replace(batch(*at), lse_BS=batch(*at).lse_BS * float("nan")))
    with pytest.raises(ModelError, match="step 3: the loss is nan"):
        train(replace(CONFIG, steps=5), task, cut, tmp_path, lambda _: None)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_full_disk_keeps_the_last_checkpoint(
    store: CaptureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(replace(CONFIG, steps=3), store, tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(OSError, match="No space left"):
        run(replace(CONFIG, steps=4), store, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_checkpoint_that_is_none(store: CaptureStore, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"PK half of a file")
    with pytest.raises(ModelError, match="cannot be read"):
        run(CONFIG, store, tmp_path)


@pytest.mark.parametrize(
    "changes", [{"hard_targets": True}, {"omega": 1.0}, {"pruned_init": False}, {"feedback": False}]
)
def test_ablations_are_switches(changes: dict[str, Any], store: CaptureStore, tmp_path: Path) -> None:
    """Each changes what is learnt."""
    base = run(replace(CONFIG, steps=2), store, tmp_path / "base")
    other = run(replace(CONFIG, steps=2, **changes), store, tmp_path / "other")
    assert not same(base["module"], other["module"])


def test_a_checkpoint_becomes_a_draft(store: CaptureStore, tmp_path: Path) -> None:
    state = run(CONFIG, store, tmp_path / "run")
    export_draft(tmp_path / "run", tmp_path / "draft", int8=False)
    draft = load_draft(tmp_path / "draft")
    assert draft.config.blocks == CONFIG.blocks
    assert same(draft.tensors, {name.removesuffix(".weight"): t for name, t in state["module"].items()})
    assert '"by": "a test"' in (tmp_path / "draft" / "config.json").read_text()
    with pytest.raises(ModelError, match="holds no checkpoint"):
        export_draft(tmp_path / "draft", tmp_path / "other", int8=False)


def test_the_rate_warms_up_and_cools_down() -> None:
    config = TrainConfig(steps=110, warmup=10, learning_rate=1.0)
    assert [learning_rate(config, step) for step in (0, 9)] == [0.1, 1.0]
    assert learning_rate(config, 10) == pytest.approx(1.0)
    assert learning_rate(config, 60) == pytest.approx(0.55)
    assert learning_rate(config, 110) == pytest.approx(0.1)


def test_blocks_are_spread_over_the_targets_depth() -> None:
    for depth, blocks in ((30, (9, 19, 29)), (24, (7, 15, 23)), (3, (0, 1, 2)), (2, (0, 1)), (1, (0,))):
        config = TrainConfig().for_depth(depth)
        assert config.blocks == config.reads == blocks
    assert TrainConfig(blocks=(4, 5)).for_depth(30).reads == (4, 5)
    chosen = TrainConfig(blocks=(4,), reads=(7,))
    assert chosen.for_depth(30) == chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"segment": 10}, "segment=10 must be a multiple of k=4"),
        ({"reads": [1]}, "one of each"),
        ({"omega": 1.5}, "omega=1.5"),
        ({"learning_rate": float("inf")}, "learning_rate=inf"),
        ({"clip": 0}, "clip=0"),
        ({"clip": "a"}, "clip=a"),
        ({"omega": None}, "omega=None"),
        ({"learning_rate": []}, "learning_rate="),
        ({"weight_decay": -1}, "weight_decay=-1"),
        ({"warmup": {}}, "warmup="),
        ({"seed": -1}, "seed=-1"),
        ({"window": -3}, "window=-3"),
        ({"sink": 1.5}, "sink=1.5"),
        ({"blocks": 3}, "blocks=3 must be a list"),
        ({"feedback": 1}, "feedback=1 must be true or false"),
        ({"speed": 1}, "unknown setting 'speed'; known: target"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict(changes)


def test_what_a_run_tells() -> None:
    smoothed = Smoothed()
    smoothed.line(Progress(1, 2.0, 0.5, 0.5, 1e-3, 100, 1.0), 11)
    line = smoothed.line(Progress(2, 1.0, 0.2, 0.2, 1e-3, 300, 3.0), 3602)
    assert line == "step 2/3602 loss 1.250 alpha 0.275 100 tok/s lr 1.0e-03 left 2:00:00"


def test_what_cannot_be_a_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    data = tmp_path / "data.jsonl"
    mistakes: list[Callable[[], None]] = [
        lambda: cli.run(taken, [data]),
        lambda: cli.run(taken / "below", [data]),
        lambda: cli.run(tmp_path / "run", [data], text=taken),
        lambda: cli.export(tmp_path, taken),
    ]
    for give in mistakes:
        with pytest.raises(ConfigError, match="taken is a file; give another one"):
            give()
    with pytest.raises(ConfigError, match="the run's own folder"):
        cli.export(tmp_path, tmp_path)
    save_checkpoint(tmp_path, {"step": 1})
    with pytest.raises(ModelError, match="no checkpoint of a run"):
        load_checkpoint(tmp_path)
