"""An ``LLM`` of this process as something to be measured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.bench.record import Acceptance, Answer, Arrival, Settings, Task
from outrider.bench.subject import Interrupted, Request, prompt_tokens
from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.types import FinishReason, PhaseSeconds, RequestOutput, RoundTrace, StepTrace

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.models.base import TargetRunner

Clock = Callable[[], float]
"""Seconds of a monotonic clock."""


@dataclass
class _Log:
    """What has come of one request so far. ``sent`` is when its client sent it: the engine may have been busy then."""

    sent: float
    prompt_tokens: int | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)
    decode_phases: PhaseSeconds = field(default_factory=PhaseSeconds)
    output: RequestOutput | None = None
    error: str | None = None

    def observe(self, trace: RoundTrace, step: PhaseSeconds, now: float) -> None:
        if self.arrivals:
            self.decode_phases += step
        self.acceptance += Acceptance.of_round(trace.drafted, trace.kept, trace.emitted)
        self.arrivals.append(Arrival(now - self.sent, trace.emitted))

    @property
    def ended(self) -> bool:
        return self.output is not None or self.error is not None

    def answer(self) -> Answer:
        if self.output is None:
            assert self.error is not None, "a request ends with an output or an error"
            return Answer("", None, self.prompt_tokens, (), None, error=self.error)
        (answer,) = self.output.outputs
        broken = f"the answer was broken off: {answer.stop_reason}"
        return Answer(
            answer.text,
            answer.token_ids,
            self.prompt_tokens,
            tuple(self.arrivals),
            answer.finish_reason,
            self.acceptance,
            self.output.metrics.seconds,
            broken if answer.finish_reason == FinishReason.ABORT else None,
            self.decode_phases,
        )


class EngineSubject:
    """Serves requests with an LLM's own engine, a step at a time, and stamps every round's tokens as they come.

    The engine is the subject's alone while it serves. Time counts from when the client sends a request, tokenising
    included. ``setup`` joins ``details()``: what the LLM
    was made with and does not tell. ``sleep`` takes seconds of ``clock``.
    """

    def __init__(
        self,
        name: str,
        llm: LLM,
        *,
        setup: Mapping[str, Any] | None = None,
        clock: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name, self._llm, self._setup = name, llm, dict(setup or {})
        self._clock, self._sleep = clock, sleep

    @property
    def name(self) -> str:
        return self._name

    def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        """Answers in order. A request that cannot be served is an answer with ``error``; what a step raises is raised,
        an interrupt as ``Interrupted``, and nothing is left in the engine."""
        start = self._clock()
        logs = [_Log(start + request.at) for request in requests]
        waiting = deque(sorted(zip(requests, logs, strict=True), key=lambda each: each[1].sent))
        under_way: dict[str, _Log] = {}
        try:
            while waiting or under_way:
                while waiting and waiting[0][1].sent <= self._clock():
                    self._send(*waiting.popleft(), settings, under_way)
                if under_way:
                    self._step(under_way)
                elif waiting:
                    self._sleep(max(0.0, waiting[0][1].sent - self._clock()))
        except KeyboardInterrupt:
            raise Interrupted([log.answer() if log.ended else None for log in logs]) from None
        finally:
            self._drop_all()
        return [log.answer() for log in logs]

    def count_tokens(self, task: Task) -> int:
        """Tokens of the task's prompt, chat template included."""
        return len(self._tokens(task))

    def keeps_bytes(self, settings: Settings) -> bool:
        """Whether answers are promised to be plain decoding's, token for token."""
        return self._llm.engine.keeps_bytes(_params(settings, settings.max_tokens, settings.seed))

    def details(self) -> dict[str, Any]:
        """The setup, with what the engine knows. ``weight_bytes``: what a step of one row reads; None where only the
        backend knows."""
        engine, loaded = self._llm.engine, self._llm.loaded
        return {
            "engine": "outrider",
            # A folder of the user's is named, not located.
            "model": Path(loaded.files.name).name,
            "drafter": engine.drafter.name,
            "max_model_len": engine.runner.max_model_len,
            "max_num_seqs": engine.runner.max_num_seqs,
            "keeps_bytes": {
                "greedy": self.keeps_bytes(Settings(temperature=0.0)),
                "seeded": self.keeps_bytes(Settings(temperature=1.0, seed=0)),
            },
            **_backend(engine.runner),
            **self._setup,
        }

    def _send(self, request: Request, log: _Log, settings: Settings, under_way: dict[str, _Log]) -> None:
        params = _params(settings, request.task.max_tokens or settings.max_tokens, request.seed)
        try:
            tokens = self._tokens(request.task)
            log.prompt_tokens = len(tokens)
            under_way[self._llm.engine.add(tokens, params)] = log
        except OutriderError as error:
            log.error = str(error)

    def _step(self, under_way: dict[str, _Log]) -> None:
        trace: StepTrace = self._llm.engine.step()
        now = self._clock()
        for each in trace.rounds:
            under_way[each.request_id].observe(each, trace.seconds, now)
        for output in self._llm.engine.collect(under_way):
            under_way.pop(output.request_id).output = output

    def _drop_all(self) -> None:
        # Not only what is noted: an interrupt may come between a request's entry in the engine and our note of it.
        self._llm.engine.cancel_all()
        self._llm.engine.collect()

    def _tokens(self, task: Task) -> list[int]:
        return prompt_tokens(task, self._llm.loaded.tokenizer)


def _params(settings: Settings, max_tokens: int, seed: int | None) -> SamplingParams:
    return SamplingParams(
        temperature=settings.temperature, max_tokens=max_tokens, seed=seed, ignore_eos=settings.ignore_eos
    )


def _backend(runner: TargetRunner) -> dict[str, Any]:
    import torch

    from outrider.models.decoder import DecoderRunner
    from outrider.models.decoder_native import NativeForward

    if isinstance(runner, DecoderRunner) and isinstance(runner.forward, NativeForward):
        native = runner.forward.native
        return {"kernels": native.level, "threads": native.threads, "weight_bytes": runner.forward.weight_bytes}
    return {"kernels": "torch", "threads": torch.get_num_threads(), "weight_bytes": None}
