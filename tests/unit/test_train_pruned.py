"""The pruned draft: begun with all of the target's blocks it is the target; trained and exported it is a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.cli.main import run as command
from outrider.train.checkpoint import load_checkpoint
from tests.unit.tiny_llama import VOCAB, write_target

LAYERS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that bfloat16 holds, as training reads them."""
    folder = write_target(tmp_path_factory.mktemp("target"), LAYERS)
    path = folder / "model.safetensors"
    rounded = {name: tensor.bfloat16().float() for name, tensor in load_file(path).items()}
    save_file(rounded, path, {"format": "pt"})
    return folder


def run(target: Path, folder: Path, blocks: list[int], *settings: str, steps: int = 1) -> int:
    rows = [{"prompt": "say abc"}, {"question": "what is a b"}, {"text": "abc abd abe " * 4}]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"blocks={blocks}", f"reads={blocks}", f"draft_vocab_size={VOCAB}", "warmup=0", *settings]
    return command(
        [
            *("train", "run", "--method", "pruned", "--target", str(target), "--dtype", "float32"),
            *("--data", str(folder / "data.jsonl"), "--output", str(folder / "run"), "--max-model-len", "128"),
            *("--max-tokens", "24", "--steps", str(steps)),
            *(word for each in given for word in ("--set", each)),
        ]
    )


def exported(folder: Path) -> Path:
    assert command(["train", "export", str(folder / "run"), str(folder / "draft")]) == 0
    return folder / "draft"


def test_with_every_block_it_is_the_target_and_drafts_nothing_wrong(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read from the folder, as by whoever uses it: the same weights, and k + 1 tokens a round at both temperatures."""
    assert run(target, tmp_path, list(range(LAYERS)), "learning_rate=1e-12") == 0
    draft = exported(tmp_path)
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (target, draft))
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-9, msg=name)
    capsys.readouterr()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "abc"}\n')
    arguments = ["train", "evaluate", str(draft), "--target", str(target), "--dtype", "float32", "--k", "3"]
    measured = ["--prompts", str(tmp_path / "prompts.jsonl"), "--max-tokens", "9", "--max-model-len", "128", "--json"]
    assert command([*arguments, *measured]) == 0
    found = json.loads(capsys.readouterr().out)["evaluations"]
    # One token with the prompt, then 4 and 4.
    assert [each["tau"] for each in found] == [3.0, 3.0]


def test_it_learns_from_the_blocks_that_were_asked_for(target: Path, tmp_path: Path) -> None:
    """All of it but the embedding, which stays the target's."""
    assert run(target, tmp_path, [2, 0], "learning_rate=0.003", "batch=2", "segment=16", steps=20) == 0
    state = load_checkpoint(tmp_path / "run")
    assert state is not None
    theirs = load_file(target / "model.safetensors")
    for name, tensor in state["module"].items():
        block = {"0": "2", "1": "0"}
        parts = name.split(".")
        source = ".".join([*parts[:2], block[parts[2]], *parts[3:]]) if "layers" in parts else name
        moved = (tensor - theirs[source].float()).abs().max()
        assert (moved == 0) == (name == "model.embed_tokens.weight"), name
        # Twenty steps of about the learning rate each: near where it began.
        assert moved < 0.1, name


@pytest.mark.parametrize(
    ("blocks", "settings", "message"),
    [
        ([0, 3], [], "blocks=(0, 3): "),
        ([0], ["feedback=false"], "feedback=False means nothing with method='pruned'"),
    ],
)
def test_mistakes_are_one_line(
    blocks: list[int],
    settings: list[str],
    message: str,
    target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(target, tmp_path, blocks, *settings) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
