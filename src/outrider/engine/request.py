"""A user's request: its answers, and what they counted together."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.engine.metrics import RequestCounter
from outrider.engine.sequence import Sequence
from outrider.types import RequestOutput


@dataclass(frozen=True)
class Request:
    """One prompt and its ``n`` sequences."""

    id: str
    prompt: str | None
    prompt_ids: tuple[int, ...]
    sequences: tuple[Sequence, ...]
    counter: RequestCounter

    @property
    def finished(self) -> bool:
        return all(sequence.finished for sequence in self.sequences)

    def output(self) -> RequestOutput:
        """What the user sees of the request now."""
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=tuple(sequence.completion() for sequence in self.sequences),
            finished=self.finished,
            metrics=self.counter.metrics(len(self.sequences)),
        )
