"""`outrider plan --probe`: survival as the engine measures it, and what it cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.cli import plan_probe
from outrider.cli.main import run
from outrider.sampling.params import SamplingParams
from outrider.types import RequestMetrics
from tests.unit.test_plan_calibrate_cli import folder
from tests.unit.test_plan_cli import LARGE, SMALL, refused


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Scripted answers instead of models; what was loaded, and what was speculated with."""
    seen: list[Any] = []

    class Loaded:
        def __init__(self, model: str, **settings: Any) -> None:
            seen.append((model, settings))
            self.loaded = SimpleNamespace(tokenizer=SimpleNamespace(chat=lambda messages: [1, 2, 3]))

        def with_speculation(self, config: dict[str, Any]) -> Loaded:
            seen.append(config)
            return self

        def generate(self, prompts: list[list[int]], params: SamplingParams) -> list[Any]:
            assert (params.temperature, params.ignore_eos) == (0.0, True)
            # Two prompts: one always drafted and kept all but one token of 40, one with no draft at all.
            told = [RequestMetrics(rounds=10, drafted=50, emitted=48, survival=(1.0, 0.9, 0.7, 0.6, 0.6))]
            told.append(RequestMetrics(rounds=30, emitted=30))
            return [SimpleNamespace(metrics=each) for each in told]

    monkeypatch.setattr("outrider.llm.LLM", Loaded)
    return seen


def test_what_was_probed_is_what_is_planned_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, engine: list[Any]
) -> None:
    target, draft = folder(tmp_path, "big", 4), folder(tmp_path, "small", 1)
    both = ("--draft", draft, "--method", "ngram", "--method", "draft_model")
    assert run(["plan", "--target", target, *both, "--hardware", "L4", "--probe", "--k-max", "5", "--json"]) == 0
    lookup, model = json.loads(capsys.readouterr().out)["drafters"]
    assert lookup["acceptance"]["survival"] == model["acceptance"]["survival"]
    assert lookup["acceptance"]["survival"] == pytest.approx([0.25, 0.225, 0.175, 0.15, 0.15])
    assert lookup["acceptance"]["drafting"] == 0.25
    assert lookup["acceptance"]["source"] == "probed, 2 prompts, 40 rounds, greedy"
    # Tau is 78 / 40 over both prompts; of one of them alone 1 or 4.8.
    assert lookup["speedup"]["low"] == pytest.approx(lookup["speedup"]["limit"] * 0.75 * 40 / 78)
    assert lookup["speedup"]["high"] == pytest.approx(lookup["speedup"]["limit"] * 4.8 * 40 / 78)
    (loaded, settings), *configs = engine
    assert (loaded, settings["dtype"], settings["speculative_config"]) == (target, "bfloat16", None)
    assert configs == [
        {"method": "ngram", "num_speculative_tokens": 5},
        {"method": "draft_model", "model": draft, "num_speculative_tokens": 5},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "TARGET is known by its sizes alone, and --probe needs weights"),
        (("--draft", SMALL), "DRAFT is known by its sizes alone, and --probe needs weights"),
        (("--method", "spire"), "not spire from sizes: give an --acceptance"),
        (("--method", "magicdec"), "not magicdec from sizes: give an --acceptance"),
        (("--draft-cost", "0.1"), "not draft_model from sizes: give an --acceptance"),
        (("--acceptance", "0.5"), "--acceptance 0.8, or --acceptance-from"),
    ],
)
def test_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], engine: list[Any], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(capsys, "--hardware", "L4", "--probe", *arguments, target=LARGE)
    assert engine == []


def test_the_workload_is_one_of_bench(capsys: pytest.CaptureFixture[str]) -> None:
    from outrider.bench.workloads import load_workload

    assert len(load_workload(plan_probe._WORKLOAD, limit=plan_probe._PROMPTS).tasks) == plan_probe._PROMPTS
