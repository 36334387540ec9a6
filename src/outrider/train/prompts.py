"""Training rows from JSON Lines files, as token ids of the target; the kind of a row is told by its keys.

    {"messages": [{"role": "user", "content": "Hello"}]}     chat
    {"question": "How many ...?"}                            one user turn (GSM8K)
    {"prompt": "Translate: ..."}                             one user turn
    {"text": "Once upon a time, ..."}                        plain text, learnt as it stands

All but plain text is continued by the target. Other keys, an answer among them, are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider.json_lines import LineError, json_lines
from outrider.prompts import as_messages

if TYPE_CHECKING:
    from outrider.models.tokenizer import Tokenizer

_EXPECTED = "a row is a JSON object with 'messages', 'question', 'prompt' or 'text'"


@dataclass(frozen=True)
class Row:
    """One training row: token ids, and whether the target is to continue them."""

    tokens: tuple[int, ...]
    open: bool


def read_rows(paths: Sequence[Path], tokenizer: Tokenizer) -> list[Row]:
    """Rows of all files in order; blank lines are skipped. Raises ConfigError naming the file and line."""
    rows = [_row(value, where, tokenizer) for path in paths for value, where in _values(path)]
    if not rows:
        raise ConfigError(f"{', '.join(map(str, paths))}: no rows; {_EXPECTED}")
    return rows


def _values(path: Path) -> Iterator[tuple[Any, str]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        for number, value in json_lines(content):
            yield value, f"{path}, line {number}"
    except LineError as error:
        raise ConfigError(f"{path}, line {error.number}: not JSON in UTF-8 ({error.cause}); {_EXPECTED}") from None


def _row(value: Any, where: str, tokenizer: Tokenizer) -> Row:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {_EXPECTED}, not {type(value).__name__}")
    if "messages" in value:
        return Row(tuple(tokenizer.chat(as_messages(value["messages"]))), open=True)
    for key in ("question", "prompt", "text"):
        if key in value:
            text = value[key]
            if not isinstance(text, str) or not text.strip():
                raise ConfigError(f"{where}: {key!r} must be text that is not empty, not {str(text)[:40]!r}")
            if key == "text":
                return Row(tuple(tokenizer.encode(text)), open=False)
            return Row(tuple(tokenizer.chat([{"role": "user", "content": text}])), open=True)
    raise ConfigError(f"{where}: {_EXPECTED}")
