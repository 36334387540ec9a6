"""`outrider plan` from the command line: what it reads, what it prints, what it refuses in one line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider import hardware
from outrider.cli import plan_inputs
from outrider.cli.main import run
from outrider.models.registry import DEMO_MODELS
from tests.unit.test_plan_acceptance import FEW, NGRAM, PLAIN, record

SIZES: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "tie_word_embeddings": True,
}
LARGE = json.dumps(SIZES)
SMALL = json.dumps({**SIZES, "num_hidden_layers": 2})
L4 = ("--hardware", "L4")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, target: str = LARGE) -> tuple[str, str]:
    assert run(["plan", "--target", target, *arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, target: str = LARGE) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(printed(capsys, *L4, *arguments, "--json", target=target)[0])
    return document


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, target: str = LARGE) -> str:
    assert run(["plan", "--target", target, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("outrider: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("outrider: ").strip()


def test_text_goes_to_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(capsys, *L4, "--acceptance", "0.6")
    assert "best k" in out
    assert err == ""


def test_lookup_is_the_default_and_draft_models_are_where_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    def drafters(*arguments: str) -> list[str]:
        return [each["drafter"] for each in planned(capsys, "--acceptance", "0.6", *arguments)["drafters"]]

    assert drafters() == ["ngram"]
    assert drafters("--draft", SMALL) == ["draft_model DRAFT"]
    assert drafters("--draft", SMALL, "--draft", LARGE) == ["draft_model DRAFT", "draft_model DRAFT-2"]
    assert drafters("--draft", SMALL, "--method", "spire") == ["spire DRAFT"]
    assert drafters("--draft-cost", "0.1") == ["draft_model c=0.1"]
    assert drafters("--draft-cost", "0", "--method", "ngram") == ["ngram c=0"]
    everything = ("--method", "spire", "--method", "ngram", "--method", "magicdec", "--method", "draft_model")
    assert drafters(*everything, "--draft", SMALL) == ["spire of 4 layers", "ngram", "magicdec", "draft_model DRAFT"]


def test_the_table_of_best_draft_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "--draft-cost", "0.05", "--acceptance", "0.8")
    assert document["drafters"][0]["k"] == 8
    assert document["drafters"][0]["speedup"]["limit"] == pytest.approx(3.09, abs=0.005)
    assert planned(capsys, "--draft-cost", "0.05", "--acceptance", "0.8", "--k-max", "3")["drafters"][0]["k"] == 3


def test_one_acceptance_for_all_or_one_each(capsys: pytest.CaptureFixture[str]) -> None:
    def alphas(*arguments: str) -> list[float]:
        drafters = planned(capsys, "--method", "ngram", "--method", "magicdec", *arguments)["drafters"]
        return [each["acceptance"]["survival"][0] for each in drafters]

    assert alphas("--acceptance", "0.6") == [0.6, 0.6]
    assert alphas("--acceptance", "0.6", "--acceptance", "0.9") == [0.6, 0.9]


def test_batch_context_and_numbers_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    one = planned(capsys, "--acceptance", "0.6", "--batch", "4", "--context", "4096")
    parameters = one["target"]["parameters"]
    nbytes = 2 * parameters + 4 * 4096 * 16 * 2 * 8 * 64 * 2
    assert one["plain"]["tokens_per_second"] == pytest.approx(4 * 300e9 / nbytes)
    held = planned(capsys, "--acceptance", "0.6", "--quantization", "int8", "--draft", SMALL)
    assert held["target"]["weight_bytes"] == parameters
    drafts = planned(capsys, "--acceptance", "0.6", "--draft", SMALL, "--draft-quantization", "int4")
    small = planned(capsys, "--acceptance", "0.6", target=SMALL)["target"]["parameters"]
    assert drafts["drafters"][0]["memory"]["draft_weights"] == small * 4.5 / 8
    assert planned(capsys, "--acceptance", "0.6", "--dtype", "float32")["hardware"]["flops"] == 30.3e12


def test_own_figures_of_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "--acceptance", "0.6", "--bandwidth", "600", "--memory", "48", "--flops", "250")
    assert [document["hardware"][name] for name in ("bandwidth", "memory", "flops")] == [6e11, 48e9, 2.5e14]


def test_this_machine_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "read_bandwidth", lambda: 2e10)
    monkeypatch.setattr(hardware, "physical_memory", lambda: 10**11)
    monkeypatch.setattr(plan_inputs, "_product_flops", lambda dtype: {"float32": 1e12}[dtype])
    out, err = printed(capsys, "--acceptance", "0.6", "--dtype", "float32", "--json")
    found = json.loads(out)["hardware"]
    assert (found["name"], found["bandwidth"], found["memory"], found["flops"]) == ("this", 2e10, 1e11, 1e12)
    assert err == "outrider: measuring this machine\n"


def test_arithmetic_of_a_product_over_its_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 1.0, 3.0, 3.0, 7.0])
    monkeypatch.setattr(plan_inputs, "_MATRIX", 64)
    monkeypatch.setattr(plan_inputs, "_REPEATS", 3)
    monkeypatch.setattr(plan_inputs, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert plan_inputs._product_flops("bfloat16") == 2 * 64**3 / 2.0


# --- models ---------------------------------------------------------------------------------------------------


def written(folder: Path, values: Any, name: str = "config.json") -> str:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


def test_a_folder_and_its_configuration_are_the_same_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path, {**SIZES, "model_type": "llama"})
    for ref in (file, str(tmp_path)):
        document = planned(capsys, "--acceptance", "0.6", target=ref)
        assert document["target"]["name"] == str(tmp_path)
        assert f"vllm serve {tmp_path} " in document["recommended"]["vllm"]
    sizes = planned(capsys, "--acceptance", "0.6")
    assert document["target"]["parameters"] == sizes["target"]["parameters"]
    assert document["drafters"] != []
    other = planned(capsys, "--acceptance", "0.6", target=written(tmp_path, SIZES, "my-model.json"))
    assert other["target"]["name"] == "my-model"


def test_what_a_familys_files_leave_out_is_filled_in(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Gemma's files do not say that the head is the embedding, nor which layers have a window."""
    del (values := dict(SIZES))["tie_word_embeddings"]
    file = written(tmp_path, {"model_type": "gemma3", "text_config": {**values, "sliding_window": 100}})
    document = planned(capsys, "--acceptance", "0.6", "--context", "1000", target=file)
    assert document["target"]["parameters"] == planned(capsys, "--acceptance", "0.6")["target"]["parameters"]
    # Every sixth of 16 layers sees all 1000 tokens.
    expected = (2 * 1000 + 14 * 100) * 2 * 8 * 64 * 2
    assert document["plain"]["memory"]["per_request"] == expected


