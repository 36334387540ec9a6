"""Where a measurement was made: what is told, and what is not."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
import torch

import outrider
from outrider import kernels
from outrider.provenance import commit, measure_machine, provenance


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one committed file in ``src/pack``."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "src" / "pack"
    folder.mkdir(parents=True)
    (folder / "code.py").write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return folder


def test_it_is_plain_json_with_everything_asked_for() -> None:
    report = json.loads(json.dumps(provenance(["/home/somebody/bin/outrider", "bench", "--k", "0..8"])))
    assert report["outrider"] == outrider.__version__
    assert report["torch"] == torch.__version__.partition("+")[0] or report["torch"] == torch.__version__
    assert report["argv"] == ["outrider", "bench", "--k", "0..8"]
    assert report["processor"]["threads"] == torch.get_num_threads()
    assert datetime.fromisoformat(report["time"]).utcoffset() is not None
    assert {"python", "transformers", "numpy", "platform", "kernels", "threads", "commit"} <= set(report)
    assert "somebody" not in json.dumps(report)


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("http://me:secret@host:8000/v1", "http://***@host:8000/v1"),
        ("--endpoint=https://token@host/v1", "--endpoint=https://***@host/v1"),
        ("http://me:p@ss:w@host/v1", "http://***@host/v1"),
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("http://host/a@b?c=d@e", "http://host/a@b?c=d@e"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_passwords_of_urls_are_not_kept(argument: str, kept: str) -> None:
    assert provenance(["outrider", argument])["argv"][1] == kept


def test_kernels_and_threads_are_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.LEVEL_VARIABLE, kernels.TORCH)
    report = provenance([])
    assert (report["kernels"], report["threads"]) == ("torch", torch.get_num_threads())
    assert report["argv"] == []


def test_the_commit_of_a_checkout_and_whether_it_was_changed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(package, "rev-parse", "HEAD")
    assert commit(package) == {"id": head, "dirty": False}
    (package / "new.py").write_text("")
    assert commit(package) == {"id": head, "dirty": False}, "what is not tracked is not measured"
    (package / "code.py").write_text("x = 2\n")
    assert commit(package) == {"id": head, "dirty": True}
    monkeypatch.setenv("GIT_DIR", str(package / "elsewhere"))
    assert commit(package) == {"id": head, "dirty": True}, "the environment of a hook does not lead astray"


def test_an_installed_package_has_no_commit(package: Path, tmp_path: Path) -> None:
    assert commit(tmp_path / "lib" / "site-packages") is None
    # A virtual environment inside somebody's own repository: that commit would not be ours.
    assert commit(tmp_path / "pack") is None
    shutil.rmtree(tmp_path / ".git")
    assert commit(package) is None


def test_without_git_there_is_no_commit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit(package) is None
    monkeypatch.undo()
    (package.parent.parent / ".git" / "HEAD").write_text("nonsense")
    assert commit(package) is None


def test_the_machine_is_measured_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int | None] = []

    def bandwidth(threads: int | None) -> float:
        order.append(threads)
        return 5e9

    monkeypatch.setattr("outrider.provenance.read_bandwidth", bandwidth)
    native = kernels.load().native
    measured = measure_machine()
    assert measured["read_bandwidth"] == 5e9
    assert order == [native.threads if native else None]
    assert measured["peak_memory_bytes"] > 50e6, "a process with torch in it; kilobytes would be a thousand times fewer"
