"""Tasks from a JSON Lines file, one object a line; the kind of a row is told by its keys.

    {"question_id": 81, "category": "writing", "turns": ["first", "second"]}   Spec-Bench: the first turn, as a chat
    {"task_id": "HumanEval/0", "prompt": "def f():"}                          HumanEval: completion, category "code"
    {"prompt": "Once upon a time"}                                            completion, as in the OpenAI API
    {"messages": [{"role": "user", "content": "Hello"}]}                      chat

The last two may have a ``category`` and ``max_tokens``. Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider.bench.record import Task
from outrider.config import is_whole
from outrider.errors import ConfigError
from outrider.json_lines import LineError, json_lines

_EXPECTED = "a row is a JSON object with 'turns' (Spec-Bench), 'prompt' or 'messages'"


class _RowError(Exception):
    """What is wrong with one row."""


def read_tasks(content: bytes, name: str) -> list[Task]:
    """All rows; blank lines are skipped. Raises ConfigError naming the file and the line that cannot be used."""
    stem = Path(name).stem
    tasks: dict[str, Task] = {}
    for number, row in _rows(content, name):
        try:
            task = _task(row, stem, number)
            _check_unicode(task)
            if task.id in tasks:
                raise _RowError(f"id {task.id!r} was there before; ids tell results apart and must be unique")
        except _RowError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from None
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"{name} has no rows; {_EXPECTED}")
    return list(tasks.values())


def _rows(content: bytes, name: str) -> Iterator[tuple[int, Any]]:
    try:
        yield from json_lines(content)
    except LineError as error:
        raise ConfigError(f"{name}, line {error.number}: {_reason(error.cause)}") from None


def _reason(cause: Exception) -> str:
    if isinstance(cause, UnicodeDecodeError):
        return f"not UTF-8 text ({cause.reason} at byte {cause.start}); save it as UTF-8"
    detail = f"{cause.msg} at character {cause.colno}" if isinstance(cause, json.JSONDecodeError) else cause
    return f"not valid JSON ({detail}); {_EXPECTED}"


def _task(row: Any, stem: str, number: int) -> Task:
    if not isinstance(row, dict):
        raise _RowError(f"{_EXPECTED}, not {type(row).__name__}")
    if "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise _RowError("'turns' must be a list of texts, the first of which is asked")
        name, category = _id(row, "question_id", number), _text(row, "category")
        return Task(f"{stem}/{name}", category, _checked(turns[0], "turns"))
    if "task_id" in row:
        return Task(f"{stem}/{_id(row, 'task_id', number)}", "code", _text(row, "prompt"), chat=False)
    category = _text(row, "category") if "category" in row else stem
    max_tokens = row.get("max_tokens")
    if max_tokens is not None and not (is_whole(max_tokens) and max_tokens >= 1):
        raise _RowError(f"max_tokens={max_tokens!r} must be a whole number, 1 or more")
    chat = "messages" in row
    prompt = _only_message(row["messages"]) if chat else _text(row, "prompt")
    return Task(f"{stem}/{number}", category, prompt, chat, max_tokens)


def _only_message(messages: Any) -> str:
    match messages:
        case [{"role": "user", "content": content}]:
            return _checked(content, "content")
    raise _RowError('\'messages\' must be a list of one message, {"role": "user", "content": text}')


def _id(row: dict[str, Any], key: str, number: int) -> str:
    value = row.get(key, number)
    if not isinstance(value, str) and not is_whole(value):
        raise _RowError(f"{key!r} must be text or a whole number, not {type(value).__name__}")
    return str(value)


def _text(row: dict[str, Any], key: str) -> str:
    if key not in row:
        raise _RowError(f"no {key!r}; {_EXPECTED}")
    return _checked(row[key], key)


def _checked(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _RowError(f"{key!r} must be text that is not empty, not {str(value)[:40]!r}")
    return value


def _check_unicode(task: Task) -> None:
    try:
        f"{task.id}{task.category}{task.prompt}".encode()
    except UnicodeEncodeError as error:
        raise _RowError(f"not valid Unicode: a lone surrogate ({error.object[error.start]!r})") from None
