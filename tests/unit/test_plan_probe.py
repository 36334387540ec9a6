"""`outrider plan --probe`: survival and cost as the engine measures them, and what it cannot run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider import hardware
from outrider.bench.record import Acceptance, Answer, Arrival, Settings, Task
from outrider.bench.subject import Request
from outrider.cli import plan_inputs, plan_probe
from outrider.cli.main import run
from outrider.types import PhaseSeconds
from tests.unit.test_plan_calibrate_cli import folder
from tests.unit.test_plan_cli import LARGE, SIZES, SMALL, refused
from tests.unit.test_plan_spire import of_target, write_draft
from tests.unit.tiny_llama import write_target

TASKS = [Task(str(i), "chat", "a prompt") for i in range(3)]


def answer(steps: int, acceptance: Acceptance, phases: PhaseSeconds, error: str | None = None) -> Answer:
    """With so many steps after the one that brought the first tokens."""
    arrivals = (Arrival(1.0, 1),) * (steps + 1)
    return Answer("", (), 3, arrivals, "length", acceptance, error=error, decode_phases=phases)


# Of a prompt that is always drafted for, and one that never is.
KEPT = Acceptance(10, 50, 38, 48, accepted_at=(10, 9, 7, 6, 6))
SCRIPT: dict[str, list[Answer]] = {
    "lookup": [answer(9, KEPT, PhaseSeconds()), answer(29, Acceptance(30, emitted=30), PhaseSeconds())],
    # A step takes 1 s, 0.1 s of it in the commit; of the last prompt twice that.
    "plain": [
        *(answer(10, Acceptance(11, emitted=11), PhaseSeconds(target=9.0, commit=1.0)),) * 2,
        answer(10, Acceptance(11, emitted=11), PhaseSeconds(target=18.0, commit=2.0)),
    ],
    # Twenty tokens in five steps: 1.5 s to draft and 0.5 s to remember; 0.1, 0.9 and 0.2 of a step for one.
    "spire": [
        answer(5, Acceptance(6, 20, 5, 11, accepted_at=(4, 1)), PhaseSeconds(draft=1.5, target=9.0, commit=1.0)),
        answer(5, Acceptance(6, 20, 5, 11, accepted_at=(4, 1)), PhaseSeconds(draft=18.0, target=9.0, commit=0.5)),
        answer(5, Acceptance(6, 20, 5, 11, accepted_at=(4, 1)), PhaseSeconds(draft=8.0, target=9.0, commit=1.0)),
    ],
}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Scripted answers instead of models; what was loaded and speculated with, and who was asked in which order."""
    seen: list[Any] = []

    class Loaded:
        def __init__(self, model: str, **settings: Any) -> None:
            seen.append((model, settings))

        def with_speculation(self, config: dict[str, Any]) -> dict[str, Any]:
            seen.append(config)
            return config

    class Subject:
        def __init__(self, name: str, config: Any) -> None:
            self.name = name
            self.answers = SCRIPT.get(name) or SCRIPT["spire" if config["method"] == "spire" else "lookup"]

        def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
            assert (settings.temperature, settings.ignore_eos) == (0.0, True)
            asked = [request.task.id for request in requests]
            if not asked[0].startswith("warm-up"):
                seen.append((self.name, *asked))
            return [self.answers[int(each) if each.isdigit() else 0] for each in asked]

    monkeypatch.setattr("outrider.llm.LLM", Loaded)
    monkeypatch.setattr("outrider.bench.engine_subject.EngineSubject", Subject)
    monkeypatch.setattr(plan_probe, "_tasks", lambda _: (TASKS[:2], 77))
    return seen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of known figures, on which nothing was timed."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hardware, "read_bandwidth", lambda: 2e10)
    monkeypatch.setattr(hardware, "physical_memory", lambda: 10**11)
    monkeypatch.setattr(plan_inputs, "_product_flops", lambda dtype: 1e12)


