"""Any OpenAI-compatible server as a subject of a benchmark."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from outrider.bench.prometheus import acceptance_between
from outrider.bench.record import Answer, Settings
from outrider.bench.server import Server
from outrider.bench.subject import Request
from outrider.bench.transcript import Counting, Transcript
from outrider.errors import ConfigError, RequestError

# By "owned_by" of /v1/models: servers that take vLLM's additions to the API.
_EXTENDED = ("vllm", "llamacpp", "outrider")
_WITH_IDS = ("vllm", "outrider")
# Servers of their own accord filter and penalise (llama-server's top_k 40; a checkpoint's generation_config).
_UNFILTERED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


class EndpointSubject:
    """A server by its URL (with or without ``/v1``), measured as its clients see it.

    ``model``: None takes the server's only one. ``chat``: True and False overrule every task's own. ``extra_body`` is
    merged into each request last. ``timeout``: seconds the server may stay silent, time in its queue included.
    Raises ``ConfigError`` for a server that cannot be reached or does not have the model.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        chat: bool | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
    ) -> None:
        self._name = name
        self.server = Server(url, api_key, timeout)
        self._model, self._kind = _find_model(self.server, model)
        self._chat = chat
        self._extra_body = dict(extra_body or {})
        self._before = _metrics(self.server)
        self._counting: Counter[Counting] = Counter()
        self._errors = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def model(self) -> str:
        """The model's name on the server."""
        return self._model

    @property
    def unfiltered(self) -> Mapping[str, Any]:
        """What a request says so that the server samples from the model's own law; empty where it may be refused."""
        return _UNFILTERED if self._kind in _EXTENDED else {}

    def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        """Send each request at its time, on a connection of its own; answers in order.

        Raises ``ConfigError`` for ``ignore_eos`` on a server that is not known to take it.
        """
        self._check(settings)
        results: dict[int, tuple[Answer, Counting] | BaseException] = {}
        left = threading.Event()

        def work(i: int) -> None:
            try:
                results[i] = self._answer(requests[i], settings, left)
            except BaseException as error:
                results[i] = error

        # Daemons: after an interrupt nothing waits for a server that is silent.
        threads = {i: threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(requests))}
        start = time.perf_counter()
        try:
            for i in sorted(threads, key=lambda i: requests[i].at):
                time.sleep(max(0.0, start + requests[i].at - time.perf_counter()))
                threads[i].start()
            for thread in threads.values():
                thread.join()
        finally:
            left.set()
        return [self._counted(results[i]) for i in range(len(requests))]

    def details(self) -> Mapping[str, Any]:
        """The server, how tokens were counted, and the drafts of everything it served since this was constructed."""
        after = _metrics(self.server)
        acceptance = acceptance_between(self._before, after) if self._before and after else None
        return {
            "url": self.server.root,
            "model": self._model,
            "server": self._kind,
            "extra_body": self._extra_body,
            "token_counts": dict(self._counting),
            "errors": self._errors,
            "acceptance": None if acceptance is None else asdict(acceptance) | {"tau": acceptance.tau},
        }

    def _check(self, settings: Settings) -> None:
        if settings.ignore_eos and self._kind not in _EXTENDED and "ignore_eos" not in self._extra_body:
            raise ConfigError(
                f"{self.server.root} ({self._kind}) is not known to take ignore_eos; leave it out, or give it in "
                "extra_body if the server does"
            )

    def _answer(self, request: Request, settings: Settings, left: threading.Event) -> tuple[Answer, Counting]:
        transcript, error = Transcript(), None
        path, body = self._body(request, settings)
        try:
            with closing(self.server.stream(path, body)) as chunks:
                for chunk in chunks:
                    transcript.add(chunk)
                    if left.is_set():
                        raise RequestError("interrupted")
        except RequestError as failure:
            error = str(failure)
        return transcript.answer(error), transcript.counting

    def _counted(self, result: tuple[Answer, Counting] | BaseException) -> Answer:
        if isinstance(result, BaseException):
            raise result
        answer, counting = result
        self._counting[counting] += 1
        self._errors += answer.error is not None
        return answer

    def _body(self, request: Request, settings: Settings) -> tuple[str, dict[str, Any]]:
        task = request.task
        chat = task.chat if self._chat is None else self._chat
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": task.prompt}]} if chat else {"prompt": task.prompt}
        )
        body = asked | {
            "model": self._model,
            "max_tokens": settings.max_tokens if task.max_tokens is None else task.max_tokens,
            "temperature": settings.temperature,
            "top_p": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.seed is not None:
            body["seed"] = request.seed
        body |= self.unfiltered
        if self._kind in _EXTENDED:
            body["ignore_eos"] = settings.ignore_eos
        if self._kind in _WITH_IDS:
            body["return_token_ids"] = True
        return "/v1/chat/completions" if chat else "/v1/completions", body | self._extra_body


def _find_model(server: Server, wanted: str | None) -> tuple[str, str]:
    """Name of the model, and what kind of server says that it owns it."""
    try:
        listed = server.json("/v1/models")
        models = {str(each["id"]): str(each.get("owned_by") or "unknown") for each in listed["data"]}
    except RequestError as error:
        raise ConfigError(f"{error} (asked for /v1/models: check the URL and the API key)") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{server.root}/v1/models lists no models; is it an OpenAI-compatible server?") from error
    shown = ", ".join(list(models)[:8])
    if wanted is None and len(models) != 1:
        raise ConfigError(f"{server.root} has {len(models)} models ({shown}); name the one to measure")
    if wanted is not None and wanted not in models:
        raise ConfigError(f"{server.root} has no model {wanted!r}; it has {shown or 'none'}")
    name = next(iter(models)) if wanted is None else wanted
    return name, models[name]


def _metrics(server: Server) -> str | None:
    try:
        return server.text("/metrics")
    except RequestError:
        return None
