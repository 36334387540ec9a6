"""The command line over a fake model: what is printed where, and one line with exit code 2 for a user's mistake."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from outrider.cli.main import run
from outrider.llm import LLM
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from tests.fake_model import LIMIT, FakeModels, fake_models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.models.base import Feed, Scores

TOY = ["--model", "toy", "--max-tokens", "20"]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    return fake_models(monkeypatch)


def text_of(prompt: str, ignore_eos: bool = False) -> str:
    """What the library answers."""
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=ignore_eos)
    return LLM("toy").generate(prompt, params)[0].outputs[0].text


def test_the_answer_goes_to_stdout_and_the_figures_to_stderr(capsys: Captured) -> None:
    assert run(["generate", "once upon", *TOY]) == 0
    out, err = capsys.readouterr()
    assert out == text_of("once upon") + "\n"
    assert err.count("\n") == 1
    for part in ("tok/s", "tau ", "drafts accepted", "rounds", "drafter ngram", "first token"):
        assert part in err


def test_the_drafter_in_use_is_told(capsys: Captured) -> None:
    assert run(["generate", "a", *TOY, "--speculative-config", "none"]) == 0
    assert "drafter none" in capsys.readouterr().err


def test_json(capsys: Captured) -> None:
    assert run(["generate", "once", "upon", *TOY, "--json", "--speculative-config", '{"method": "ngram"}']) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["text"] for line in lines] == [text_of("once"), text_of("upon")]
    assert {"text", "token_ids", "finish_reason", "metrics"} <= set(lines[0])
    assert lines[0]["finish_reason"] in ("stop", "length")
    assert {"ttft", "tpot", "rounds", "drafted", "accepted", "tau", "survival", "drafter"} <= set(lines[0]["metrics"])
    assert lines[0]["metrics"]["emitted"] == len(lines[0]["token_ids"])


def test_json_with_several_answers_and_logprobs(capsys: Captured) -> None:
    options = ["--n", "3", "--logprobs", "2", "--temperature", "1", "--seed", "4", "--json"]
    assert run(["generate", "once", *TOY, *options]) == 0
    line = json.loads(capsys.readouterr().out)
    assert len(line["outputs"]) == 3
    assert line["outputs"][0]["text"] == line["text"]
    assert len(line["logprobs"]) == len(line["token_ids"])
    assert {"logprob", "rank", "decoded_token"} == set(line["logprobs"][0][str(line["token_ids"][0])])


def test_several_answers_as_text(capsys: Captured) -> None:
    assert run(["generate", "once", *TOY, "--n", "2"]) == 0
    assert capsys.readouterr().out == f"[0] {text_of('once')}\n[1] {text_of('once')}\n"


def test_a_prompt_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("once upon"))
    assert run(["generate", "-", *TOY]) == 0
    assert capsys.readouterr().out == text_of("once upon") + "\n"


def test_stop_options_may_be_repeated(capsys: Captured) -> None:
    whole = text_of("once")
    assert run(["generate", "once", *TOY, "--stop", "never", "--stop", whole[3:5]]) == 0
    assert capsys.readouterr().out == whole[: whole.index(whole[3:5])] + "\n"


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_quantizations_of_both_models(models: FakeModels, command: str) -> None:
    spec = '{"model": "toy-draft", "quantization": "int8-dynamic"}'
    assert run([command, "once", *TOY, "--quantization", "int8", "--speculative-config", spec]) == 0
    assert models.quantizations == ["int8", "int8-dynamic"]


def test_compare(capsys: Captured) -> None:
    assert run(["generate", "once", *TOY, "--ignore-eos", "--compare"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(text_of("once", ignore_eos=True) + "\n")
    assert "the same tokens" in out
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["plain", "speculative", "speedup"]


@pytest.mark.parametrize("sampling", [[], ["--temperature", "1.0"]])
def test_compare_as_json(capsys: Captured, sampling: list[str]) -> None:
    assert run(["generate", "once", *TOY, "--compare", "--json", "--ignore-eos", *sampling]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["identical"] is True
    assert line["plain"]["metrics"]["drafter"] == "none"
    assert line["speculative"]["metrics"]["drafter"] == "ngram"
    assert line["ratio"] == pytest.approx(line["speculative"]["tokens_per_second"] / line["plain"]["tokens_per_second"])


MISTAKES = {
    "unknown model": (["--model", "no-such-model"], "unknown model 'no-such-model'"),
    "draft with another tokenizer": (
        ["--model", "toy-other-tokenizer", "--speculative-config", '{"model": "toy-draft"}'],
        "tokenizer is not the target model's",
    ),
    "unknown draft": (["--speculative-config", '{"model": "no-such-draft"}'], "unknown model 'no-such-draft'"),
    "context": (["--max-model-len", "4"], "the prompt has 9 tokens but max_model_len is 4"),
    "k below 0": (
        ["--speculative-config", '{"num_speculative_tokens": -1}'],
        "num_speculative_tokens=-1 must be a whole number, 0 or more",
    ),
    "temperature below 0": (["--temperature", "-1"], "temperature=-1.0 must be a finite number, 0"),
    "temperature nan": (["--temperature", "nan"], "temperature=nan must be a finite number"),
    "top_p": (["--top-p", "1.5"], "top_p=1.5 must be"),
    "max_tokens": (["--max-tokens", "0"], "max_tokens=0 must be"),
    "n": (["--n", "0"], "n=0 must be"),
    "seed": (["--seed", "-3"], "seed=-3 must be"),
    "dtype": (["--dtype", "int1"], "dtype='int1' is not supported"),
    "quantization": (["--quantization", "int3"], "quantization='int3' is unknown; use 'int8', 'int8-dynamic', 'gguf'"),
    "unknown key": (["--speculative-config", '{"tokens": 3}'], "unknown key 'tokens'; known keys: method"),
    "unknown method": (["--speculative-config", '{"method": "magic"}'], "method='magic' is unknown"),
    "invalid JSON": (["--speculative-config", "{method: ngram}"], "is not valid JSON"),
    "a word": (["--speculative-config", "ngram"], "speculative_config='ngram' is unknown"),
    "compare without a drafter": (["--compare", "--speculative-config", "none"], "--compare needs a drafter"),
    "unknown option": (["--tempreature", "1"], "--tempreature"),
    "not a number": (["--max-tokens", "many"], "'--max-tokens'"),
}


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(capsys: Captured, options: list[str], message: str) -> None:
    assert run(["generate", "once upon", *TOY, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("outrider: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(("bad", "message"), [("", "the prompt is empty"), ("x" * LIMIT, f"max_model_len is {LIMIT}")])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_other_prompts_are_served(capsys: Captured, bad: str, message: str, form: list[str]) -> None:
    assert run(["generate", "once", bad, "upon", *TOY, *form]) == 2
    out, err = capsys.readouterr()
    texts = [json.loads(line)["text"] for line in out.splitlines()] if form else out.splitlines()
    assert texts == [text_of("once"), text_of("upon")]
    (told,) = [line for line in err.splitlines() if line.startswith("outrider: ")]
    assert message in told


def test_no_arguments_print_the_help(capsys: Captured) -> None:
    run([])
    out, err = capsys.readouterr()
    for command in ("generate", "chat", "pull", "doctor"):
        assert command in out + err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("command", [[], ["generate"], ["chat"], ["pull"], ["doctor"]])
def test_help(capsys: Captured, command: list[str]) -> None:
    assert run([*command, "--help"]) == 0
    assert "Usage: outrider" in capsys.readouterr().out


def test_unknown_command(capsys: Captured) -> None:
    assert run(["generat"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_missing_prompt(capsys: Captured) -> None:
    assert run(["generate"]) == 2
    assert "Missing argument" in capsys.readouterr().err


class _Interrupted(ToyRunner):
    def score(self, feeds: list[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:  # type: ignore[override]
        raise KeyboardInterrupt


def test_an_interrupt_is_no_traceback(models: FakeModels, capsys: Captured) -> None:
    models.runner_class = _Interrupted
    assert run(["generate", "once", *TOY]) == 130
    assert capsys.readouterr().err == "outrider: interrupted\n"


def test_a_bug_of_ours_keeps_its_traceback(models: FakeModels, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ToyRunner, feeds: list[Feed], hidden: bool = False) -> Scores:
        raise ZeroDivisionError

    monkeypatch.setattr(models.runner_class, "score", broken)
    with pytest.raises(ZeroDivisionError):
        run(["generate", "once", *TOY])


def test_chat_with_one_message(capsys: Captured) -> None:
    assert run(["chat", "hi", *TOY, "--system", "be brief"]) == 0
    assert capsys.readouterr().out == text_of("system: be brief\nuser: hi\nassistant:") + "\n"


def test_a_conversation_remembers(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nand then\n"))
    assert run(["chat", *TOY]) == 0
    first = text_of("user: hi\nassistant:")
    second = text_of(f"user: hi\nassistant: {first}\nuser: and then\nassistant:")
    assert capsys.readouterr().out == f"{first}\n{second}\n"


def test_a_message_that_cannot_be_answered(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    long = "x" * LIMIT
    assert run(["chat", long, *TOY]) == 2
    assert f"max_model_len is {LIMIT}" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{long}\nhi\n"))
    assert run(["chat", *TOY]) == 2, "a script must notice, although the conversation went on"
    out, err = capsys.readouterr()
    assert out == text_of("user: hi\nassistant:") + "\n", "the conversation goes on without it"
    assert f"max_model_len is {LIMIT}" in err


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_an_empty_text_is_a_mistake(capsys: Captured, command: str) -> None:
    assert run([command, "", *TOY]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "is empty" in err


def test_standard_input_that_is_no_text(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ab\xffcd"), encoding="utf-8"))
    assert run(["generate", "-", *TOY]) == 2
    assert "standard input is not UTF-8 text" in capsys.readouterr().err


def test_a_name_longer_than_any_path(capsys: Captured) -> None:
    assert run(["generate", "a", "--model", "a" * 5000]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot be looked up: " in err
    assert len(err) < 200


def test_comparing_where_only_the_law_is_promised(capsys: Captured) -> None:
    spec = '{"method": "ngram", "rejection_sample_method": "block"}'
    options = [*TOY, "--compare", "--temperature", "1", "--seed", "3", "--speculative-config", spec]
    assert run(["generate", "abcabcabcabc", *options]) == 0
    out = capsys.readouterr().out
    assert "a bug" not in out
    assert "the same" in out


def test_a_reader_that_leaves_early_is_no_error() -> None:
    import subprocess
    import sys

    code = "import sys; from outrider.cli.main import run; sys.exit(run(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 1)
    assert b"Traceback" not in errors


class _BrokenRunner(ToyRunner):
    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        from outrider.models.base import Scores

        return Scores(tuple(logits * float("nan") for logits in super().score(feeds, hidden, layers).logits))


@pytest.mark.parametrize("options", [[], ["--json"], ["--compare"]])
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_model_that_gives_nan_is_an_error(
    models: FakeModels, capsys: Captured, command: str, options: list[str]
) -> None:
    models.runner_class = _BrokenRunner
    assert run([command, "a", *TOY, *(options if command == "generate" else [])]) == 2
    assert "the answer was broken off: the model gave NaN logits" in capsys.readouterr().err


@pytest.mark.parametrize("spec", ["[" * 60000, "9" * 5000, '{"method": ' + "1" * 5000 + "}"])
def test_json_that_python_cannot_read(capsys: Captured, spec: str) -> None:
    assert run(["generate", "a", *TOY, "--speculative-config", spec]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_output_that_finds_no_room_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    code = "from outrider.cli.main import main; import sys; sys.argv = ['outrider', '--help']; main()"
    with full.open("w") as output:
        process = subprocess.run([sys.executable, "-c", code], stdout=output, stderr=subprocess.PIPE, check=False)
    assert process.returncode == 1
    assert process.stderr.count(b"\n") == 1
    assert b"cannot write: No space left" in process.stderr


def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path: Path) -> None:
    """As a user's impatience finds it: the command line's own modules are not there yet."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "outrider", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "outrider: interrupted\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_way_of_having_no_room_is_one_line(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full() -> typer.Typer:
        app = typer.Typer()

        @app.command()
        def write() -> None:
            raise OSError(number, "no room")

        return app

    monkeypatch.setattr("outrider.cli.main.build_app", full)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert run(["--"]) == 1
    assert capfd.readouterr().err == "outrider: cannot write: no room\n"
