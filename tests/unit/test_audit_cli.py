"""`outrider audit` over a fake model: exit codes, table, JSON, and mistakes named before a model is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.audit.control import Misreporting
from outrider.audit.report import SCHEMA
from outrider.cli.main import run
from outrider.control.base import Offers
from outrider.control.goodput import GoodputController
from outrider.draft.base import Drafter
from outrider.draft.build import build_drafter
from outrider.models.base import Feed, Scores
from outrider.models.toy import ToyRunner
from outrider.types import Choice, RequestState
from tests.fake_model import FakeModels, fake_models

Captured = pytest.CaptureFixture[str]
DRAFT_MODEL = '{"model": "toy-draft", "num_speculative_tokens": 3, "rejection_sample_method": "block"}'
TOY = ["audit", "--model", "toy", "--limit", "2", "--samples", "100", "--max-tokens", "12"]


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    monkeypatch.setattr("outrider.audit.run.ROUNDS", 4)
    return fake_models(monkeypatch)


def test_a_clean_model_passes_with_a_table_and_a_paragraph(capsys: Captured) -> None:
    assert run([*TOY, "--seed", "3", "--speculative-config", DRAFT_MODEL]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split("  ")[0] for line in lines[:7]] == [
        "part",
        "greedy tokens",
        "target rows",
        "rule check",
        "random draws",
        "end to end",
        "negative control",
    ]
    assert lines[-1].startswith("No fault was found. At temperature 0 all 2 prompts")
    assert "Not shown: smaller biases" in lines[-1]
    assert err == ""


def test_the_json_document(capsys: Captured) -> None:
    assert run([*TOY, "--seed", "3", "--speculative-config", DRAFT_MODEL, "--top-p", "0.95", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["schema"] == SCHEMA
    assert (report["passed"], report["failed"]) == (True, [])
    assert report["settings"]["speculative_config"]["model"] == "toy-draft"
    assert (report["settings"]["top_p"], report["settings"]["samples"]) == (0.95, 100)
    still = {"rows": 0.0, "company": 0.0, "overall": 0.0}
    assert report["greedy"]["noise"] == {**still, "positions": report["greedy"]["tokens"]}
    assert (report["rows"]["off"], report["rows"]["passed"]) == (0, True)
    assert report["rule"]["worst"] < 1e-9
    assert set(report["draws"]["tests"]) == {"draft tokens", "acceptances", "emitted tokens"}
    assert len(report["distribution"]["tests"]) == 4
    assert 0 < report["distribution"]["visible_bias"]["first token"] <= 1
    assert report["control"]["caught"] is True
    assert report["summary"].startswith("No fault")
    assert "commit" in report["provenance"]


def test_at_temperature_0_the_control_is_told_by_the_tokens(capsys: Captured) -> None:
    assert run([*TOY, "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    assert "end to end" not in out
    assert "another token at 0" in out
    assert "odds" not in out, "nothing here is a matter of chance"


def test_lengths_that_the_engine_chooses_are_audited_as_well(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """They are where none is asked for; where one is, there is nothing more to see."""
    chose: list[int] = []

    def two(_: GoodputController, sequences: Sequence[RequestState], offers: Offers) -> list[Choice]:
        # What it really chooses depends on how long this machine takes.
        chose.append(len(sequences))
        return [Choice(2, each[0]) if each else Choice() for each in map(offers, sequences)]

    monkeypatch.setattr(GoodputController, "choose", two)
    chosen = '{"model": "toy-draft", "rejection_sample_method": "block"}'
    assert run([*TOY, "--seed", "3", "--speculative-config", chosen, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["settings"]["speculative_config"]["num_speculative_tokens"] == 5
    assert (report["chosen"]["prompts"], report["chosen"]["divergences"]) == (2, [])
    assert report["chosen"]["judged"] > 0
    assert len(chose) > 0, "the engine's own controller"
    assert "lengths of the engine's choice, too, all 2 answers" in report["summary"]
    assert run([*TOY, "--temperature", "0"]) == 0
    assert "lengths chosen" in capsys.readouterr().out
    run([*TOY, "--temperature", "0", "--speculative-config", DRAFT_MODEL])
    assert "lengths chosen" not in capsys.readouterr().out


def test_a_fault_is_exit_code_1_and_named(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def misreporting(*arguments: Any, **settings: Any) -> Drafter:
        drafter = build_drafter(*arguments, **settings)
        return drafter if drafter.name == "none" else Misreporting(drafter, 257)

    monkeypatch.setattr("outrider.llm.build_drafter", misreporting)
    assert run([*TOY, "--seed", "3", "--speculative-config", DRAFT_MODEL]) == 1
    out = capsys.readouterr().out
    assert "BIASED" in out
    assert "FAILED: random draws, end to end." in out
    assert "Not drawn with the odds they should have: draft tokens." in out


def test_a_control_that_is_not_seen_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    from outrider.draft.ngram import NgramDrafter

    def propose(self: NgramDrafter, sequences: list[RequestState], budgets: list[int]) -> list[Any]:
        from outrider.types import Draft

        return [Draft() for _ in sequences]

    monkeypatch.setattr(NgramDrafter, "propose", propose)
    assert run([*TOY, "--seed", "3"]) == 1
    out = capsys.readouterr().out
    assert "NOT SEEN" in out
    assert "FAILED: rule check, negative control." in out
    assert "a pass means little" in out


def test_prompts_from_a_file(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "aba aba aba"}\n{"prompt": "xyxy xyxy"}\n{"prompt": "qqqq"}\n')
    assert run([*TOY, "--temperature", "0", "--prompts", str(file), "--limit", "3", "--json"]) in (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["greedy"]["prompts"] == 3
    assert report["settings"]["prompts"] == str(file)


MISTAKES = {
    "nothing to audit": (["--speculative-config", "none"], "plain decoding has nothing to audit"),
    "k = 0": (["--speculative-config", '{"num_speculative_tokens": 0}'], "plain decoding has nothing to audit"),
    "too few samples": (["--samples", "5"], "--samples 5 must be 100 or more"),
    "no room for a draft": (["--max-tokens", "1"], "--max-tokens 1 must be 2 or more"),
    "no prompts": (["--limit", "0"], "--limit 0 must be 1 or more"),
    "no such file": (["--prompts", "no-such-file.jsonl"], "no-such-file.jsonl"),
    "bad sampling": (["--top-p", "2"], "top_p=2.0 must be"),
    "one endpoint": (["--endpoint", "http://localhost:1"], "--endpoint and --plain-endpoint go together"),
    "a model beside endpoints": (
        ["--endpoint", "http://localhost:1", "--plain-endpoint", "http://localhost:2", "--model", "toy"],
        "--model means nothing where servers are audited",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line_before_any_model_is_read(
    models: FakeModels, capsys: Captured, arguments: list[str], message: str
) -> None:
    assert run(["audit", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert models.runners == []


def test_a_model_that_drafts_nothing_is_refused(capsys: Captured) -> None:
    assert run(["audit", "--model", "toy-recurrent"]) == 2
    assert "toy-recurrent: its cache cannot be rolled back, so nothing is drafted" in capsys.readouterr().err


@pytest.mark.parametrize("passes", [1, 30, 200])
def test_an_interrupt_is_exit_code_130_and_prints_no_result(models: FakeModels, capsys: Captured, passes: int) -> None:
    class Interrupted(ToyRunner):
        def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
            if len(self.calls) == passes:
                raise KeyboardInterrupt
            return super().score(feeds, hidden, layers)

    models.runner_class = Interrupted
    assert run([*TOY, "--json"]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "outrider: interrupted\n")
    assert models.runners[0].open_slots == 0
