"""An OpenAI-compatible server over HTTP: its answers, and its streams chunk by chunk as they arrive."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from outrider.errors import ConfigError, RequestError

_CONNECT_SECONDS = 10.0
_LONGEST_WORDS = 200


@dataclass(frozen=True)
class Chunk:
    """One event of a stream, ``seconds`` after its request was sent."""

    seconds: float
    data: Mapping[str, Any]


class Server:
    """A server by its URL, with or without ``/v1``; ``timeout`` is how long it may stay silent, in seconds.

    Whatever goes wrong with a request is a ``RequestError`` of one line that holds no secret of the URL or the key.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        root = _root(url)
        self.root = str(root.copy_with(username=None, password=None))
        """The URL without ``/v1`` and without credentials."""
        self._root = str(root)
        self._timeout = timeout
        self._client = httpx2.Client(
            headers=_authorization(api_key),
            timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            # An open loop has as many connections as requests under way; a limit would make it a closed one.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )
        weakref.finalize(self, self._client.close)

    def text(self, path: str) -> str:
        """Body of a page below the root. Raises ``RequestError``."""
        try:
            response = self._client.get(self._root + path)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RequestError(self._reason(error)) from error
        self._check(response)
        return response.text

    def json(self, path: str) -> Any:
        """The same, as JSON. Raises ``RequestError``."""
        text = self.text(path)
        try:
            return json.loads(text)
        except ValueError as error:
            raise RequestError(f"{self.root}{path} gave no JSON: {_shortened(text)}") from error

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[Chunk]:
        """Send ``body``; the events that come back, up to ``[DONE]`` or the end of the stream. Raises ``RequestError``.

        Closing the iterator closes the connection, which tells a server to stop.
        """
        sent = time.perf_counter()
        try:
            with self._client.sse(self._root + path, method="POST", json=dict(body)) as events:
                self._check(events.response)
                for event in events:
                    arrived = time.perf_counter()
                    if event.data == "[DONE]":
                        return
                    if event.data:
                        yield Chunk(arrived - sent, _parsed(event))
        except httpx2.HTTPError as error:
            raise RequestError(self._reason(error)) from error
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is no valid Unicode ({error.reason})") from error

    def _check(self, response: httpx2.Response) -> None:
        if response.status_code != 200:
            response.read()
            raise RequestError(f"{self.root} answered HTTP {response.status_code}: {_words(_json_or(response.text))}")

    def _reason(self, error: Exception) -> str:
        match error:
            case httpx2.ConnectError() | httpx2.ConnectTimeout():
                return f"cannot connect to {self.root} ({_shortened(str(error))}); is the server running there?"
            case httpx2.TimeoutException():
                return f"{self.root} was silent for {self._timeout:g} s; it may be overloaded: raise the timeout"
            case httpx2.SSEError():
                return f"{self.root} sent no event stream: {_shortened(str(error))}"
            case httpx2.NetworkError() | httpx2.ProtocolError():
                return f"the connection to {self.root} broke off: {_shortened(str(error))}"
        return f"{self.root}: {_shortened(str(error))}"


def _root(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url.strip().rstrip("/").removesuffix("/v1").rstrip("/"))
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise ConfigError(
            f"endpoint {url!r} is no URL ({error}); write one such as http://localhost:8000/v1"
        ) from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise ConfigError(f"endpoint {url!r} is no server's URL; write one such as http://localhost:8000/v1")
    return parsed


def _authorization(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable():
        raise ConfigError("the API key has characters that no HTTP header can hold; copy it again")
    return {"Authorization": f"Bearer {api_key}"}


def _parsed(event: httpx2.ServerSentEvent) -> Mapping[str, Any]:
    data = _json_or(event.data)
    # Servers report what fails after the status line went out as an object in the stream.
    if event.event == "error" or (isinstance(data, Mapping) and data.get("error") is not None):
        raise RequestError(f"the server reports an error: {_words(data)}")
    if not isinstance(data, Mapping):
        raise RequestError(f"the stream holds what is no JSON object: {_shortened(event.data)}")
    return data


def _json_or(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _words(value: Any) -> str:
    """What a server says of an error: OpenAI's ``{"error": {"message": ...}}``, ``{"detail": ...}``, or anything."""
    while isinstance(value, Mapping):
        inner = next((value[key] for key in ("error", "message", "detail") if value.get(key)), None)
        value = inner if inner is not None else json.dumps(value)
    return _shortened(str(value))


def _shortened(text: str) -> str:
    line = " ".join(text.split()) or "no reason given"
    return line if len(line) <= _LONGEST_WORDS else line[: _LONGEST_WORDS - 3] + "..."
