"""Trained SPIRe drafts in a plan: their sizes, what they go with, and the configuration that runs them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from outrider.config import parse_speculative_config
from outrider.draft.shipped import DRAFTS
from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.weights import save, shapes
from tests.unit.spires import module_of, weights_of
from tests.unit.test_plan_cli import SIZES, planned, printed, refused

SPIRE = ("--method", "spire", "--acceptance", "0.9")


def of_target(sizes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The configuration of a draft of two blocks, ten tokens and a window of five for a target of such sizes."""
    own = SpireConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        norm_eps=1e-5,
        rope_theta=1e4,
        blocks=(0, 1),
        reads=(1, sizes["num_hidden_layers"]),
        draft_vocab_size=10,
        window=5,
        sink=1,
    )
    return {**own.to_dict(), **changes}


def write_draft(folder: Path, config: dict[str, Any]) -> str:
    """As `outrider train export` writes it, of random weights."""
    own = SpireConfig.from_dict(config, "a test")
    save(weights_of(module_of(own)), folder, {"by": "a test"}, int8=True)
    return str(folder)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_draft(tmp_path_factory.mktemp("spire"), of_target(SIZES))


def test_sizes_are_those_of_its_tensors(capsys: pytest.CaptureFixture[str], draft: str) -> None:
    memory = planned(capsys, *SPIRE, "--draft", draft, "--context", "1000", "--batch", "2")["drafters"][0]["memory"]
    config = SpireConfig.from_dict(of_target(SIZES), "a test")
    counted = sum(prod(shape) for name, shape in shapes(config).items() if name != "mix")
    # A byte each: the engine holds them in int8.
    assert memory["draft_weights"] == counted
    alone = planned(capsys, "--acceptance", "0.9", "--context", "1000", "--batch", "2")["plain"]["memory"]
    # Keys and values of two layers, two heads of 8: the sink and the window's positions, however long the text.
    assert memory["per_request"] - alone["per_request"] == (1 + 5) * 2 * 2 * 2 * 8 * 2


def test_without_a_window_it_sees_the_whole_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "dense", of_target(SIZES, window=None))
    long, short = (
        planned(capsys, *SPIRE, "--draft", draft, "--context", context)["drafters"][0]["memory"]["per_request"]
        for context in ("2000", "1000")
    )
    target = planned(capsys, *SPIRE)["target"]["kv_bytes_per_token"]
    assert long - short == 1000 * (target + 2 * 2 * 2 * 8 * 2)


def test_the_plan_says_how_to_run_it(capsys: pytest.CaptureFixture[str], draft: str) -> None:
    document = planned(capsys, *SPIRE, "--draft", draft)
    (found,) = document["drafters"]
    assert (found["drafter"], found["cost"]) == (f"spire {draft}", "modelled")
    assert found["speculative_config"] == {"method": "spire", "model": draft, "num_speculative_tokens": found["k"]}
    assert parse_speculative_config(found["speculative_config"]) is not None
    assert found["vllm"] is None
    assert document["recommended"]["speculative_config"] == found["speculative_config"]
    out, err = printed(capsys, "--hardware", "L4", *SPIRE, "--draft", draft)
    assert 'outrider: --speculative-config \'{"method": "spire"' in out
    # It reads all of the target's tokens, and proposes few.
    assert err == ""
    fp8 = planned(capsys, *SPIRE, "--draft", draft, "--quantization", "fp8")
    assert fp8["drafters"][0]["speculative_config"] is None
    never = planned(capsys, "--method", "spire", "--acceptance", "0", "--draft", draft)
    assert never["drafters"][0]["speculative_config"] is None


def test_a_draft_is_not_taken_unasked_where_nothing_is_probed(capsys: pytest.CaptureFixture[str]) -> None:
    shipped = {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30}
    target = json.dumps({**SIZES, **shipped, "num_attention_heads": 8})
    assert planned(capsys, *SPIRE, target=target)["drafters"][0]["drafter"] == "spire of 7 layers"


def test_every_shipped_draft_can_be_planned_with(capsys: pytest.CaptureFixture[str]) -> None:
    found = sorted(card.parent for card in DRAFTS.glob("*/config.json"))
    assert found
    for folder in found:
        c = json.loads((folder / "config.json").read_text())
        made_for = {
            "vocab_size": c["vocab_size"],
            "hidden_size": c["hidden_size"],
            "num_hidden_layers": max(c["reads"]),
        }
        target = json.dumps({**SIZES, **made_for})
        assert planned(capsys, *SPIRE, "--draft", str(folder), target=target)["drafters"][0]["k"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 1000}, "(vocabulary 1000, width 2048, state 16; TARGET has 128256, 2048, 16 layers)"),
        ({"hidden_size": 1024}, "(vocabulary 128256, width 1024, state 16;"),
        ({"reads": (1, 17)}, "(vocabulary 128256, width 2048, state 17;"),
    ],
)
def test_a_draft_of_another_target_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**of_target(SIZES), **changes}))
    assert message in refused(capsys, "--hardware", "L4", *SPIRE, "--draft", str(tmp_path))


def test_it_neither_decodes_alone_nor_is_a_target(
    capsys: pytest.CaptureFixture[str], draft: str, tmp_path: Path
) -> None:
    accepted = ("--hardware", "L4", "--acceptance", "0.9")
    message = refused(capsys, *accepted, "--draft", draft)
    assert message == f"--draft {draft} is a SPIRe draft: give --method spire for it, not draft_model"
    message = refused(capsys, *accepted, target=draft)
    assert message == f"--target {draft} is a SPIRe draft: give it as --draft, with its target as --target"
    (tmp_path / "config.json").write_text(json.dumps({"format": "spire", "window": 3}))
    message = refused(capsys, *accepted, "--method", "spire", "--draft", str(tmp_path))
    assert "not the configuration of a SPIRe draft" in message