@pytest.mark.weights
def test_a_demo_model_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "--acceptance", "0.6", "--draft", "smollm2-135m", target="smollm2-135m")
    assert document["target"]["parameters"] == 134_515_008
    assert document["target"]["kv_bytes_per_token"] == 30 * 2 * 3 * 64 * 2
    assert document["drafters"][0]["drafter"] == "draft_model smollm2-135m"
    assert document["recommended"]["speculative_config"] is None
    assert DEMO_MODELS["smollm2-135m"].file_name in document["recommended"]["vllm"]


def test_a_demo_model_is_not_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    message = refused(capsys, *L4, "--acceptance", "0.6", target="smollm2-135m")
    assert message == "smollm2-135m is not in the cache; fetch it with: outrider pull smollm2-135m"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json: not valid JSON"),
        ("[" * 100_000, "config.json: not valid JSON"),
        ("[]", "must be a JSON object of a model's sizes, not a list"),
        ('{"hidden_size": 8}', "intermediate_size is missing"),
        ('{"model_type": "nothing"}', "no valid configuration"),
        ('{"model_type": 3}', "no valid configuration"),
        ('{"model_type": "mixtral"}', "model_type 'mixtral' is not counted here"),
        ('{"model_type": "llama", "hidden_size": "x"}', "no valid configuration"),
        ('{"model_type": "gemma3_text", "num_hidden_layers": 1000000000}', "num_hidden_layers=1000000000 is above"),
    ],
)
def test_configurations_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    assert message in refused(capsys, *L4, "--acceptance", "0.6", target=written(tmp_path, content))


@pytest.mark.parametrize("ref", ["org/model", "", "/nowhere", "~nobody-here/x", "a\0b", "x" * 5000])
def test_models_that_are_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ref: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no model at" in refused(capsys, *L4, "--acceptance", "0.6", target=ref)


