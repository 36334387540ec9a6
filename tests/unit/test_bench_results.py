"""What `outrider bench` hands over at the end: exit codes that can be trusted, and files that are whole."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from outrider.bench.load import Limits
from outrider.bench.record_json import run_to_json
from outrider.cli import bench_results
from outrider.errors import ConfigError
from tests.unit.bench_runs import GREEDY, SAMPLED, answer, broken, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_files_are_written_before_anything_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader such as `head` leaves early, and a full disk takes no more of our output."""

    def fails(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", fails)
    measured = run_of({"plain": [answer()] * 2})
    with pytest.raises(BrokenPipeError):
        bench_results.publish(measured, Limits(), tmp_path / "run.json", tmp_path / "run.html")
    assert len(json.loads((tmp_path / "run.json").read_text())["samples"]) == 2
    assert (tmp_path / "run.html").exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As started from a terminal: what runs in the background may have inherited that interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("times", [1, 2])
def test_one_interrupt_waits_for_the_record_and_two_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    def interrupted(*given: Any) -> dict[str, Any]:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return run_to_json(*given)

    monkeypatch.setattr("outrider.bench.record_json.run_to_json", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        publish(run_of({"plain": [answer()]}), tmp_path / "run.json")
    assert (tmp_path / "run.json").exists() == (times == 1)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_is_ignored_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return run_to_json(*given)

    monkeypatch.setattr("outrider.bench.record_json.run_to_json", interrupted)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert publish(run_of({"plain": [answer()]}), tmp_path / "run.json") == 0
    assert (tmp_path / "run.json").exists()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_page_that_fails_does_not_cost_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.bench.report.render", fails)
    with pytest.raises(KeyboardInterrupt):
        bench_results.publish(run_of({"plain": [answer()]}), Limits(), tmp_path / "run.json", tmp_path / "run.html")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to(target)
    bench_results.check_targets(link, None)
    bench_results.write_atomically(link, "new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    target.unlink()
    target.parent.rmdir()
    with pytest.raises(ConfigError, match="there is no folder"):
        bench_results.check_targets(link, None)


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
