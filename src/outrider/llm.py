"""LLM: load a model once, then generate, stream or chat. Names and shapes are vLLM's."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from outrider.calibrate.cache import cached_curve, curve_key
from outrider.calibrate.glance import glance
from outrider.config import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    EngineConfig,
    SpeculativeConfig,
    check_dtype,
    check_quantization,
    parse_speculative_config,
)
from outrider.control.base import Controller
from outrider.control.fixed import FixedController
from outrider.control.goodput import GoodputController
from outrider.control.step_cost import StepCost
from outrider.draft.build import build_drafter
from outrider.engine.engine import Engine
from outrider.engine.stream import StreamCursor
from outrider.errors import RequestError
from outrider.models.load import LoadedModel, load_runner
from outrider.prompts import Message, Prompt, as_conversations, as_messages, as_params, as_prompts, as_token_ids
from outrider.sampling.params import SamplingParams
from outrider.types import RequestOutput, StreamChunk

_USUAL_CONTEXT = 512
"""Tokens of a sequence for which draft lengths are chosen; steps correct what they cost."""

SpeculativeArgument = str | Mapping[str, Any] | SpeculativeConfig | None


@dataclass(frozen=True)
class _Checked:
    """A prompt that can be served."""

    text: str | None
    tokens: list[int]
    params: SamplingParams


class LLM:
    """A target model with its drafter, ready to serve.

    ``speculative_config``: ``"auto"`` (the best drafters there are for the model, plain decoding where its cache cannot
    be rolled back), None (plain decoding), or vLLM's dictionary.

    ``quantization`` needs the native kernels and a model of our own decoder: "int8" (int8 weights, one scale an
    output; activations in ``dtype``), "int8-dynamic" (int8 activations too: fastest), or "gguf" (a GGUF file's Q8_0,
    Q4_0 and Q4_1 matrices as they are stored). None: weights in ``dtype``.

    Raises ConfigError for settings before anything is read, then ModelError,
    FetchError or CapabilityError for models that cannot be had or do not go together.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        dtype: str = DEFAULT_DTYPE,
        quantization: str | None = None,
        speculative_config: SpeculativeArgument = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = EngineConfig.max_num_seqs,
        max_num_batched_tokens: int = EngineConfig.max_num_batched_tokens,
        trust_remote_code: bool = False,
    ) -> None:
        # Settings first: a typo is reported before anything is downloaded or read.
        parse_speculative_config(speculative_config)
        self._config = EngineConfig(max_num_seqs, max_num_batched_tokens)
        self._dtype = check_dtype(dtype)
        check_quantization(quantization)
        self._trust_remote_code = trust_remote_code
        self._loaded = load_runner(
            model,
            dtype=self._dtype,
            quantization=quantization,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            trust_remote_code=trust_remote_code,
        )
        self._named = (model, self._dtype, quantization)
        # Of this model, so for all that share its weights.
        self._step_seconds: dict[int, float] = {}
        # One step at a time, also when several threads generate; they then share the batch.
        self._lock = threading.RLock()
        self._siblings: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._sequence_ids = count()
        self.engine = self._build_engine(speculative_config)

    def with_speculation(self, speculative_config: SpeculativeArgument) -> LLM:
        """A second LLM over the same weights with another drafter (None: plain).

        The two share KV slots: while one has a request under way, the other refuses to start.
        """
        other = copy.copy(self)
        other.engine = other._build_engine(speculative_config)
        return other

    @property
    def loaded(self) -> LoadedModel:
        """The runner, its tokenizer and where they came from."""
        return self._loaded

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt (text or token ids), in order.

        All prompts are checked before any work: RequestError names the first that cannot be served.
        """
        batch = as_prompts(prompts)
        params = as_params(sampling_params, len(batch))
        checked = []
        for i, (prompt, each) in enumerate(zip(batch, params, strict=True)):
            try:
                checked.append(self._checked(prompt, each))
            except RequestError as error:
                raise RequestError(f"prompt {i}: {error}" if len(batch) > 1 else str(error)) from None
        return self._run(self._add(checked))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[StreamChunk]:
        """Answer one prompt chunk by chunk; closing the iterator cancels the request."""
        (params,) = as_params(sampling_params, 1)
        return self._stream(self._checked(prompt, params))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template."""
        return self.generate([self.chat_tokens(each) for each in as_conversations(messages)], sampling_params)

    def chat_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ready for ``generate`` or ``stream``."""
        return self._loaded.tokenizer.chat(as_messages(messages))

    # --- helpers ------------------------------------------------------------------------------------------

    def _build_engine(self, speculative_config: SpeculativeArgument) -> Engine:
        can_roll_back = self._loaded.runner.capabilities.rollback == "truncate"
        speculation = parse_speculative_config(speculative_config, can_roll_back)
        drafter = build_drafter(
            speculation,
            self._loaded,
            dtype=self._dtype,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            trust_remote_code=self._trust_remote_code,
        )
        engine = Engine(
            self._loaded.runner,
            drafter,
            self._controller(speculation),
            self._loaded.tokenizer,
            self._config,
            speculation.rejection_sample_method if speculation else "auto",
            self._sequence_ids,
        )
        self._siblings.add(engine)
        return engine

    def _controller(self, speculation: SpeculativeConfig | None) -> Controller:
        if speculation is None:
            return FixedController(0)
        if speculation.num_speculative_tokens is not None:
            return FixedController(speculation.num_speculative_tokens)
        return GoodputController(StepCost(self._seconds_by_rows()))

    def _seconds_by_rows(self) -> Mapping[int, float]:
        """Of this model's passes, as calibrated, or as seen at a glance where nothing is under way."""
        curve = cached_curve(curve_key(*self._named))
        if curve is not None:
            return dict(enumerate(curve.seconds_by_rows(_USUAL_CONTEXT), start=1))
        with self._lock:
            if not self._step_seconds and not any(engine.has_work for engine in self._siblings):
                self._step_seconds.update(glance(self._loaded.runner))
        return self._step_seconds

    def _checked(self, prompt: Prompt, params: SamplingParams) -> _Checked:
        if isinstance(prompt, str):
            # Some tokenizers make a token of nothing (a start mark); an empty text is a mistake all the same.
            checked = _Checked(prompt, self._loaded.tokenizer.encode(prompt) if prompt else [], params)
        else:
            checked = _Checked(None, as_token_ids(prompt), params)
        self.engine.check(checked.tokens, params)
        return checked

    def _add(self, checked: Sequence[_Checked]) -> list[str]:
        with self._lock:
            if any(engine.has_work for engine in self._siblings if engine is not self.engine):
                raise RequestError("an LLM over the same weights has a request under way; finish or close it first")
            return [self.engine.add(each.tokens, each.params, prompt=each.text) for each in checked]

    def _run(self, request_ids: list[str]) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        try:
            while len(outputs) < len(request_ids):
                with self._lock:
                    self.engine.step()
                    outputs.update((output.request_id, output) for output in self.engine.collect(request_ids))
        finally:
            # After an interrupt nothing of this call may live on in the engine.
            self._drop(request_ids)
        return [outputs[request_id] for request_id in request_ids]

    def _stream(self, checked: _Checked) -> Iterator[StreamChunk]:
        # Queued by the first `next`: an iterator that is never started leaves nothing in the engine.
        (request_id,) = self._add([checked])
        request = self.engine.request(request_id)
        assert request is not None
        cursor = StreamCursor(request)
        try:
            while not request.finished:
                with self._lock:
                    self.engine.step()
                    chunks = list(cursor.chunks())
                yield from chunks
            # Steps of another caller serve this request too, and may have finished it between two of ours.
            yield from cursor.chunks()
        finally:
            self._drop([request_id])

    def _drop(self, request_ids: list[str]) -> None:
        with self._lock:
            for request_id in request_ids:
                self.engine.cancel(request_id)
            self.engine.collect(request_ids)
