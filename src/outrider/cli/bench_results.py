"""What `outrider bench` hands over: the table, the files, the last line, and an exit code that a script can trust."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.load import Limits
    from outrider.bench.record import Run


def check_targets(output: Path | None, page: Path | None) -> None:
    """Refuse files that could not be written when all is measured. Raises ConfigError."""
    if page is not None:
        from outrider.bench.report import require_plotly

        require_plotly()
    for option, path in (("--output", output), ("--html", page)):
        if path is not None:
            _check_target(option, path)
    if output is not None and page is not None and output.resolve() == page.resolve():
        raise ConfigError(f"--output and --html both name {str(output)!r}: give two files")


def publish(run: Run, limits: Limits, output: Path | None, page: Path | None) -> int:
    """Print and write everything; 1 when a request failed, promised bytes differ or a file could not be written.

    The last line is the whole record, or with ``output`` the record without samples, which are in the file.
    """
    from outrider.bench.record_json import run_to_json
    from outrider.bench.table import render

    record = run_to_json(run, limits)
    summary = record["summary"]
    print(render(run, summary), end="\n\n", flush=True)
    faults = [*broken_promises(run, summary), *_failures(summary)]
    if page is not None:
        from outrider.bench.report import render as render_page

        faults += _written(page, lambda: render_page(run, summary))
    unwritten = _written(output, lambda: json.dumps(record) + "\n") if output is not None else []
    brief = output is not None and not unwritten
    print(json.dumps({k: v for k, v in record.items() if not brief or k not in ("samples", "tasks")}), flush=True)
    for fault in (*faults, *unwritten):
        print(f"outrider: {fault}", file=sys.stderr)
    return 1 if faults or unwritten else 0


def broken_promises(run: Run, summary: Mapping[str, Any]) -> Iterator[str]:
    """Configurations whose answers had to be the baseline's, byte for byte, and are not."""
    for row in summary["rows"]:
        settings, same = row["settings"], row["identical"]
        kind = "greedy" if settings["temperature"] == 0 else "seeded"
        promised = all(
            run.details.get(name, {}).get("keeps_bytes", {}).get(kind, False)
            for name in (run.baseline, row["configuration"])
        )
        if promised and same and same["same"] < same["of"]:
            yield (
                f"{row['configuration']}, temperature {settings['temperature']:g}, batch {row['batch']}: "
                f"{same['of'] - same['same']} of {same['of']} answers differ from {run.baseline}'s although their "
                "bytes are promised to be the same, which is a bug"
            )


def _failures(summary: Mapping[str, Any]) -> Iterator[str]:
    failed = sum(row["errors"] for row in (*summary["rows"], *summary["load"]))
    if failed:
        yield f"{failed} requests failed; the table's notes name the first of each configuration"


def _check_target(option: str, path: Path) -> None:
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"{option} {str(path)!r} is a folder; name a file in it")
    if not folder.is_dir():
        raise ConfigError(f"{option} {str(path)!r}: there is no folder {str(folder)!r}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {str(path)!r}: the folder {str(folder)!r} cannot be written to; choose another")


def _written(path: Path, text: Callable[[], str]) -> list[str]:
    """Write a file whole or not at all; a sentence where that failed."""
    try:
        write_atomically(path, text())
    except OSError as error:
        return [f"cannot write {path}: {error.strerror or error}"]
    return []


def write_atomically(path: Path, text: str) -> None:
    """Write beside ``path``, then rename: whoever reads it sees the old file or the new one, whole."""
    # What JSON may hold and UTF-8 may not (half of a pair) is written as an escape.
    data = text.encode("utf-8", errors="backslashreplace")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        scratch.chmod(0o666 & ~_umask())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _umask() -> int:
    # There is no way to read it but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
