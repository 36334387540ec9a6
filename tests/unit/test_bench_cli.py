"""`outrider bench` over a fake model: what is printed where, what is written, and what is refused before any work."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outrider.bench.engine_subject import EngineSubject
from outrider.bench.record import Answer
from outrider.cli.bench_plan import endpoint_name
from outrider.cli.main import run
from tests.fake_model import FakeModels, fake_models
from tests.unit.bench_runs import answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outrider.bench.record import Settings
    from outrider.bench.subject import Request

Made = tuple[str, str, str | None, str | None]
"""Name, URL, model and key that an endpoint was made with."""
Captured = pytest.CaptureFixture[str]
ROWS = [{"prompt": f"number {i}", "category": "odd" if i % 2 else "even"} for i in range(4)]


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    # The real bandwidth takes a while to measure and says nothing here.
    monkeypatch.setattr("outrider.provenance.read_bandwidth", lambda threads: 1e10)
    return fake_models(monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> list[str]:
    """The command with a toy model and four short prompts."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return ["bench", "--model", "toy", "--prompts", str(path), "--max-tokens", "8"]


def record(captured: Captured) -> dict[str, Any]:
    """The last line of standard output."""
    out = captured.readouterr().out
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def rows(found: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    return [(row["configuration"], row["settings"]["temperature"], row["batch"]) for row in found["summary"]["rows"]]


def test_a_table_and_then_one_json_document(bench: list[str], capsys: Captured) -> None:
    assert run(bench) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("Speed (baseline: plain)\n")
    assert "By category" in out
    found = json.loads(out.splitlines()[-1])
    assert rows(found) == [("plain", 0, 1), ("plain", 1, 1), ("auto", 0, 1), ("auto", 1, 1)]
    assert found["schema"] == "outrider.bench/1"
    assert len(found["samples"]) == 16
    assert found["provenance"]["workloads"][0]["name"] == "prompts.jsonl"
    assert found["provenance"]["machine"]["read_bandwidth"] == 1e10
    # The toy keeps bytes: greedy and seeded answers are plain decoding's.
    assert [row["identical"] for row in found["summary"]["rows"][2:]] == [{"same": 4, "of": 4}] * 2


def test_a_sweep_over_drafters_lengths_and_batches(bench: list[str], capsys: Captured) -> None:
    drafters = ["--speculative-config", "auto", "--speculative-config", '{"model": "toy-draft"}']
    options = ["--k", "0..2", "--batch", "1,3", "--temperature", "0", "--limit", "3"]
    assert run([*bench, *drafters, *options]) == 0
    found = record(capsys)
    names = ["plain", "auto k=1", "auto k=2", "draft_model k=1 toy-draft", "draft_model k=2 toy-draft"]
    assert found["configurations"] == names
    assert rows(found) == [(name, 0, batch) for name in names for batch in (1, 3)]
    assert found["details"]["plain"]["max_num_seqs"] == 8
    assert found["details"]["auto k=2"]["speculative_config"]["num_speculative_tokens"] == 2


def test_slots_for_the_largest_batch(bench: list[str], capsys: Captured) -> None:
    assert run([*bench, "--batch", "12", "--temperature", "0", "--limit", "1"]) == 0
    assert record(capsys)["details"]["plain"]["max_num_seqs"] == 12


def test_without_a_seed_identical_means_nothing(bench: list[str], capsys: Captured) -> None:
    assert run([*bench, "--no-seed", "--temperature", "1"]) == 0
    row = record(capsys)["summary"]["rows"][1]
    assert (row["settings"]["seed"], row["identical"]) == (None, None)


def test_repeats(bench: list[str], capsys: Captured) -> None:
    assert run([*bench, "--repeats", "2", "--temperature", "0", "--speculative-config", "none"]) == 0
    (row,) = record(capsys)["summary"]["rows"]
    assert (row["requests"], row["prompts"]) == (8, 4)


def test_an_open_loop_with_limits(bench: list[str], capsys: Captured) -> None:
    assert run([*bench, "--rate", "500", "--max-ttft", "1e9", "--max-tpot", "1e9", "--temperature", "0"]) == 0
    found = record(capsys)
    assert found["summary"]["rows"] == []
    for load in found["summary"]["load"]:
        assert (load["rate"], load["requests"], load["met"]) == (500, 4, 4)
        assert load["limits"] == {"ttft": 1e6, "tpot": 1e6}


def test_files_are_written_whole(bench: list[str], capsys: Captured, tmp_path: Path) -> None:
    output, page = tmp_path / "run.json", tmp_path / "run.html"
    output.write_text("the old one")
    assert run([*bench, "--output", str(output), "--html", str(page), "--temperature", "0"]) == 0
    last = record(capsys)
    whole = json.loads(output.read_text())
    assert set(whole) - set(last) == {"samples", "tasks"}
    assert whole == {**last, "samples": whole["samples"], "tasks": whole["tasks"]}
    assert page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.jsonl", "run.html", "run.json"]
    assert run(["bench", "compare", str(output), str(output)]) == 0


def test_a_file_called_like_a_workload_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat").write_text(json.dumps(ROWS[0]))
    options = ["--temperature", "0", "--max-tokens", "4", "--speculative-config", "none"]
    assert run(["bench", "--model", "toy", "--prompts", "chat", *options]) == 0
    assert [task["prompt"] for task in record(capsys)["tasks"]] == ["number 0"]


def test_named_workloads_that_do_not_fit_are_refused(capsys: Captured) -> None:
    assert run(["bench", "--model", "toy", "--workload", "long-1k"]) == 2
    assert "workload 'long-1k'" in (err := capsys.readouterr().err)
    assert "max_model_len" in err


def test_a_failed_request_costs_its_own_answer_only(bench: list[str], capsys: Captured, tmp_path: Path) -> None:
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"prompt": "x" * 500}))
    assert run([*bench, "--temperature", "0"]) == 1
    out, err = capsys.readouterr()
    assert "plain: 1 of 5 requests failed; the first, prompts/" in out
    assert "max_model_len" in out
    assert err == "outrider: requests that failed: 2; the table's notes name the first of each configuration\n"
    assert [row["requests"] for row in json.loads(out.splitlines()[-1])["summary"]["rows"]] == [4, 4]


