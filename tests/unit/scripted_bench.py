"""Engines whose every step takes a scripted time on a fake clock, and whose drafts are kept by script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from outrider.bench.record import Answer, Arrival, Settings, Task
from outrider.control.fixed import FixedController
from outrider.engine.engine import Engine
from outrider.llm import LLM
from outrider.models.toy import ToyRunner
from outrider.testing import ScriptedDrafter

if TYPE_CHECKING:
    from outrider.bench.subject import Request
    from outrider.models.base import Feed, Scores
    from outrider.types import RequestState
    from tests.fake_model import FakeModels

PassSeconds = Callable[[Sequence["Feed"]], float]
PLAIN, WIDE, PER_PROMPT_TOKEN = 0.010, 0.012, 0.001
GREEDY = Settings(max_tokens=24, ignore_eos=True)


class FakeClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "sleeping for nothing is a busy loop"
        self.slept.append(seconds)
        self.now += seconds


class RecordingSubject:
    """Answers at once, two tokens a request, and remembers who was asked what, in what order."""

    def __init__(self, name: str, calls: list[tuple[str, list[Request], Settings]], fail_on: int | None = None) -> None:
        self.name = name
        self.calls = calls
        self.fail_on = fail_on

    def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        self.calls.append((self.name, list(requests), settings))
        if len(self.calls) == self.fail_on:
            raise KeyboardInterrupt
        return [
            Answer(request.task.prompt, (1, 2), 3, (Arrival(1.0, 1), Arrival(2.0, 1)), "stop") for request in requests
        ]

    def details(self) -> dict[str, object]:
        return {}


def pass_seconds(feeds: Sequence[Feed]) -> float:
    """A pass takes longer with drafts to check than without, and for every token of a prompt but the last."""
    width = WIDE if any(feed.rows > 1 for feed in feeds) else PLAIN
    return width + PER_PROMPT_TOKEN * sum(len(feed.tokens) - feed.rows for feed in feeds)


def true_seconds(task: Task, tokens: int, kept: int, k: int) -> float:
    """What ``pass_seconds`` gives for one answer, counted on its own: a round drafts k tokens while there is room."""
    seconds, left = PER_PROMPT_TOKEN * (len(task.prompt) - 1), tokens
    while left > 0:
        drafted = min(k, left - 1)
        seconds += WIDE if drafted else PLAIN
        left -= min(kept, drafted) + 1
    return seconds


def toy_llm(models: FakeModels, clock: FakeClock, seconds: PassSeconds = pass_seconds, k: int = 0) -> LLM:
    """Plain for k = 0; else every round drafts k tokens, as many of them right as the prompt's first digit says."""

    class ClockedRunner(ToyRunner):
        def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
            clock.now += seconds(feeds)
            return super().score(feeds, hidden, layers)

    models.runner_class = ClockedRunner
    llm = LLM("toy", speculative_config=None)
    if k:
        loaded = llm.loaded
        assert isinstance(loaded.runner, ToyRunner)
        drafter = ScriptedDrafter(_script(loaded.runner))
        llm.engine = Engine(loaded.runner, drafter, FixedController(k), loaded.tokenizer)
    return llm


def _script(runner: ToyRunner) -> Callable[[RequestState, int], list[int]]:
    def script(sequence: RequestState, budget: int) -> list[int]:
        right = runner.model.greedy(sequence.tokens, budget)
        first = chr(sequence.tokens[0])
        kept = int(first) if first.isdecimal() else 0
        return right[:kept] + [(token + 1) % 257 for token in right[kept:]]

    return script


def completions(*kept: int) -> list[Task]:
    """A completion task for each digit, which is how many drafts of a round are right."""
    return [Task(f"t/{i}", f"kept {each}", f"{each} of task {i:03d}", chat=False) for i, each in enumerate(kept)]
