"""LLM: load a model once, then generate, stream or chat. Names and shapes are vLLM's."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

from outrider.config import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    EngineConfig,
    SpeculativeConfig,
    check_dtype,
    parse_speculative_config,
)
from outrider.control.fixed import FixedController
from outrider.draft.build import build_drafter
from outrider.engine.engine import Engine
from outrider.engine.stream import StreamCursor
from outrider.errors import RequestError
from outrider.models.load import LoadedModel, load_runner
from outrider.sampling.params import SamplingParams
from outrider.types import RequestOutput, StreamChunk

Prompt = str | Sequence[int]
Message = Mapping[str, str]
SpeculativeArgument = str | Mapping[str, Any] | SpeculativeConfig | None


class LLM:
    """A target model with its drafter, ready to serve.

    ``speculative_config``: ``"auto"`` (n-gram lookup where the model's cache can be rolled back), None (plain
    decoding), or vLLM's dictionary. Raises ConfigError for settings before anything is read, then ModelError,
    FetchError or CapabilityError for models that cannot be had or do not go together.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        dtype: str = DEFAULT_DTYPE,
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
        self._trust_remote_code = trust_remote_code
        self._loaded = load_runner(
            model,
            dtype=self._dtype,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            trust_remote_code=trust_remote_code,
        )
        self._siblings: list[Engine] = []
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
        batch = _as_list(prompts)
        params = _params_for(sampling_params, len(batch))
        checked = []
        for i, (prompt, each) in enumerate(zip(batch, params, strict=True)):
            try:
                checked.append(self._checked(prompt, each))
            except RequestError as error:
                raise RequestError(f"prompt {i}: {error}" if len(batch) > 1 else str(error)) from None
        ids = [self.engine.add(tokens, each, prompt=text) for (text, tokens), each in zip(checked, params, strict=True)]
        return self._run(ids)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[StreamChunk]:
        """Answer one prompt chunk by chunk; closing the iterator cancels the request."""
        params = sampling_params or SamplingParams()
        text, tokens = self._checked(prompt, params)
        return self._stream(text, tokens, params)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template."""
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        return self.generate([self.chat_tokens(cast("Sequence[Message]", c)) for c in conversations], sampling_params)

    def chat_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ready for ``generate`` or ``stream``."""
        if not messages:
            raise RequestError("the conversation is empty: give at least one message")
        for message in messages:
            if set(message) != {"role", "content"}:
                raise RequestError(f"a message needs exactly 'role' and 'content', not {sorted(message)}")
        return self._loaded.tokenizer.chat(messages)

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
            FixedController(speculation.num_speculative_tokens if speculation else 0),
            self._loaded.tokenizer,
            self._config,
            speculation.rejection_sample_method if speculation else "auto",
            self._sequence_ids,
        )
        self._siblings.append(engine)
        return engine

    def _checked(self, prompt: Prompt, params: SamplingParams) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            # Some tokenizers make a token of nothing (a start mark); an empty text is a mistake all the same.
            text, tokens = prompt, self._loaded.tokenizer.encode(prompt) if prompt else []
        else:
            text, tokens = None, _token_ids(prompt)
        if any(engine.has_work for engine in self._siblings if engine is not self.engine):
            raise RequestError("an LLM over the same weights has a request under way; finish or close it first")
        self.engine.check(tokens, params)
        return text, tokens

    def _run(self, request_ids: list[str]) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        try:
            while len(outputs) < len(request_ids):
                self.engine.step()
                outputs.update((output.request_id, output) for output in self.engine.collect(request_ids))
        finally:
            # After an interrupt nothing of this call may live on in the engine.
            self._drop(request_ids)
        return [outputs[request_id] for request_id in request_ids]

    def _stream(self, text: str | None, tokens: list[int], params: SamplingParams) -> Iterator[StreamChunk]:
        # Queued by the first `next`: an iterator that is never started leaves nothing in the engine.
        request_id = self.engine.add(tokens, params, prompt=text)
        request = self.engine.request(request_id)
        assert request is not None
        cursor = StreamCursor(request)
        try:
            while not request.finished:
                self.engine.step()
                yield from cursor.chunks()
            # Steps of another caller serve this request too, and may have finished it between two of ours.
            yield from cursor.chunks()
        finally:
            self._drop([request_id])

    def _drop(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.engine.cancel(request_id)
        self.engine.collect(request_ids)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [cast("Prompt", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _token_ids(prompt: object) -> list[int]:
    if not isinstance(prompt, Sequence) or not all(type(token) is int for token in prompt):
        raise RequestError("a prompt is text or a list of token ids (whole numbers)")
    return list(prompt)


def _params_for(given: object, count: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if not isinstance(given, Sequence) or not all(isinstance(each, SamplingParams) for each in given):
        raise RequestError("sampling_params must be a SamplingParams or a list of them")
    if len(given) != count:
        raise RequestError(f"{len(given)} sampling_params for {count} prompts: give one, or one per prompt")
    return list(given)