# --- stopped on the way -------------------------------------------------------------------------------------


def stop_at(monkeypatch: pytest.MonkeyPatch, call: int, error: BaseException) -> None:
    """Raise in the engine subjects' ``call``-th serving, warm-ups included."""
    serve, calls = EngineSubject.serve, iter(range(1, 1000))

    def serve_or_stop(self: EngineSubject, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        if next(calls) == call:
            raise error
        return serve(self, requests, settings)

    monkeypatch.setattr(EngineSubject, "serve", serve_or_stop)


@pytest.mark.parametrize("option", ["--output", "--html"])
def test_prompts_are_not_written_over(bench: list[str], capsys: Captured, models: FakeModels, option: str) -> None:
    path = Path(bench[4])
    before = path.read_bytes()
    assert run([*bench, option, f"{path.parent}/./{path.name}"]) == 2
    assert f"--prompts and {option} both name" in capsys.readouterr().err
    assert (path.read_bytes(), models.runners) == (before, [])


def test_two_files_with_the_same_ids_are_refused_before_any_model_is_read(
    bench: list[str], capsys: Captured, models: FakeModels, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "prompts.jsonl"
    other.write_text(json.dumps(ROWS[0]))
    for load in ([], ["--rate", "1000"]):
        assert run([*bench, "--workload", str(other), *load]) == 2
        assert "task id 'prompts/1' is there twice" in capsys.readouterr().err
    assert models.runners == []


def test_prompts_may_come_through_a_pipe(capsys: Captured) -> None:
    reader, writer = os.pipe()
    os.write(writer, json.dumps(ROWS[0]).encode())
    os.close(writer)
    options = ["--temperature", "0", "--max-tokens", "4", "--speculative-config", "none"]
    try:
        assert run(["bench", "--model", "toy", "--prompts", f"/dev/fd/{reader}", *options]) == 0
    finally:
        os.close(reader)
    assert [task["prompt"] for task in record(capsys)["tasks"]] == ["number 0"]


@pytest.mark.parametrize("load", [[], ["--rate", "1000"]])
def test_an_interrupt_keeps_what_was_measured(
    bench: list[str], capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: list[str]
) -> None:
    # Two warm-ups and three answers; in an open loop a warm-up and all of the first configuration.
    stop_at(monkeypatch, 6 if not load else 3, KeyboardInterrupt())
    output = tmp_path / "run.json"
    assert run([*bench, *load, "--temperature", "0", "--output", str(output)]) == 130
    out, err = capsys.readouterr()
    assert err == "outrider: interrupted\n"
    assert out.startswith("Speed" if not load else "Open loop")
    assert len(json.loads(output.read_text())["samples"]) == (3 if not load else 4)
    assert f"broken off: {3 if not load else 4} of 8 answers were measured." in out


def test_an_interrupt_before_the_first_answer_leaves_nothing(
    bench: list[str], capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 1, KeyboardInterrupt())
    assert run([*bench, "--output", str(tmp_path / "run.json")]) == 130
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "run.json").exists()


def test_a_signal_to_leave_keeps_what_was_measured(
    bench: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 5, SystemExit(143))
    with pytest.raises(SystemExit):
        run([*bench, "--temperature", "0"])
    assert len(record(capsys)["samples"]) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("none left")])
