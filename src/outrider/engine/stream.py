"""What each step added to a request, as chunks a user can print."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.engine.request import Request
from outrider.types import StreamChunk


class StreamCursor:
    """Remembers how much of every answer has been handed out."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._chars = [0] * len(request.sequences)
        self._tokens = [0] * len(request.sequences)
        self._closed = [False] * len(request.sequences)

    def chunks(self) -> Iterator[StreamChunk]:
        """New text and tokens since the last call; the last chunk of the last answer carries the output."""
        for i, seq in enumerate(self._request.sequences):
            if self._closed[i]:
                continue
            end = seq.detokenizer.visible(seq.finished)
            text = seq.detokenizer.text[self._chars[i] : end]
            token_ids = tuple(seq.tokens[seq.prompt_length + self._tokens[i] :])
            self._chars[i] = max(end, self._chars[i])
            self._tokens[i] += len(token_ids)
            self._closed[i] = seq.finished
            if text or token_ids or seq.finished:
                output = self._request.output() if all(self._closed) else None
                yield StreamChunk(seq.index, text, token_ids, seq.finish_reason, output)
