"""The machine report and the pull command, without fetching anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import typer
from typer.testing import CliRunner

from outrider import hardware
from outrider.cli import doctor, pull
from outrider.errors import ModelError
from outrider.kernels import Kernels, Native
from outrider.models.registry import DEMO_MODELS


@pytest.fixture(autouse=True)
def small_and_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measure = hardware.read_bandwidth
    monkeypatch.setattr(hardware, "read_bandwidth", lambda: measure(size=1 << 20, repeats=1))
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))


def run(command: object, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(command)  # type: ignore[type-var]
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_report(tmp_path: Path) -> None:
    report = json.loads(run(doctor.doctor, "--json"))
    assert report["torch"] == torch.__version__
    assert report["threads"] == torch.get_num_threads()
    assert report["read_bandwidth"] > 0
    assert report["cache"] == str(tmp_path)
    assert report["demo_models"] == dict.fromkeys(DEMO_MODELS, False)
    assert list(tmp_path.iterdir()) == []


def test_page_has_a_line_for_every_value(tmp_path: Path) -> None:
    lines = run(doctor.doctor).splitlines()
    assert len(lines) == len(doctor.examine())
    assert any(line.startswith("cache ") and str(tmp_path) in line for line in lines)
    assert "smollm2-135m (not fetched)" in lines[-1]


def test_which_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    native: Any = Native(cast("Any", None), "avx2", 3)
    monkeypatch.setattr("outrider.kernels.load", lambda: Kernels(("avx2", "portable"), native))
    assert json.loads(run(doctor.doctor, "--json"))["kernels"] == {
        "level": "avx2",
        "threads": 3,
        "levels": ["avx2", "portable"],
        "off": None,
    }
    assert line_of("kernels") == "native, avx2, 3 threads (available: avx2, portable)"


def test_why_native_kernels_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.kernels.load", lambda: Kernels((), reason="not built"))
    assert json.loads(run(doctor.doctor, "--json"))["kernels"]["off"] == "not built"
    assert line_of("kernels") == "torch (not built; no level available)"


def test_slow_bfloat16_matters_to_torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_onednn_bf16", lambda: False)
    monkeypatch.setattr("outrider.kernels.load", lambda: Kernels((), reason="not built"))
    assert line_of("onednn bf16") == "no (bfloat16 will be slow; try --dtype float32)"
    native: Any = Native(cast("Any", None), "avx2", 3)
    monkeypatch.setattr("outrider.kernels.load", lambda: Kernels(("avx2",), native))
    assert line_of("onednn bf16") == "no"


def line_of(name: str) -> str:
    (line,) = [line for line in run(doctor.doctor).splitlines() if line.startswith(name)]
    return line.removeprefix(name).strip()


def test_bandwidth_puts_the_thread_count_back() -> None:
    before = torch.get_num_threads()
    assert hardware.read_bandwidth() > 0
    assert torch.get_num_threads() == before


def test_bandwidth_counts_bytes_over_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.5, 9.0, 0.25])
    monkeypatch.undo()
    monkeypatch.setattr(hardware, "_timed", lambda _: next(seconds))
    assert hardware.read_bandwidth(1, size=4096, repeats=3) == 4096 / 0.5


def test_pull_prints_one_path_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(name: str, *, check: bool) -> Path:
        asked.append((name, check))
        return Path("/models") / name

    monkeypatch.setattr("outrider.models.pull.pull", fetch)
    assert run(pull.pull, "smollm2-135m", "gemma3-270m", "--check") == "/models/smollm2-135m\n/models/gemma3-270m\n"
    assert asked == [("smollm2-135m", True), ("gemma3-270m", True)]


def test_pull_knows_the_names_before_it_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.models.pull.pull", lambda name, check: pytest.fail("fetched"))
    with pytest.raises(ModelError, match="'nope'"):
        pull.pull(["smollm2-135m", "nope"])