def test_what_is_asked_at_the_end_loses_nothing(
    bench: list[str], endpoints: list[Made], capsys: Captured, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("outrider.provenance.read_bandwidth", fails)
    monkeypatch.setattr(FakeEndpoint, "details", fails)
    assert run([*bench, "--endpoint", "http://one:1", "--temperature", "0"]) == 0
    found = record(capsys)
    assert len(found["samples"]) == 12
    assert found["details"]["one:1"] == {"error": f"{type(error).__name__}: {error}"}
    assert found["provenance"]["machine"] == found["details"]["one:1"]
    assert found["summary"]["bandwidth"] is None


def test_a_bug_keeps_what_was_measured_and_its_traceback(
    bench: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 5, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        run([*bench, "--temperature", "0"])
    assert len(record(capsys)["samples"]) == 2


# --- refused before anything is loaded ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "nothing"], "'nothing'"),
        (["--prompts", "nowhere.jsonl"], "no such file"),
        (["--limit", "0"], "--limit"),
        (["--repeats", "0"], "--repeats"),
        (["--max-tokens", "0"], "max_tokens=0"),
        (["--temperature", "-1"], "temperature"),
        (["--seed", "-1"], "--seed"),
        (["--dtype", "float8"], "float8"),
        (["--quantization", "int3"], "int3"),
        (["--speculative-config", "{"], "not valid JSON"),
        (["--speculative-config", "magic"], "magic"),
        (["--k", "5..2"], "5..2"),
        (["--batch", "0"], "--batch '0'"),
        (["--batch", "1,x"], "--batch 'x'"),
        (["--batch", "9" * 5000], "from 1 to 999"),
        (["--batch", "\N{SUPERSCRIPT TWO}"], "--batch"),
        (["--rate", "0"], "rate=0.0 must be a number of requests per second"),
        (["--rate", "nan"], "rate=nan must be"),
        (["--rate", "1e-300"], "rate=1e-300 must be"),
        (["--rate", "1", "--max-tpot", "-5"], "--max-tpot -5.0"),
        (["--max-ttft", "100"], "add --rate"),
        (["--rate", "1", "--batch", "2"], "leave out --batch"),
        (["--rate", "1", "--repeats", "2"], "leave out --batch and --repeats"),
        (["--peer", "magic"], "--peer 'magic' is unknown"),
        (["--peer", "transformers", "--batch", "2"], "one request at a time"),
        (["--endpoint-model", "m"], "without --endpoint"),
        (["--endpoint", "http://h:1", "--endpoint", "http://h:1/v1/"], "given twice"),
        (["--endpoint", "http://[h"], "--endpoint 'http://[h' is no URL (Invalid IPv6 URL)"),
        (["--output", "nowhere/run.json"], "no folder 'nowhere'"),
        (["--html", "."], "is a folder"),
        (["--output", "a", "--html", "./a"], "give two files"),
        (["--output", "x" * 300], "cannot be a file: File name too long"),
        (["--prompts", "x" * 300], "no such file"),
        (["--output", "/dev/null"], "is a device"),
        (["--k", "2", "--speculative-config", "none"], "--k '2' means nothing without a drafter"),
        (
            ["--speculative-config", '{"model": "a/toy-draft"}', "--speculative-config", '{"model": "b/toy-draft"}'],
            "configuration 'draft_model toy-draft' is there twice",
        ),
        (["surplus"], "surplus"),
    ],
)
def test_a_mistake_is_one_line_before_any_model_is_read(
    options: list[str],
    message: str,
    capsys: Captured,
    models: FakeModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["bench", "--model", "toy", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("outrider: ")
    assert message in err
    assert models.runners == []
    assert list(tmp_path.iterdir()) == []


def test_a_report_needs_plotly_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, models: FakeModels, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["bench", "--model", "toy", "--html", str(tmp_path / "x.html")]) == 2
    assert "pip install 'outrider[plot]'" in capsys.readouterr().err
    assert models.runners == []


@pytest.mark.parametrize("option", [["--k", "2"], ["--dtype", "float32"], ["--peer", "transformers"]])
def test_a_model_s_options_need_a_model(option: list[str], capsys: Captured) -> None:
    assert run(["bench", "--endpoint", "http://localhost:9", *option]) == 2
    assert f"{option[0]} means nothing where only endpoints are measured" in capsys.readouterr().err


def test_options_before_compare_are_refused_and_not_forgotten(capsys: Captured) -> None:
    assert run(["bench", "--k", "2", "compare", "a.json", "b.json"]) == 2
    assert "--k goes with bench, not with compare" in capsys.readouterr().err


def test_help_lists_compare(capsys: Captured) -> None:
    assert run(["bench", "--help"]) == 0
    assert "compare  Compare two runs" in capsys.readouterr().out


# --- endpoints ----------------------------------------------------------------------------------------------


class FakeEndpoint:
    """An endpoint that answers at once; what it was made with is kept."""

    made: list[Made]

    def __init__(self, name: str, url: str, *, model: str | None, api_key: str | None) -> None:
        self.made.append((name, url, model, api_key))
        self.name = name

    def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        return [answer() for _ in requests]

    def details(self) -> Mapping[str, Any]:
        return {"url": "a url"}


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> list[Made]:
    FakeEndpoint.made = []
    monkeypatch.setattr("outrider.bench.endpoint.EndpointSubject", FakeEndpoint)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    return FakeEndpoint.made


def test_endpoints_alone_load_no_model(endpoints: list[Made], capsys: Captured, models: FakeModels) -> None:
    urls = ["--endpoint", "http://me:pw@one:8000/v1/", "--endpoint", "https://two/api", "--endpoint-model", "m"]
    assert run(["bench", *urls, "--limit", "2", "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert endpoints == [
        ("one:8000", "http://me:pw@one:8000/v1/", "m", "sk-secret"),
        ("two/api", "https://two/api", "m", "sk-secret"),
    ]
    assert found["configurations"] == ["one:8000", "two/api"]
    assert found["baseline"] == "one:8000"
    assert models.runners == []
    assert "sk-secret" not in out
    assert "machine" not in found["provenance"]


def test_a_name_is_no_markup_of_the_progress_bar(
    endpoints: list[Made], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(["bench", "--endpoint", "[/x]", "--limit", "1", "--temperature", "0"]) == 0
    assert record(capsys)["configurations"] == ["[/x]"]


def test_with_a_model_plain_decoding_is_the_baseline(endpoints: list[Made], bench: list[str], capsys: Captured) -> None:
    assert run([*bench, "--endpoint", "http://one:8000", "--temperature", "0"]) == 0
    found = record(capsys)
    assert found["configurations"] == ["plain", "auto", "one:8000"]
    assert found["baseline"] == "plain"
    assert endpoints[0][2] is None
    # Another engine's other words break no promise of ours: the exit code above was 0.
    assert found["summary"]["rows"][2]["identical"]["same"] == 0


@pytest.mark.parametrize(
    ("url", "name"),
    [("http://h:8000", "h:8000"), ("http://h/v1/", "h"), ("https://u:p@h/x/v1", "h/x"), ("nothing", "nothing")],
)
def test_an_endpoint_is_called_by_host_and_path(url: str, name: str) -> None:
    assert endpoint_name(url) == name
