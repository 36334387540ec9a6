"""OpenVINO GenAI behind a corner of the OpenAI protocol, so that it is measured like every other server.

    python peers_openvino.py FOLDER PORT THREADS [DRAFTS]     # its own environment: openvino_genai, transformers

Serves ``/v1/models`` and streamed ``/v1/completions``, greedy, one request at a time. Each chunk carries the tokens of
one callback of the engine, as text and as ids. DRAFTS is the number of tokens that prompt lookup proposes.
"""

from __future__ import annotations

import importlib
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

NGRAM = 3


class Engine:
    """A pipeline and its tokenizer."""

    def __init__(self, folder: str, threads: int, drafts: int) -> None:
        self.genai: Any = importlib.import_module("openvino_genai")
        transformers: Any = importlib.import_module("transformers")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        options: dict[str, Any] = {"prompt_lookup": True} if drafts else {}
        self.pipeline = self.genai.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=threads, **options)
        self.drafts = drafts

    def run(self, prompt: list[int], limit: int, write: Any) -> None:
        """Generate greedily; ``write`` is called with the token ids of every callback."""
        openvino: Any = importlib.import_module("openvino")
        numpy: Any = importlib.import_module("numpy")
        config = self.genai.GenerationConfig()
        config.max_new_tokens = limit
        config.do_sample = False
        config.eos_token_id = self.tokenizer.eos_token_id
        if self.drafts:
            config.num_assistant_tokens, config.max_ngram_size = self.drafts, NGRAM
        running = self.genai.StreamingStatus.RUNNING

        base: Any = self.genai.StreamerBase

        class Streamer(base):  # type: ignore[misc]
            def write(self, token: int | list[int]) -> Any:
                write([token] if isinstance(token, int) else list(token))
                return running

            def end(self) -> None:
                """Nothing is held back."""

        self.pipeline.generate(openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)), config, Streamer())


class Handler(BaseHTTPRequestHandler):
    """The two paths."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        found = self.path == "/v1/models"
        body = json.dumps({"data": [{"id": "model", "owned_by": "openvino-genai"}]} if found else {}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = self.engine.tokenizer.encode(request["prompt"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        said: list[int] = []

        def write(ids: list[int]) -> None:
            said.extend(ids)
            self._event({"choices": [{"index": 0, "text": self.engine.tokenizer.decode(ids), "token_ids": ids}]})

        try:
            self.engine.run(prompt, request["max_tokens"], write)
        except Exception as error:
            self._event({"error": {"message": f"{type(error).__name__}: {error}"}})
        ended = said[-1:] == [self.engine.tokenizer.eos_token_id]
        self._event({"choices": [{"index": 0, "text": "", "finish_reason": "stop" if ended else "length"}]})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(said)}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: dict[str, Any]) -> None:
        line = f"data: {json.dumps(data)}\n\n".encode()
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Only errors go to the log."""


def main() -> None:
    """Command line."""
    folder, port, threads, *drafts = sys.argv[1:]
    Handler.engine = Engine(folder, int(threads), int(drafts[0]) if drafts else 0)
    HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
