"""The `outrider` command. Results go to stdout, messages to stderr; a user's mistake is one line and exit code 2."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence

import typer

from outrider.cli.audit import audit
from outrider.cli.bench import bench_app
from outrider.cli.chat import chat
from outrider.cli.doctor import doctor
from outrider.cli.generate import generate
from outrider.cli.plan import plan
from outrider.cli.pull import pull
from outrider.cli.train import train_app
from outrider.errors import OutriderError

USER_ERROR = 2
INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def build_app() -> typer.Typer:
    """The command tree; built on call, so that importing this module does nothing."""
    app = typer.Typer(
        name="outrider",
        help="Exact speculative decoding: language models generate faster and say the same bytes.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in (generate, chat, audit, plan, pull, doctor):
        app.command(command.__name__)(command)
    app.add_typer(bench_app(), name="bench")
    app.add_typer(train_app(), name="train")
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    command = typer.main.get_command(build_app())
    try:
        result = command.main(list(arguments) or ["--help"], prog_name="outrider", standalone_mode=False)
    except OutriderError as error:
        return _fail(str(error), USER_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno not in _NO_ROOM:
            raise
        # Whoever reads our output has left, or has no room; Python must not try to flush it again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else _fail(f"cannot write: {error.strerror}", 1)
    except Exception as error:
        # Usage errors of the option parser carry their own one-line message; anything else is a bug of ours.
        if not hasattr(error, "format_message"):
            raise
        return _fail(f"{error.format_message()} (see: outrider --help)", USER_ERROR)
    # Some versions of typer turn an interrupt into its exit code themselves.
    if result == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"outrider: {' '.join(message.split())}", file=sys.stderr)
    return code


def main() -> None:
    """What the `outrider` script does."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character must not end the answer.
            stream.reconfigure(errors="replace")
    # Told to stop, we leave through every `finally`: no child process and no partial file stays behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    sys.exit(run(sys.argv[1:]))


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
