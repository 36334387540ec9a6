"""The folder that holds fetched weights and converted tokenizers, and how files appear in it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE_VARIABLE = "OUTRIDER_CACHE"
_MEBIBYTE = 1 << 20
_SCRATCH_PREFIX = ".partial-"
_STALE_SECONDS = 24 * 3600.0


def cache_folder() -> Path:
    """``$OUTRIDER_CACHE``, else ``$XDG_CACHE_HOME/outrider``, else ``~/.cache/outrider``; not created.

    Raises ``FetchError`` for a ``~`` that stands for nobody's home.
    """
    own, shared = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    folder = Path(own) if own else Path(shared or "~/.cache") / "outrider"
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise FetchError(
            f"the cache folder {folder} has no place: {error}; set {CACHE_VARIABLE} to a folder"
        ) from error


def free_bytes(folder: Path) -> int:
    """Free disk space where ``folder`` is, or will be once created. Raises ``FetchError``."""
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        return shutil.disk_usage(existing).free
    except (OSError, ValueError) as error:
        raise FetchError(cannot_use(folder, error)) from error


def require_space(folder: Path, needed: int) -> None:
    """Refuse work that cannot fit. Raises ``FetchError``."""
    available = free_bytes(folder)
    if available < needed:
        raise FetchError(out_of_space(folder, needed, available))


def out_of_space(folder: Path, needed: int, available: int) -> str:
    """The one wording for a full disk, before or during the work."""
    return (
        f"no disk space in {folder}: {_mebibytes(needed)} needed, {_mebibytes(available)} available; "
        f"free some, or set {CACHE_VARIABLE} to a folder on another disk"
    )


@contextmanager
def scratch_folder(parent: Path, needed: int = 0) -> Iterator[Path]:
    """A folder beside the final place (same file system, so a rename is atomic) that never outlives the block.

    ``needed`` is the size in bytes to report when the disk fills up. Raises ``FetchError``.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        scratch, lock = _own_scratch(parent)
    except OSError as error:
        raise FetchError(_cannot_write(parent, error)) from error
    try:
        yield scratch
    except FetchError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(out_of_space(parent, needed, free_bytes(parent))) from error
        raise FetchError(_cannot_write(parent, error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _own_scratch(parent: Path) -> tuple[Path, int]:
    """A new folder, and the open handle whose lock says that its owner lives: it goes with the process, however."""
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            lock = os.open(scratch, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: age decides there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if scratch.exists():
                return scratch, lock
            os.close(lock)
        # Another process swept it away before the lock was on: take another.


def _sweep(parent: Path) -> None:
    """Remove what killed processes left."""
    for scratch in parent.glob(_SCRATCH_PREFIX + "*"):
        with suppress(OSError):
            lock = os.open(scratch, os.O_RDONLY)
            try:
                if _is_abandoned(lock):
                    shutil.rmtree(scratch, ignore_errors=True)
            finally:
                os.close(lock)


def _is_abandoned(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # No locks on this file system: a day is longer than any fetch that still runs.
        return time.time() - os.fstat(lock).st_mtime > _STALE_SECONDS
    return True


def cannot_use(folder: Path, error: Exception) -> str:
    """The one wording for a cache folder that cannot even be looked at."""
    reason = getattr(error, "strerror", None) or error
    return f"the cache folder {folder} cannot be used: {reason}; set {CACHE_VARIABLE} to another folder"


def _cannot_write(folder: Path, error: OSError) -> str:
    return f"cannot write to {folder}: {error.strerror or error}; set {CACHE_VARIABLE} to a folder you can write to"


def _mebibytes(size: int) -> str:
    return f"{size / _MEBIBYTE:,.0f} MiB"