def test_bytes_that_are_no_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    assert "config.json is not UTF-8 text" in refused(capsys, *L4, "--acceptance", "0.6", target=str(tmp_path))


# --- acceptance and memory ------------------------------------------------------------------------------------


def test_acceptance_of_a_bench_record(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path, record(PLAIN, FEW, ngram=NGRAM), "bench.json")
    (drafter,) = planned(capsys, "--acceptance-from", file)["drafters"]
    assert drafter["acceptance"]["survival"] == [0.5, 0.25]
    assert drafter["acceptance"]["source"] == "measured, ngram, 4 rounds"
    assert (drafter["k"], drafter["tau"]) == (2, 1.75)
    message = refused(capsys, *L4, "--acceptance-from", file, "--draft", SMALL)
    assert "has no 'draft_model" in message


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), ("{", "is not JSON"), ("3", "schema")])
def test_records_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, message: str
) -> None:
    file = str(tmp_path / "bench.json") if content is None else written(tmp_path, content, "bench.json")
    assert message in refused(capsys, *L4, "--acceptance-from", file)


def test_a_target_that_does_not_fit_is_refused_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, *L4, "--acceptance", "0.6", "--batch", "64", "--context", "32768")
    assert message.startswith(
        "TARGET needs 71.2 GB (2.5 GB of weights, 68.7 GB of KV for 64 x 32768 tokens), more than"
    )
    assert "a batch of 17 at context 32768" in message


def test_a_draft_that_does_not_fit_is_said_and_not_recommended(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--draft", LARGE, "--acceptance", "0.99", "--memory", "5", "--json")
    out, err = printed(capsys, *L4, *arguments)
    assert "outrider: with draft_model DRAFT it needs 5.0 GB" in err
    assert json.loads(out)["drafters"][0]["verdict"] == "does not fit"
    assert json.loads(out)["recommended"]["drafter"] is None


def test_another_vocabulary_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    other = json.dumps({**SIZES, "vocab_size": 1000})
    _, err = printed(capsys, *L4, "--draft", other, "--acceptance", "0.6")
    assert err == (
        "outrider: DRAFT has a vocabulary of 1000, TARGET of 128256: a draft model needs the target's tokenizer\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--acceptance 0.8, or --acceptance-from"),
        (("--acceptance", "0.5", "--acceptance-from", "x.json"), "--acceptance 0.8, or --acceptance-from"),
        (("--acceptance", "1.5"), "acceptance 1.5 must be a probability"),
        (("--acceptance", "nan"), "must be a probability"),
        (
            ("--acceptance", "0.5", "--acceptance", "0.6"),
            "--acceptance is given 2 times and drafters 1: give one for all",
        ),
        (("--acceptance", "0.5", "--method", "eagle"), "--method 'eagle' is unknown; use ngram, draft_model"),
        (("--acceptance", "0.5", "--method", "draft_model"), "needs --draft MODEL, or --draft-cost"),
        (("--acceptance", "0.5", "--method", "ngram", "--draft", SMALL), "means nothing with --method ngram"),
        (("--acceptance", "0.5", "--draft-cost", "0.1", "--draft", SMALL), "--draft-cost 0.1 must be 0 or more"),
        (("--acceptance", "0.5", "--draft-cost", "-1"), "--draft-cost -1 must be 0 or more"),
        (("--acceptance", "0.5", "--draft-cost", "nan"), "--draft-cost nan must be 0 or more"),
        (("--acceptance", "0.5", "--hardware", "TPU"), "hardware 'TPU' is unknown; use 'this'"),
        (("--acceptance", "0.5", "--hardware", "L4", "--bandwidth", "0"), "--bandwidth 0 must be above 0"),
        (("--acceptance", "0.5", "--hardware", "L4", "--flops", "inf"), "--flops inf must be above 0"),
        (("--acceptance", "0.5", "--dtype", "fp8"), "dtype='fp8' is not supported"),
        (("--acceptance", "0.5", "--quantization", "gguf"), "quantization 'gguf' is unknown; use int8, int8-dynamic"),
        (("--acceptance", "0.5", "--batch", "0"), "--batch"),
        (("--acceptance", "0.5", "--k-max", "65"), "--k-max"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(capsys, *arguments)
