"""An engine in this process as a side of an audit, with hooks to watch or to spoil its drafter and accept rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from outrider.audit.samples import Answer, Job, Progress, silent
from outrider.control.base import Controller
from outrider.draft.base import Drafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.sequence import Sequence as EngineSequence
from outrider.errors import RequestError
from outrider.types import FinishReason, RoundTrace
from outrider.verify.base import Verifier

IN_LINE: Final = 64
"""Requests that the engine holds at a time, so that it is never short of one, nor holds all of a long audit."""


@dataclass
class _Pending:
    """One job under way."""

    request: Request
    job: Job
    judged: list[bool] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        (sequence,) = self.request.sequences
        return tuple(sequence.tokens[sequence.prompt_length :])[: self.job.enough]

    @property
    def done(self) -> bool:
        enough = self.job.enough is not None and len(self.tokens) >= self.job.enough
        return enough or self.request.finished

    def observe(self, round_: RoundTrace) -> None:
        # Draft tokens that were kept and the one that replaced a refused one; a bonus token met no draft.
        self.judged += [i < round_.drafted for i in range(round_.emitted)]

    def answer(self) -> Answer:
        (sequence,) = self.request.sequences
        if sequence.finish_reason == FinishReason.ABORT:
            raise RequestError(f"{self.job.question.label}: the answer was broken off: {sequence.stop_reason}")
        return Answer(self.tokens, tuple(self.judged[: len(self.tokens)]))


class EngineSampler:
    """Runs jobs through an engine that nobody else uses meanwhile; nothing of them is left in it afterwards.

    ``verifier`` gives every sequence another accept rule, ``drafter`` and ``controller`` the engine others while jobs
    run.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        verifier: Callable[[EngineSequence], Verifier] | None = None,
        drafter: Callable[[Drafter], Drafter] | None = None,
        controller: Controller | None = None,
        progress: Progress = silent,
    ) -> None:
        self._engine = engine
        self._name = name
        self._verifier = verifier
        self._drafter = drafter
        self._controller = controller
        self._progress = progress

    def sample(self, jobs: Sequence[Job]) -> list[Answer]:
        """Answers in order; ``judged`` is told. Raises RequestError for a prompt that cannot be served."""
        for job in jobs:
            self._check(job)
        pending: dict[str, _Pending] = {}
        answers: dict[str, Answer] = {}
        order: list[str] = []
        waiting = iter(jobs)
        with self._others():
            try:
                while len(answers) < len(jobs):
                    for job in islice(waiting, IN_LINE - len(pending)):
                        request = self._add(job)
                        pending[request.id] = _Pending(request, job)
                        order.append(request.id)
                    answers |= self._step(pending)
                    self._progress(self._name, len(answers), len(jobs))
            finally:
                self._drop(pending)
        return [answers[request_id] for request_id in order]

    @contextmanager
    def _others(self) -> Iterator[None]:
        true = self._engine.drafter, self._engine.controller
        if self._drafter is not None:
            self._engine.drafter = self._drafter(true[0])
        if self._controller is not None:
            self._engine.controller = self._controller
        try:
            yield
        finally:
            self._engine.drafter, self._engine.controller = true

    def _check(self, job: Job) -> None:
        try:
            self._engine.check(job.question.ids, job.params)
        except RequestError as error:
            raise RequestError(f"{job.question.label}: {error}") from None

    def _add(self, job: Job) -> Request:
        request = self._engine.request(self._engine.add(job.question.ids, job.params, prompt=job.question.text))
        assert request is not None, "a request that was just added"
        if self._verifier is not None:
            for sequence in request.sequences:
                sequence.verifier = self._verifier(sequence)
        return request

    def _step(self, pending: dict[str, _Pending]) -> dict[str, Answer]:
        """One step of the engine; the answers that it completed, which are pending no longer."""
        trace = self._engine.step()
        for round_ in trace.rounds:
            pending[round_.request_id].observe(round_)
        done = {request_id: each for request_id, each in pending.items() if each.done}
        answers = {request_id: each.answer() for request_id, each in done.items()}
        self._drop(done)
        for request_id in done:
            del pending[request_id]
        return answers

    def _drop(self, requests: Mapping[str, _Pending]) -> None:
        for request_id in requests:
            self._engine.cancel(request_id)
        self._engine.collect(list(requests))
