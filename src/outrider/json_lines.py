"""JSON Lines: one value a line, blank lines skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


class LineError(Exception):
    """Line ``number`` is not JSON in UTF-8; its cause says why."""

    def __init__(self, number: int, cause: Exception) -> None:
        super().__init__(f"line {number}: {cause}")
        self.number, self.cause = number, cause


def json_lines(content: bytes) -> Iterator[tuple[int, Any]]:
    """Values with their line numbers, from 1. Raises LineError when it comes to a line that holds none."""
    # Split as bytes: a JSON string may hold characters that str.splitlines takes for the end of a line.
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode()
            if not text.strip():
                continue
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LineError(number, error) from error
        yield number, value
