"""What `outrider bench` hands over: the table, the files, the last line, and an exit code that a script can trust."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider.files import replacing

if TYPE_CHECKING:
    from outrider.bench.load import Limits
    from outrider.bench.record import Run


def check_targets(output: Path | None, page: Path | None, prompts: Path | None = None) -> None:
    """Refuse files that could not be written when all is measured, or must not be. Raises ConfigError."""
    if page is not None:
        from outrider.bench.report import require_plotly

        require_plotly()
    taken = {os.path.realpath(prompts): "--prompts"} if prompts is not None else {}
    for option, path in (("--output", output), ("--html", page)):
        if path is not None:
            other = taken.setdefault(os.path.realpath(path), option)
            if other != option:
                raise ConfigError(f"{other} and {option} both name {str(path)!r}: give two files")
            _check_target(option, path)


def publish(run: Run, limits: Limits, output: Path | None, page: Path | None) -> int:
    """Write and print everything; 1 when a request failed, promised bytes differ or a file could not be written.

    Files come first, the record before the page: whoever reads our output may leave. The last line is the whole
    record, or with ``output`` the record without samples, which are in the file.
    """
    from outrider.bench.record_json import run_to_json
    from outrider.bench.table import render

    with _interrupts_waiting():
        record = run_to_json(run, limits)
        unwritten = _written(output, lambda: json.dumps(record, allow_nan=False) + "\n") if output is not None else []
    summary = record["summary"]
    faults = [*broken_promises(run, summary), *_failures(summary)]
    if page is not None:
        from outrider.bench.report import render as render_page

        faults += _written(page, lambda: render_page(run, summary))
    print(render(run, summary), end="\n\n", flush=True)
    brief = output is not None and not unwritten
    last = {k: v for k, v in record.items() if not brief or k not in ("samples", "tasks")}
    print(json.dumps(last, allow_nan=False), flush=True)
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
        yield f"requests that failed: {failed}; the table's notes name the first of each configuration"


def _check_target(option: str, path: Path) -> None:
    try:
        old = path.exists()
    except OSError as error:
        raise ConfigError(f"{option} {str(path)[:80]!r} cannot be a file: {error.strerror}") from None
    if path.is_dir():
        raise ConfigError(f"{option} {str(path)!r} is a folder; name a file in it")
    if old and not path.is_file():
        raise ConfigError(f"{option} {str(path)!r} is a device or a pipe; name a file, which is replaced as a whole")
    folder = (Path(os.path.realpath(path)) if path.is_symlink() else path).parent
    if not folder.is_dir():
        raise ConfigError(f"{option} {str(path)!r}: there is no folder {str(folder)!r}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {str(path)!r}: the folder {str(folder)!r} cannot be written to; choose another")


@contextmanager
def _interrupts_waiting() -> Iterator[None]:
    """Hold the first interrupt back until the record is in its file; a second one is obeyed at once."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        # Started in the background, where interrupts are ignored: there is none to hold back.
        yield
        return
    waiting = []

    def wait(number: int, _frame: FrameType | None) -> None:
        waiting.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt


def _written(path: Path, text: Callable[[], str]) -> list[str]:
    """Write a file whole or not at all; a sentence where that failed."""
    try:
        write_atomically(path, text())
    except OSError as error:
        return [f"cannot write {path}: {error.strerror or error}"]
    return []


def write_atomically(path: Path, text: str) -> None:
    """Write text whole or not at all."""
    with replacing(path) as file:
        # What JSON may hold and UTF-8 may not (half of a pair) is written as an escape.
        file.write(text.encode("utf-8", errors="backslashreplace"))
