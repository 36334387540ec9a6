"""`outrider plan --calibrate`: what is timed and kept, and that later plans use it and say so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider import hardware
from outrider.calibrate import timing
from outrider.calibrate.timing import Grid
from outrider.cli import plan_curves, plan_inputs
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.models.toy import ToyModel, ToyRunner
from outrider.plan.architecture import Architecture, Storage
from outrider.plan.memory import Model
from tests.unit.test_plan_cli import LARGE, SIZES

GRID = Grid(batches=(1, 2), contexts=(16, 64), rows=(1, 2, 4))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Toy models instead of weights, a small grid and a machine of known figures; what was asked to be loaded."""
    asked: list[dict[str, Any]] = []

    def load(ref: str, **settings: Any) -> Any:
        asked.append({"ref": ref, **settings})
        runner = ToyRunner(ToyModel(11), settings["max_num_seqs"], settings["longest"], name=ref)
        return SimpleNamespace(runner=runner)

    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("outrider.models.load.load_runner", load)
    monkeypatch.setattr(timing, "Grid", lambda: GRID)
    monkeypatch.setattr(hardware, "read_bandwidth", lambda: 2e10)
    monkeypatch.setattr(hardware, "physical_memory", lambda: 10**11)
    monkeypatch.setattr(plan_inputs, "_product_flops", lambda dtype: 1e12)
    return asked


def folder(tmp_path: Path, name: str, layers: int) -> str:
    path = tmp_path / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama", "num_hidden_layers": layers}))
    return str(path)


def curves_in(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*"))


def test_timing_alone_prints_and_keeps_the_curve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loaded: list[dict[str, Any]]
) -> None:
    target = folder(tmp_path, "big", 4)
    assert run(["plan", "--calibrate", "--target", target]) == 0
    out, err = capsys.readouterr()
    assert loaded == [
        {"ref": target, "dtype": "bfloat16", "quantization": None, "max_num_seqs": 2, "longest": GRID.length}
    ]
    assert out.startswith(f"{target} in bfloat16: milliseconds of a pass")
    assert len(out.splitlines()) == 2 + 4
    assert f"outrider: {target} in bfloat16: timed, kept in " in err
    assert len(curves_in(tmp_path)) == 2
    assert run(["plan", "--calibrate", "--target", target, "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["curves"]
    assert (only["model"], only["dtype"], only["curve"]["rows"]) == (target, "bfloat16", [1, 2, 4])


def test_later_plans_use_what_was_timed_and_say_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loaded: list[dict[str, Any]]
) -> None:
    target, draft = folder(tmp_path, "big", 4), folder(tmp_path, "small", 1)
    asked = ["plan", "--target", target, "--draft", draft, "--context", "64", "--json"]
    assert run([*asked, "--calibrate", "--acceptance", "0.6"]) == 0
    first = capsys.readouterr()
    assert [each["ref"] for each in loaded] == [target, draft]
    assert run([*asked, "--acceptance", "0.6"]) == 0
    later = capsys.readouterr()
    assert json.loads(later.out) == json.loads(first.out)
    assert len(loaded) == 2
    document = json.loads(later.out)
    assert document["measured"]["rows"] == [1, 2, 4]
    assert document["drafters"][0]["cost"] == "measured"
    assert later.err.count("passes as --calibrate timed them on this machine") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hardware", "L4"), ""),
        (("--bandwidth", "100"), "measuring this machine"),
        (("--dtype", "float32"), "measuring this machine"),
        (("--quantization", "int8"), "measuring this machine"),
        (("--context", "65"), "modelled, since it was timed up to batch 2 and 64 tokens of context"),
        (("--batch", "3"), "modelled, since it was timed up to batch 2 and 64 tokens of context"),
    ],
)
def test_other_hardware_numbers_and_loads_are_modelled(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    loaded: list[dict[str, Any]],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    target = folder(tmp_path, "big", 4)
    assert run(["plan", "--target", target, "--calibrate"]) == 0
    capsys.readouterr()
    assert run(["plan", "--target", target, "--acceptance", "0.6", "--context", "64", "--json", *arguments]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["measured"] is None
    assert said in err
    assert "timed them" not in err


def test_spire_drafts_are_not_timed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loaded: list[dict[str, Any]]
) -> None:
    target, draft = folder(tmp_path, "big", 4), folder(tmp_path, "small", 1)
    asked = ["plan", "--target", target, "--draft", draft, "--method", "spire", "--context", "64", "--json"]
    assert run([*asked, "--calibrate", "--acceptance", "0.6"]) == 0
    assert [each["ref"] for each in loaded] == [target]
    assert json.loads(capsys.readouterr().out)["drafters"][0]["cost"] == "target measured, draft modelled"


def test_an_interrupt_keeps_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loaded: list[dict[str, Any]]
) -> None:
    calls = 0
    score = ToyRunner.score

    def interrupted(self: ToyRunner, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise KeyboardInterrupt
        return score(self, *arguments)

    monkeypatch.setattr(ToyRunner, "score", interrupted)
    assert run(["plan", "--calibrate", "--target", folder(tmp_path, "big", 4)]) == 130
    assert capsys.readouterr().err == "outrider: interrupted\n"
    assert curves_in(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", LARGE), "TARGET is known by its sizes alone, and --calibrate needs weights"),
        (("--target", LARGE, "--hardware", "L4"), "--calibrate times this machine: leave out --hardware"),
        (("--target", LARGE, "--flops", "1"), "--calibrate times this machine: leave out --hardware"),
    ],
)
def test_refused(
    capsys: pytest.CaptureFixture[str], loaded: list[dict[str, Any]], arguments: tuple[str, ...], message: str
) -> None:
    assert run(["plan", "--calibrate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert loaded == []


def test_what_takes_minutes_comes_after_every_refusal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loaded: list[dict[str, Any]]
) -> None:
    target = folder(tmp_path, "big", 4)
    for arguments in (
        ("--probe", "--method", "magicdec"),
        ("--acceptance-from", "nowhere.json"),
        ("--acceptance", "0.5", "--context", "90000000"),
        ("--acceptance", "0.5", "--html", str(tmp_path / "no" / "p.html")),
    ):
        assert run(["plan", "--calibrate", "--target", target, *arguments]) == 2
    assert loaded == []


def test_only_batches_that_fit_into_memory_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    # 160 bytes of cache a token, in 2048 tokens each.
    model = Model("m", "m", Architecture(2, 20, 2, 2, 10, 40, vocab=100, tied=True), Storage())
    memory = model.weight_bytes + 5 * 160 * Grid().length
    monkeypatch.setattr(hardware, "physical_memory", lambda: int(memory / 0.9) + 1)
    assert plan_curves._grid([model]).batches == (1, 4)
    # Two models share it.
    assert plan_curves._grid([model, model]).batches == (1,)
    monkeypatch.setattr(hardware, "physical_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"m and m cannot be timed together: the largest needs 0\.3 MB"):
        plan_curves._grid([model, model])
