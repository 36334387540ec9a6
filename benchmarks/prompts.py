"""Benchmark prompts: a file of the user's, or a few of our own."""

from __future__ import annotations

from pathlib import Path

from outrider.bench.prompt_file import read_tasks
from outrider.errors import ConfigError

BUILT_IN = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain to a ten-year-old why the sky is blue.",
    "Translate into French: The train to the coast leaves at half past nine, and we should not miss it.",
    "List the planets of the solar system with one fact about each.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
    "A shop sells pens at 3 euros and books at 12 euros. Ana buys 4 pens and 2 books. How much does she pay?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Summarise: Bees live in colonies. Each colony has one queen. Workers collect nectar and make honey. "
    "In winter the bees stay in the hive and eat the honey they made in summer.",
)


def load_prompts(path: Path | None, limit: int | None) -> list[str]:
    """Prompts of a JSON Lines file (see ``outrider.bench.prompt_file``), the first turn of each row."""
    if path is None:
        return list(BUILT_IN[:limit])
    if not path.is_file():
        raise ConfigError(f"--prompts {path}: no such file; leave it out to use the built-in prompts")
    return [task.prompt for task in read_tasks(path.read_bytes(), path.name)][:limit]
