"""From the chunks of an OpenAI-style stream to an answer: which text came when, and how many tokens it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from outrider.bench.record import Acceptance, Answer, Arrival
from outrider.bench.server import Chunk
from outrider.errors import RequestError

Counting = Literal["ids", "usage", "chunks"]
"""Where token counts come from: ids beside the text; the usage at the end, spread; one a chunk for want of both."""

TOGETHER = 5e-4
"""Chunks within this many seconds are one arrival. Some servers send a round's tokens one by one, microseconds apart,
others as one chunk; to a reader it is the same, and a round of any model takes longer."""


@dataclass(frozen=True)
class _Delta:
    """Text of one chunk, and its tokens where the server tells."""

    seconds: float
    text: str
    token_ids: tuple[int, ...] | None


class Transcript:
    """Collects the chunks of one request; reads chat and text completions, and the servers' extensions to both."""

    def __init__(self) -> None:
        self._deltas: list[_Delta] = []
        self._finish: str | None = None
        self._usage: Mapping[str, int] = {}
        self._timings: Mapping[str, Any] = {}

    def add(self, chunk: Chunk) -> None:
        """Take in one chunk. Raises ``RequestError`` for one that is no completion's."""
        try:
            self._add(chunk)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestError(f"a chunk of the stream is no completion's: {str(chunk.data)[:120]}") from error

    def _add(self, chunk: Chunk) -> None:
        self._usage = chunk.data.get("usage") or self._usage
        self._timings = chunk.data.get("timings") or self._timings
        for choice in chunk.data.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            said = choice.get("delta") or choice
            thought = said.get("reasoning_content") or said.get("reasoning") or ""
            text = thought + (said.get("content") or said.get("text") or "")
            ids = choice.get("token_ids")
            token_ids = None if ids is None else tuple(int(token) for token in ids)
            # A last chunk without text may still be a token: the one that ends the text.
            if text or token_ids or choice.get("finish_reason") == "stop":
                self._deltas.append(_Delta(chunk.seconds, text, token_ids))

    @property
    def counting(self) -> Counting:
        """How ``answer`` counts tokens."""
        total = self._usage.get("completion_tokens")
        ids = [delta.token_ids for delta in self._deltas if delta.text or delta.token_ids]
        if ids and None not in ids and total in (None, sum(len(each or ()) for each in ids)):
            return "ids"
        return "usage" if total is not None else "chunks"

    def answer(self, error: str | None = None) -> Answer:
        """What arrived so far; an answer that nothing ended has an ``error``."""
        if error is None and self._finish is None:
            error = "the stream ended before the answer did"
        if error is None and self._finish in ("abort", "error"):
            error = f"the server gave up on the request ({self._finish})"
        ids = [token for delta in self._deltas for token in delta.token_ids or ()]
        return Answer(
            text="".join(delta.text for delta in self._deltas),
            token_ids=tuple(ids) if self.counting == "ids" else None,
            prompt_tokens=self._usage.get("prompt_tokens"),
            arrivals=_arrivals(self._deltas, self._counts()),
            finish_reason=self._finish,
            acceptance=_acceptance(self._timings),
            error=error,
        )

    def _counts(self) -> list[int]:
        if self.counting == "ids":
            return [len(delta.token_ids or ()) for delta in self._deltas]
        texts = [len(delta.text) for delta in self._deltas]
        if self.counting == "chunks":
            return [min(1, length) for length in texts]
        return spread(self._usage["completion_tokens"], texts)


def spread(total: int, lengths: Sequence[int]) -> list[int]:
    """Share ``total`` tokens among chunks of text: one each, and the rest by length; the sum is exact.

    The token that ends a text is an empty last chunk's. More chunks than tokens: all by length, and some have none.
    """
    each = 1 if total >= sum(length > 0 for length in lengths) else 0
    counts = [each if length else 0 for length in lengths]
    if lengths and not lengths[-1] and total > sum(counts):
        counts[-1] = 1
    rest, whole = total - sum(counts), sum(lengths)
    if not whole:
        return [*counts[:-1], counts[-1] + rest] if counts else []
    marks = [rest * so_far // whole for so_far in accumulate(lengths)]
    return [count + mark - before for count, mark, before in zip(counts, marks, [0, *marks[:-1]], strict=True)]


def _arrivals(deltas: Sequence[_Delta], counts: Sequence[int]) -> tuple[Arrival, ...]:
    arrivals: list[Arrival] = []
    began = 0.0
    for delta, tokens in zip(deltas, counts, strict=True):
        if not tokens:
            continue
        if arrivals and delta.seconds - began <= TOGETHER:
            arrivals[-1] = Arrival(delta.seconds, arrivals[-1].tokens + tokens)
        else:
            began = delta.seconds
            arrivals.append(Arrival(delta.seconds, tokens))
    return tuple(arrivals)


def _acceptance(timings: Mapping[str, Any]) -> Acceptance | None:
    """llama-server's figures of one request, which leave out drafts where there were none.

    Every round emits one token more than it accepts, which gives the number of rounds.
    """
    if "predicted_n" not in timings:
        return None
    emitted, drafted, accepted = (int(timings.get(key, 0)) for key in ("predicted_n", "draft_n", "draft_n_accepted"))
    return Acceptance(emitted - accepted, drafted, accepted, emitted)
