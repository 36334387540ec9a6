"""`outrider pull`: fetch demo models ahead of their first use."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.models.registry import known_names


def pull(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help=f"Demo models: {known_names()}.")],
    check: Annotated[bool, typer.Option("--check", help="Hash files that are already here.")] = False,
) -> None:
    """Fetch demo models and print where they are, one path a line."""
    from outrider.errors import ModelError
    from outrider.models.pull import pull as pull_model
    from outrider.models.registry import DEMO_MODELS

    unknown = [name for name in names if name not in DEMO_MODELS]
    if unknown:
        # Before the first byte of the others is fetched.
        raise ModelError(f"unknown demo model {unknown[0]!r}; known: {known_names()}")
    for name in names:
        typer.echo(pull_model(name, check=check))
