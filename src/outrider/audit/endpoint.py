"""OpenAI-compatible servers as the two sides of an audit: what can be seen from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from math import isfinite, sqrt
from statistics import fmean
from typing import Any, Final

from outrider.audit.greedy import Compared, Noise, Split, compare_tokens, greedy_params
from outrider.audit.report import AuditReport, DraftCount
from outrider.audit.run import compare_laws
from outrider.audit.samples import Answer, Job, Pair, Progress, Question, Token, silent
from outrider.bench.endpoint import EndpointSubject
from outrider.bench.transcript import Transcript
from outrider.errors import RequestError
from outrider.sampling.params import SamplingParams

AT_A_TIME: Final = 8
"""Requests under way together, as many as our own engine decodes by default."""
LOGPROBS: Final = 5
"""Alternatives asked for at each place; the most that the completions API allows."""


class EndpointSampler:
    """A server's ``/v1/completions``. Tokens are their texts, or single characters where it reports no logprobs."""

    def __init__(self, subject: EndpointSubject, name: str, progress: Progress = silent) -> None:
        self._subject = subject
        self._name = name
        self._progress = progress

    def sample(self, jobs: Sequence[Job]) -> list[Answer]:
        """Answers in order, a few requests at a time. Raises RequestError when one fails."""
        results: dict[int, Answer | BaseException] = {}
        numbers = count()
        stopped = threading.Event()

        def work() -> None:
            # `next` of a count is one step of the interpreter: no two threads get the same job.
            while (i := next(numbers)) < len(jobs) and not stopped.is_set():
                try:
                    results[i] = self._answer(jobs[i])
                except BaseException as error:
                    results[i] = error
                    stopped.set()
                self._progress(self._name, len(results), len(jobs))

        # Daemons: after an interrupt nothing waits for a server that is silent.
        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_A_TIME, len(jobs)))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stopped.set()
        for result in results.values():
            if isinstance(result, BaseException):
                raise result
        return [result for i in range(len(jobs)) if isinstance(result := results[i], Answer)]

    def _answer(self, job: Job) -> Answer:
        transcript = Transcript()
        told: list[tuple[str, Mapping[str, float]]] = []
        reports = False
        with closing(self._subject.server.stream("/v1/completions", self._body(job))) as chunks:
            for chunk in chunks:
                transcript.add(chunk)
                for choice in chunk.data.get("choices") or ():
                    found = read_logprobs(choice.get("logprobs"))
                    reports |= bool(found)
                    told += found or _untold(choice.get("text"))
        answer = transcript.answer()
        if answer.error is not None:
            raise RequestError(f"{job.question.label}: {answer.error}")
        if not reports:
            return Answer(tuple(answer.text[: job.enough]))
        tokens, logprobs = zip(*told[: job.enough], strict=True)
        return Answer(tokens, logprobs=logprobs)

    def _body(self, job: Job) -> dict[str, Any]:
        params = job.params
        # A round of speculation is cut at the limit, so room is left for one draft behind the last token looked at.
        limit = params.max_tokens if job.enough is None else job.enough + 1
        body: dict[str, Any] = {
            "model": self._subject.model,
            "prompt": job.question.text,
            "stream": True,
            "logprobs": LOGPROBS,
            "max_tokens": limit,
            "temperature": params.temperature,
            "top_p": params.top_p,
        }
        # Not OpenAI's: sent only where they are wanted or known, so that any server will do.
        return (
            body
            | dict(self._subject.unfiltered)
            | {
                name: value
                for name, value, unset in (
                    ("seed", params.seed, None),
                    ("top_k", params.top_k, 0),
                    ("min_p", params.min_p, 0.0),
                )
                if value != unset
            }
        )


