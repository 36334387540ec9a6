"""Start another engine's server, wait until it answers, and end it with all its children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from outrider.bench.endpoint import EndpointSubject
from outrider.errors import ConfigError

START_SECONDS = 600.0
_POLL_SECONDS = 0.25
_GRACE_SECONDS = 10.0


class PeerError(Exception):
    """An engine that cannot be measured, in one line; the others go on."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(
    name: str, command: Sequence[str], port: int, log: Path, env: Mapping[str, str], patience: float = START_SECONDS
) -> Iterator[EndpointSubject]:
    """A subject over a process of its own, which is gone when the block ends. Raises ``PeerError``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment() | dict(env),
                start_new_session=True,
            )
        except OSError as error:
            raise PeerError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            yield _wait(name, process, f"http://127.0.0.1:{port}", log, patience)
        finally:
            _end(process)


def _environment() -> dict[str, str]:
    # Engines divide their threads themselves; vLLM keeps spinning ones in every process when told a number here.
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def _wait(name: str, process: subprocess.Popen[bytes], url: str, log: Path, patience: float) -> EndpointSubject:
    deadline = time.monotonic() + patience
    while True:
        if process.poll() is not None:
            raise PeerError(f"ended with code {process.returncode} before it answered: {last_words(log)}")
        try:
            return EndpointSubject(name, url, chat=False)
        except ConfigError as error:
            if time.monotonic() > deadline:
                raise PeerError(f"did not answer within {patience:g} s: {error}") from error
        time.sleep(_POLL_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    # A session of its own is a process group of its own: workers go with their server.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)


def last_words(log: Path) -> str:
    """The last line of a log that speaks of an error, or the last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    blamed = [line for line in lines if "rror" in line]
    return (blamed or lines or ["it said nothing"])[-1][-200:]
