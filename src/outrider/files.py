"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, beside ``path``, that takes its place at the end of the block; not so after an exception.

    Whoever reads ``path``, also after a power cut, sees the old file or the new one, whole. A link is followed: the
    file that it names is replaced.
    """
    path = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o666 & ~_umask())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _umask() -> int:
    # There is no way to read it but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
