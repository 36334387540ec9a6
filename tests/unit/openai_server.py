"""A tiny HTTP server that says whatever a test scripts, chunk by chunk, for clients of the OpenAI protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

EVENTS = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


@dataclass
class Reply:
    """What to send: each piece is one HTTP chunk. ``broken`` hangs up where the end of the body should be."""

    pieces: Iterable[bytes]
    status: int = 200
    content_type: str = EVENTS
    broken: bool = False


def event(data: Any) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()


def delta(text: str, finish: str | None = None, chat: bool = True, **extra: Any) -> bytes:
    """One chunk of an answer; ``extra`` goes into its choice."""
    said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
    return event({"choices": [{"index": 0, **said, "finish_reason": finish, **extra}]})


def usage(completion: int, prompt: int = 5, **extra: Any) -> bytes:
    """The chunk that ends a stream when the client asked for usage."""
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}, **extra})


def answer(*texts: str, finish: str = "length") -> list[bytes]:
    """A whole answer, one token a text."""
    return [*(delta(text) for text in texts[:-1]), delta(texts[-1], finish), usage(len(texts)), DONE]


def page(text: str, status: int = 200, content_type: str = "text/plain") -> Reply:
    """A body in one piece."""
    return Reply([text.encode()], status, content_type)


def models(*ids: str, owned_by: str = "vllm") -> Reply:
    """The answer to ``/v1/models``."""
    return page(json.dumps({"data": [{"id": each, "owned_by": owned_by} for each in ids]}), 200, "application/json")


@dataclass
class Script:
    """What the server says, by path; and what it was asked, in order."""

    url: str
    pages: dict[str, Reply | Callable[[], Reply]]
    reply: Callable[[dict[str, Any]], Reply] = field(default=lambda _: Reply(answer("a", "b", "c")))
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def script(self) -> Script:
        return cast("_Server", self.server).script

    def do_GET(self) -> None:
        self.script.headers.append(dict(self.headers))
        found = self.script.pages.get(self.path, page("no such page", 404))
        self._send(found() if callable(found) else found)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.script.asked.append((self.path, body))
        self._send(self.script.reply(body))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # An empty chunk would end the body.
        for piece in filter(None, reply.pieces):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if reply.broken:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Tests want a silent server."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    script: Script

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of the server's."""


@contextmanager
def serving(*, owned_by: str = "vllm") -> Iterator[Script]:
    """A server on a free port with one model, "tiny", until the block ends."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.script = Script(
        f"http://127.0.0.1:{server.server_address[1]}", {"/v1/models": models("tiny", owned_by=owned_by)}
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
