"""`outrider train` from prompts to a draft at work, on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.cli.main import run

pytestmark = pytest.mark.weights

QUESTIONS = ("What is the capital of France?", "Count from one to ten.", "Name three colours.")
SMALL = [
    "--max-tokens", "16", "--max-model-len", "256",
    "--set", "blocks=[29]", "--set", "reads=[29]", "--set", "draft_vocab_size=500", "--set", "batch=2",
]  # fmt: skip


def test_from_prompts_to_a_draft_at_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run, run on, export, evaluate, generate: the draft is used, and the bytes are plain decoding's."""
    data, output, draft = tmp_path / "data.jsonl", tmp_path / "run", tmp_path / "draft"
    data.write_text("".join(json.dumps({"question": question}) + "\n" for question in QUESTIONS))
    command = ["train", "run", "--data", str(data), "--output", str(output), *SMALL]
    assert run([*command, "--steps", "2"]) == 0
    kept = (output / "text" / "continuations.jsonl").read_bytes()
    assert run([*command, "--steps", "3"]) == 0
    assert (output / "text" / "continuations.jsonl").read_bytes() == kept
    assert run(["train", "export", str(output), str(draft), "--int8"]) == 0
    provenance = json.loads((draft / "config.json").read_text())["provenance"]
    assert (provenance["steps"], provenance["texts"]) == (3, 3)
    assert provenance["training"]["target"] == "smollm2-135m"
    capsys.readouterr()
    measured = ["--prompts", str(data), "--max-tokens", "8", "--temperature", "0", "--json"]
    data.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in QUESTIONS))
    assert run(["train", "evaluate", str(draft), "ngram", *measured]) == 0
    found = json.loads(capsys.readouterr().out)
    for each in found["evaluations"]:
        assert (each["prompts"], each["tokens"]) == (3, 24)
        assert 1 <= each["tau"] <= 5
        assert len(each["survival"]) == 4
    llm = LLM(max_model_len=256, speculative_config=None)
    speculating = llm.with_speculation({"method": "spire", "model": str(draft), "num_speculative_tokens": 3})
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=12, ignore_eos=True)
    plain, drafted = llm.generate(list(QUESTIONS), params), speculating.generate(list(QUESTIONS), params)
    assert [each.outputs[0].token_ids for each in drafted] == [each.outputs[0].token_ids for each in plain]
    assert all(each.metrics.drafted > 0 for each in drafted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "omega"], "give name=value"),
        (["--set", "speed=3"], "unknown setting 'speed'"),
        (["--set", "reads=[31]"], "has states 0 to 30"),
        (["--set", "blocks=[30]"], "has blocks 0 to 29"),
        (["--max-tokens", "300"], "no row leaves room"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "Who?"}\n')
    command = ["train", "run", "--data", str(data), "--output", str(tmp_path / "run"), "--steps", "1"]
    assert run([*command, *SMALL, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
