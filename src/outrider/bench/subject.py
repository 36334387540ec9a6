"""What can be measured: anything that answers tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outrider.bench.record import Answer, Settings, Task

if TYPE_CHECKING:
    from outrider.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Request:
    """A task to be sent ``at`` so many seconds after the start; ``seed`` is its own."""

    task: Task
    at: float = 0.0
    seed: int | None = None


class Interrupted(KeyboardInterrupt):
    """Serving was broken off by the user. ``answers``: those that were complete, None for the others, in order."""

    def __init__(self, answers: Sequence[Answer | None]) -> None:
        super().__init__()
        self.answers = answers


class Subject(Protocol):
    """An engine in one configuration.

    A request that fails is an ``Answer`` with ``error`` set: it loses no other request. One that can tell what was
    complete when it was interrupted raises ``Interrupted``.
    """

    @property
    def name(self) -> str:
        """Title of its rows, unique in a run."""
        ...

    def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        """Send each request when its time comes, whatever is still being answered; answers in order."""
        ...

    def details(self) -> Mapping[str, Any]:
        """How it is set up, and what it tells of itself as a whole, in plain JSON."""
        ...


def prompt_tokens(task: Task, tokenizer: Tokenizer) -> list[int]:
    """The task's prompt as the model of that tokenizer reads it, chat template included."""
    return tokenizer.chat([{"role": "user", "content": task.prompt}]) if task.chat else tokenizer.encode(task.prompt)
