"""One answer in the making: its tokens, how it ends, and what it has counted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from outrider.engine.detokenizer import Detokenizer, TextDecoder
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import KeyedRandomness
from outrider.types import CompletionOutput, FinishReason, Logprob
from outrider.verify.base import Verifier


@dataclass(frozen=True)
class Limits:
    """Where a sequence must end, whatever its parameters say."""

    eos_ids: frozenset[int]
    max_model_len: int


class Sequence:
    """Request state of one answer. ``append`` is the only place where tokens are committed."""

    def __init__(
        self,
        sequence_id: int,
        request_id: str,
        index: int,
        prompt: tuple[int, ...],
        params: SamplingParams,
        verifier: Verifier,
        randomness: KeyedRandomness,
        limits: Limits,
        decoder: TextDecoder,
    ) -> None:
        self.id = sequence_id
        self.request_id = request_id
        self.index = index
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.verifier = verifier
        self.randomness = randomness
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.detokenizer = Detokenizer(decoder, prompt, params.stop)
        eos_ids = frozenset() if params.ignore_eos else limits.eos_ids
        self.stop_ids = eos_ids | frozenset(params.stop_token_ids)
        self._eos_ids = eos_ids
        self._max_model_len = limits.max_model_len

    @property
    def generated(self) -> int:
        """Tokens committed after the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def room(self) -> int:
        """Tokens that may still be emitted before a length limit."""
        by_model = self._max_model_len - len(self.tokens)
        if self.params.max_tokens is None:
            return by_model
        return min(self.params.max_tokens - self.generated, by_model)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def append(self, tokens: Seq[int], logprobs: Seq[dict[int, Logprob]] | None = None) -> int:
        """Commit tokens up to the first one that ends the sequence; returns how many were committed.

        ``logprobs`` has a row for every token, committed or not.
        """
        if self.logprobs is not None:
            # An interrupted commit may have left a row too many.
            del self.logprobs[self.generated :]
        count = 0
        for token in tokens:
            if self.logprobs is not None and logprobs is not None:
                self.logprobs.append(logprobs[count])
            self.tokens.append(token)
            count += 1
            self._check_end(token)
            if self.finished:
                break
        return count

    def abort(self, reason: str | None = None) -> None:
        """End the sequence where it stands; ``reason`` becomes its ``stop_reason``."""
        if not self.finished:
            self.finish_reason, self.stop_reason = FinishReason.ABORT, reason
            self.detokenizer.finish()

    def completion(self) -> CompletionOutput:
        """What the user sees of this sequence now."""
        chosen = self.tokens[self.prompt_length :]
        logprobs = None if self.logprobs is None else tuple(self.logprobs[: len(chosen)])
        total = None
        if logprobs is not None:
            total = sum(at[token].logprob for at, token in zip(logprobs, chosen, strict=True))
        text = self.detokenizer.text
        return CompletionOutput(self.index, text, tuple(chosen), self.finish_reason, self.stop_reason, logprobs, total)

    def _check_end(self, token: int) -> None:
        # A stop inside the budget wins over the length limit it may coincide with.
        early = self.generated < self.params.min_tokens
        is_stop = token in self.stop_ids and not early
        stop_text = None if is_stop else self.detokenizer.push(token, watch=not early)
        if is_stop:
            self.finish_reason = FinishReason.STOP
            self.stop_reason = None if token in self._eos_ids else token
        elif stop_text is not None:
            self.finish_reason = FinishReason.STOP
            self.stop_reason = stop_text
        elif self.room <= 0:
            self.finish_reason = FinishReason.LENGTH
        if self.finished and stop_text is None:
            # What was held back becomes text now, and may be what a stop string was waiting for.
            late = self.detokenizer.finish(watch=not early)
            if late is not None and not is_stop:
                self.finish_reason, self.stop_reason = FinishReason.STOP, late