class EndpointExplainer:
    """Margins and noise from the log-probabilities that both servers reported along the same tokens."""

    def noise(self, answers: Sequence[Compared]) -> Noise | None:
        """Largest difference between the two servers' log-probabilities of a token, after the same prefix.

        Raises RequestError when only one of them reports any: their tokens cannot be compared then.
        """
        if any((each.plain.logprobs is None) != (each.speculative.logprobs is None) for each in answers):
            raise RequestError("one server reports logprobs and the other does not; allow them on both, or on neither")
        moved = [
            [abs(a[token] - b[token]) for token in a.keys() & b.keys()]
            for each in answers
            for a, b in zip(*(side[: each.count] for side in _reported(each)), strict=False)
        ]
        told = [moves for moves in moved if moves]
        if not told:
            return None
        overall = max(sqrt(fmean(move**2 for move in moves)) for moves in told)
        return Noise(max(map(max, told)), 0.0, overall, len(told))

    def margin(self, compared: Compared, split: Split) -> float | None:
        """None where either token is not among those that the plain server reported."""
        plain, _ = _reported(compared)
        here = plain[split.position] if split.position < len(plain) else {}
        known = [here.get(token) for token in (split.plain, split.speculative) if isinstance(token, str)]
        return abs(known[0] - known[1]) if len(known) == 2 and known[0] is not None and known[1] is not None else None

    def text(self, token: Token) -> str:
        return str(token)


@dataclass(frozen=True)
class Endpoint:
    """A server that was reached. ``subject`` knows its model and reads its counters."""

    subject: EndpointSubject

    @classmethod
    def find(cls, url: str, model: str | None = None, api_key: str | None = None) -> Endpoint:
        """Raises ConfigError for a server that cannot be reached or, without ``model``, has not exactly one."""
        return cls(EndpointSubject(url, url, model=model, api_key=api_key))

    @property
    def model(self) -> str:
        return self.subject.model

    def sampler(self, name: str, progress: Progress) -> EndpointSampler:
        return EndpointSampler(self.subject, name, progress)

    def details(self) -> Mapping[str, Any]:
        """Its URL, model, kind, and the drafts it made since it was found, where it counts them."""
        told = self.subject.details()
        return {name: told[name] for name in ("url", "model", "server", "acceptance")}


def audit_endpoints(
    plain: Endpoint,
    speculative: Endpoint,
    questions: Sequence[Question],
    params: SamplingParams,
    samples: int,
    progress: Progress = silent,
) -> AuditReport:
    """Greedy tokens and sampled laws of two servers. The accept rule cannot be reached, nor a mistake planted.

    Raises RequestError when a server fails a request, or the two tell tokens in different ways.
    """
    pair = Pair(plain.sampler("plain server", progress), speculative.sampler("speculative server", progress))
    greedy = compare_tokens(pair, questions, greedy_params(params), EndpointExplainer(), exact=False)
    check = None if params.greedy else compare_laws(pair, questions, params, samples)[0]
    return AuditReport(greedy, distribution=check, drafts=_count_drafts(plain, speculative))


def read_logprobs(reported: Any) -> list[tuple[str, Mapping[str, float]]]:
    """Tokens of one chunk, each with its likeliest alternatives: the completions API's shape, or that of chats.

    Raises RequestError for anything else.
    """
    try:
        if not reported:
            return []
        if reported.get("content") is not None:
            return [
                (str(at["token"]), _finite((each["token"], each["logprob"]) for each in at.get("top_logprobs") or ()))
                for at in reported["content"]
            ]
        tokens = reported.get("tokens") or []
        likeliest = reported.get("top_logprobs") or [{}] * len(tokens)
        return [(str(token), _finite((top or {}).items())) for token, top in zip(tokens, likeliest, strict=True)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"the server's logprobs cannot be read: {str(reported)[:120]}") from error


def _count_drafts(plain: Endpoint, speculative: Endpoint) -> DraftCount | None:
    """None where the speculative server does not count."""
    drafted, own = (each.details()["acceptance"] for each in (speculative, plain))
    return None if drafted is None else DraftCount(drafted["drafted"], 0 if own is None else own["drafted"])


def _untold(text: str | None) -> list[tuple[str, Mapping[str, float]]]:
    """llama-server tells nothing of a draft token that it kept, which is a chunk of its own there."""
    return [(text, {})] if text else []


def _finite(likeliest: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    """Tokens that are possible: some servers write -Infinity, or NaN, for those that are not."""
    return {str(token): float(logprob) for token, logprob in likeliest if isfinite(float(logprob))}


def _reported(compared: Compared) -> tuple[Sequence[Mapping[str, float]], Sequence[Mapping[str, float]]]:
    return compared.plain.logprobs or (), compared.speculative.logprobs or ()
