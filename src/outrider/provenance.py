"""Where and with what a measurement was made, so that another can repeat it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import outrider
from outrider import kernels
from outrider.hardware import processor, read_bandwidth

_PACKAGES = ("torch", "transformers", "numpy")
_PASSWORD = re.compile(r"//[^/?#\s]*@")
_GIT_SECONDS = 10


def provenance(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Time, versions, processor, kernels, threads, command line (None: this process's) and commit, in plain JSON.

    Nothing says who or where: no user or host name, no path beyond what the command line holds, no password of a URL.
    """
    command = sys.argv if argv is None else argv
    native = kernels.load().native
    cpu = processor()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "outrider": outrider.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": asdict(cpu),
        "kernels": native.level if native else kernels.TORCH,
        "threads": native.threads if native else cpu.threads,
        "argv": [Path(each).name if i == 0 else _PASSWORD.sub("//***@", each) for i, each in enumerate(command)],
        "commit": commit(Path(outrider.__file__).parent),
    }


def measure_machine() -> dict[str, Any]:
    """Most memory this process has held so far, bytes, and the bandwidth at which it reads now, bytes per second."""
    native = kernels.load().native
    # In this order: measuring bandwidth takes memory of its own.
    peak = _peak_memory()
    return {"peak_memory_bytes": peak, "read_bandwidth": read_bandwidth(native.threads if native else None)}


def commit(package: Path) -> dict[str, Any] | None:
    """``{"id", "dirty"}`` of the checkout that holds ``package`` as ``src/<package>``; None where it is installed.

    Dirty: a tracked file differs from the commit.
    """
    root = package.parent.parent
    if package.parent.name != "src" or not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return None if head is None or changes is None else {"id": head, "dirty": bool(changes)}


def _git(root: Path, *arguments: str) -> str | None:
    # Variables such as GIT_DIR would point git elsewhere; without optional locks it writes nothing.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _peak_memory() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
