"""What `outrider bench` hands over at the end: exit codes that can be trusted, and files that are whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.bench.load import Limits
from outrider.cli import bench_results
from tests.unit.bench_runs import GREEDY, SAMPLED, answer, broken, run_of

if TYPE_CHECKING:
    from pathlib import Path

    from outrider.bench.record import Run, Settings

Captured = pytest.CaptureFixture[str]


def publish(measured: Run, output: Path | None = None) -> int:
    return bench_results.publish(measured, Limits(), output, None)


@pytest.mark.parametrize(
    ("settings", "keeps", "code"),
    [
        (GREEDY, {"greedy": True, "seeded": False}, 1),
        (GREEDY, {"greedy": False, "seeded": True}, 0),
        (SAMPLED, {"greedy": False, "seeded": True}, 1),
        (SAMPLED, {"greedy": True, "seeded": False}, 0),
        (replace(SAMPLED, seed=None), {"greedy": True, "seeded": True}, 0),
    ],
)
def test_a_broken_promise_is_an_exit_code(
    settings: Settings, keeps: dict[str, bool], code: int, capsys: Captured
) -> None:
    answers = {"plain": [answer()] * 2, "x": [answer(token=8), answer()]}
    measured = run_of(answers, settings=settings, details={"x": {"keeps_bytes": keeps}})
    assert publish(measured) == code
    err = capsys.readouterr().err
    assert ("1 of 2 answers differ from plain's although their bytes are promised" in err) == bool(code)


def test_kept_promises_are_no_fault(capsys: Captured) -> None:
    assert publish(run_of({"plain": [answer()] * 2, "x": [answer()] * 2})) == 0
    assert capsys.readouterr().err == ""


def test_failures_of_an_open_loop_count_too() -> None:
    assert publish(run_of({"plain": [answer(), broken()]}, batch=0, rate=1.0)) == 1


def test_what_cannot_be_written_is_printed(tmp_path: Path, capsys: Captured) -> None:
    gone = tmp_path / "gone"
    assert publish(run_of({"plain": [answer()] * 2}), gone / "run.json") == 1
    out, err = capsys.readouterr()
    assert len(json.loads(out.splitlines()[-1])["samples"]) == 2
    assert err.startswith(f"outrider: cannot write {gone}/run.json: ")


def test_writing_replaces_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    bench_results.write_atomically(path, "one \ud800 half")
    assert path.read_text() == "one \\ud800 half"
    assert path.stat().st_mode & 0o444 == 0o444

    def fails(self: Path, target: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(OSError, match="no room"):
        bench_results.write_atomically(path, "two")
    assert path.read_text() == "one \\ud800 half"
    assert list(tmp_path.iterdir()) == [path]