def probed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["plan", "--probe", "--json", *arguments]) == 0
    drafters: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["drafters"]
    return drafters


def test_what_was_probed_is_what_is_planned_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, engine: list[Any]
) -> None:
    target, draft = folder(tmp_path, "big", 4), folder(tmp_path, "small", 1)
    both = ("--draft", draft, "--method", "ngram", "--method", "draft_model")
    lookup, model = probed(capsys, "--target", target, *both, "--hardware", "L4", "--k-max", "5", "--batch", "2")
    assert lookup["acceptance"]["survival"] == model["acceptance"]["survival"]
    assert lookup["acceptance"]["survival"] == pytest.approx([0.25, 0.225, 0.175, 0.15, 0.15])
    assert lookup["acceptance"]["drafting"] == 0.25
    assert lookup["acceptance"]["source"] == "probed, 2 prompts, 40 rounds, greedy"
    # Tau is 78 / 40 over both prompts; of one of them alone 1 or 4.8.
    assert lookup["speedup"]["low"] == pytest.approx(lookup["speedup"]["limit"] * 0.75 * 40 / 78)
    assert lookup["speedup"]["high"] == pytest.approx(lookup["speedup"]["limit"] * 4.8 * 40 / 78)
    (loaded, settings), first, second, *asked = engine
    assert (loaded, settings["dtype"], settings["speculative_config"]) == (target, "bfloat16", None)
    assert (settings["max_model_len"], settings["max_num_seqs"]) == (77, 2)
    assert first == {"method": "ngram", "num_speculative_tokens": 5}
    assert second == {"method": "draft_model", "model": draft, "num_speculative_tokens": 5}
    # Nothing is timed for another device, nor what needs no timing.
    assert asked == [("1 ngram", "0", "1"), ("2 draft_model", "0", "1")]


def test_a_trained_draft_is_timed_beside_plain_steps_of_the_same_prompts(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    engine: list[Any],
    machine: None,
) -> None:
    monkeypatch.setattr(plan_probe, "_tasks", lambda _: (TASKS, 77))
    target = folder(tmp_path, "big", 4)
    draft = write_draft(tmp_path / "draft", of_target({**SIZES, "num_hidden_layers": 4}))
    options = ("--target", target, "--draft", draft, "--method", "spire", "--k-max", "4")
    (found,) = probed(capsys, *options)
    assert found["acceptance"]["survival"] == pytest.approx([4 / 6, 1 / 6, 0.0, 0.0])
    assert found["cost"] == "target modelled, draft measured by the probe"
    assert found["draft_cost"] == pytest.approx(0.2)
    _, config, *asked = engine
    assert config == {"method": "spire", "model": draft, "num_speculative_tokens": 4}
    order = ["plain", "1 spire", "1 spire", "plain", "plain", "1 spire"]
    assert asked == [(name, str(i // 2)) for i, name in enumerate(order)]
    assert run(["plan", "--probe", *options]) == 0
    assert "draft measured by the probe\ndraft cost        0.200 of a plain step\n" in capsys.readouterr().out


def test_another_device_does_not_take_what_was_timed_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, engine: list[Any]
) -> None:
    target = folder(tmp_path, "big", 4)
    draft = write_draft(tmp_path / "draft", of_target({**SIZES, "num_hidden_layers": 4}))
    (found,) = probed(capsys, "--target", target, "--draft", draft, "--method", "spire", "--hardware", "L4")
    assert found["cost"] == "modelled"
    assert found["acceptance"]["source"].startswith("probed, 2 prompts")
    assert "plain" not in {each[0] for each in engine if isinstance(each, tuple)}


def test_where_nothing_was_drafted_the_cost_is_modelled() -> None:
    silent = [answer(5, Acceptance(6, emitted=6), PhaseSeconds(target=5.0))] * 2
    assert plan_probe._estimate(silent, SCRIPT["plain"][:2], 4).draft_cost is None
    # Noise may make a commit shorter than a plain one, but no draft is paid for.
    cheap = [answer(5, Acceptance(6, 20, 5, 11), PhaseSeconds(draft=0.1, target=9.0))] * 2
    assert plan_probe._estimate(cheap, SCRIPT["plain"][:2], 4).draft_cost == 0.0


def test_an_answer_that_breaks_off_is_no_measurement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: list[Any]
) -> None:
    monkeypatch.setitem(SCRIPT, "lookup", [answer(0, Acceptance(), PhaseSeconds(), "the model gave NaN logits")] * 2)
    message = refused(capsys, "--hardware", "L4", "--probe", target=folder(tmp_path, "big", 4))
    assert message == "--probe cannot tell (the model gave NaN logits): give an --acceptance"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "TARGET is known by its sizes alone, and --probe needs weights"),
        (("--draft", SMALL), "DRAFT is known by its sizes alone, and --probe needs weights"),
        (
            ("--method", "spire"),
            "not spire from sizes: give the folder of a trained one as --draft, or an --acceptance",
        ),
        (("--method", "spire", "--draft", SMALL), "not spire from sizes: give the folder of a trained one"),
        (("--method", "spire", "--draft-cost", "0.1"), "not spire from sizes: give the folder of a trained one"),
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


