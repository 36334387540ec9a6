"""The folder that holds fetched weights and converted tokenizers, and how files appear in it."""

from __future__ import annotations

import errno
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
    """``$OUTRIDER_CACHE``, else ``$XDG_CACHE_HOME/outrider``, else ``~/.cache/outrider``; not created."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "outrider"
    return Path.home() / ".cache" / "outrider"


def free_bytes(folder: Path) -> int:
    """Free disk space where ``folder`` is, or will be once created."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


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
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=parent))
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


def _sweep(parent: Path) -> None:
    """Remove what a killed process left; a day is longer than any fetch that still runs."""
    for scratch in parent.glob(_SCRATCH_PREFIX + "*"):
        with suppress(FileNotFoundError):
            if time.time() - scratch.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> str:
    return f"cannot write to {folder}: {error.strerror or error}; set {CACHE_VARIABLE} to a folder you can write to"


def _mebibytes(size: int) -> str:
    return f"{size / _MEBIBYTE:,.0f} MiB"
