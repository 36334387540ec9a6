"""A progress bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """One bar for whatever is being done: what, how much of it is done, of how much. Nothing where no terminal is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        bar = bars.add_task("")
        # Names come from folders and URLs; a bracket in them is no markup.
        yield lambda what, done, total: bars.update(bar, description=escape(what), completed=done, total=total)