# --- the engine itself, on a tiny model ---------------------------------------------------------------------------


def shortened(folder: Path, positions: int) -> str:
    card = folder / "config.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "max_position_embeddings": positions}))
    return str(folder)


def test_the_shipped_draft_is_run_where_none_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: None
) -> None:
    """Also beside another drafter, and where the target has too few positions for some of the prompts."""
    target = write_target(tmp_path / "target")
    sizes = json.loads((target / "config.json").read_text())
    draft = write_draft(tmp_path / "drafts" / "shipped", of_target(sizes))
    monkeypatch.setattr("outrider.draft.shipped.DRAFTS", tmp_path / "drafts")
    made_for = (sizes["num_hidden_layers"], sizes["hidden_size"], sizes["vocab_size"])
    monkeypatch.setattr("outrider.draft.shipped._MADE_FOR", {made_for: "shipped"})
    options = ("--target", shortened(target, 112), "--method", "ngram", "--method", "spire", "--context", "80")
    lookup, trained = probed(capsys, *options, "--dtype", "float32", "--k-max", "3")
    assert (lookup["drafter"], trained["drafter"]) == ("ngram", f"spire {draft}")
    assert (lookup["cost"], trained["cost"]) == ("modelled", "target modelled, draft measured by the probe")
    (prompts,) = {int(each["acceptance"]["source"].split()[1]) for each in (lookup, trained)}
    assert 0 < prompts < plan_probe._PROMPTS
    assert len(trained["acceptance"]["survival"]) == 3
    # A draft of which the cost is given is not the one that is shipped.
    spire = ("--hardware", "L4", "--probe", "--method", "spire", "--draft-cost", "0.1", "--context", "80")
    assert "not spire from sizes" in refused(capsys, *spire, target=str(target))


def test_a_target_too_short_for_any_prompt_is_refused_before_it_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("outrider.llm.LLM", SimpleNamespace)
    target = shortened(write_target(tmp_path / "target"), 50)
    capsys.readouterr()
    message = refused(capsys, "--hardware", "L4", "--probe", "--context", "40", target=target)
    assert message.startswith(f"{target} has 50 positions, and --probe takes ")


def test_a_target_holds_no_more_positions_than_the_prompts_need(tmp_path: Path) -> None:
    tasks, length = plan_probe._tasks(shortened(write_target(tmp_path / "target"), 4096))
    assert len(tasks) == plan_probe._PROMPTS
    # Letters are tokens here, and the template adds one.
    assert length == max(len(task.prompt) for task in tasks) + 1 + plan_probe._TOKENS
