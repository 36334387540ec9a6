"""Transformers' own ``generate`` as a subject of a benchmark, in this process and on the same prompt tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outrider.bench.record import Acceptance, Answer, Arrival, Settings
from outrider.bench.subject import Request, prompt_tokens
from outrider.config import check_dtype
from outrider.errors import CapabilityError, ConfigError
from outrider.models.quiet import first_line, quiet_transformers

if TYPE_CHECKING:
    import torch

    from outrider.models.resolve import ModelFiles
    from outrider.models.tokenizer import Tokenizer


class TransformersSubject:
    """A model in Transformers, one request at a time: plain, with prompt lookup, or with an assistant model.

    ``prompt_lookup`` is its ``prompt_lookup_num_tokens``, ``assistant`` a demo name, folder, GGUF file or Hub id.
    Raises ``ConfigError``, ``ModelError``, ``FetchError``, or ``CapabilityError`` for an assistant whose tokens mean
    other strings.
    """

    def __init__(
        self,
        name: str,
        model: str,
        dtype: str = "bfloat16",
        *,
        prompt_lookup: int | None = None,
        assistant: str | None = None,
    ) -> None:
        _check(dtype, prompt_lookup, assistant)
        self._name = name
        self._details = {"model": model, "dtype": dtype, "prompt_lookup": prompt_lookup, "assistant": assistant}
        self._model, self._tokenizer = _load(model, dtype)
        self._mode: dict[str, Any] = {}
        if prompt_lookup is not None:
            self._mode = {"prompt_lookup_num_tokens": prompt_lookup}
        if assistant is not None:
            helper, tokenizer = _load(assistant, dtype)
            if difference := self._tokenizer.same_vocabulary(tokenizer):
                raise CapabilityError(f"assistant {assistant!r} has another vocabulary than {model!r}: {difference}")
            self._mode = {"assistant_model": helper}

    @property
    def name(self) -> str:
        return self._name

    def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        """One after the other, none before its time: ``generate`` speculates on a batch of one only."""
        start = time.perf_counter()
        answers: dict[int, Answer] = {}
        for i in sorted(range(len(requests)), key=lambda i: requests[i].at):
            time.sleep(max(0.0, start + requests[i].at - time.perf_counter()))
            # Time in the queue is the client's too: it sent the request when its time came.
            answers[i] = self._answer(requests[i], settings, start + requests[i].at)
        return [answers[i] for i in range(len(requests))]

    def details(self) -> Mapping[str, Any]:
        """Versions and settings."""
        import torch
        import transformers

        return {
            "engine": "transformers",
            "version": transformers.__version__,
            "threads": torch.get_num_threads(),
            **self._details,
        }

    def _answer(self, request: Request, settings: Settings, sent: float) -> Answer:
        watch = _Watch(sent)
        try:
            prompt = prompt_tokens(request.task, self._tokenizer)
            tokens = self._generate(prompt, request, settings, watch)
        except Exception as error:
            # A foreign engine fails in as many ways as it has; its other requests go on.
            return Answer("", None, None, (), None, error=f"{type(error).__name__}: {first_line(error)}")
        ended = tokens[-1:] and tokens[-1] in self._tokenizer.eos_ids and not settings.ignore_eos
        return Answer(
            text=self._tokenizer.decode(tokens),
            token_ids=tuple(tokens),
            prompt_tokens=len(prompt),
            arrivals=tuple(watch.arrivals),
            finish_reason="stop" if ended else "length",
            acceptance=Acceptance.total(watch.rounds) if self._mode else None,
        )

    def _generate(self, prompt: list[int], request: Request, settings: Settings, watch: _Watch) -> list[int]:
        import torch
        from transformers import LogitsProcessorList

        limit = settings.max_tokens if request.task.max_tokens is None else request.task.max_tokens
        sampled: dict[str, Any] = {"do_sample": False}
        if settings.temperature > 0:
            sampled = {"do_sample": True, "temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
        with torch.random.fork_rng(devices=[]), quiet_transformers():
            if request.seed is not None:
                torch.manual_seed(request.seed)
            output_BT = self._model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=limit,
                eos_token_id=None if settings.ignore_eos else sorted(self._tokenizer.eos_ids) or None,
                streamer=watch,
                logits_processor=LogitsProcessorList([watch]),
                **sampled,
                **self._mode,
            )
        return [int(token) for token in output_BT[0, len(prompt) :]]


class _Watch:
    """Sees every round of ``generate``: as its streamer, the tokens that come; as a logits processor, the drafts.

    A round runs the processors over drafted + 1 positions, each one token longer than the last. An assistant that
    drafts runs them too, before: a length that starts over begins the count anew.
    """

    def __init__(self, sent: float) -> None:
        self.arrivals: list[Arrival] = []
        self.rounds: list[Acceptance] = []
        self._sent = sent
        self._in_prompt = True
        self._length = 0
        self._positions = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        self._positions = self._positions + 1 if length == self._length + 1 else 1
        self._length = length
        return scores

    def put(self, tokens: torch.Tensor) -> None:
        if self._in_prompt:
            self._in_prompt = False
            return
        emitted = tokens.numel()
        self.arrivals.append(Arrival(time.perf_counter() - self._sent, emitted))
        self.rounds.append(Acceptance.of_round(self._positions - 1, emitted - 1, emitted))
        self._positions = self._length = 0

    def end(self) -> None:
        """Nothing is held back."""


def _check(dtype: str, prompt_lookup: int | None, assistant: str | None) -> None:
    check_dtype(dtype)
    if prompt_lookup is not None and assistant is not None:
        raise ConfigError("Transformers drafts by prompt_lookup or with an assistant, not by both; leave one out")
    if prompt_lookup is not None and prompt_lookup < 1:
        raise ConfigError(f"prompt_lookup={prompt_lookup} must be 1 or more; leave it out for plain decoding")


def _load(ref: str, dtype: str) -> tuple[Any, Tokenizer]:
    from transformers import GenerationConfig

    from outrider.models.resolve import resolve
    from outrider.models.tokenizer import load_tokenizer

    files = resolve(ref)
    model = load_model(files, dtype)
    # A checkpoint's own sampling defaults and stop ids would change the law; ours are given with every request.
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model, load_tokenizer(files)


def load_model(files: ModelFiles, dtype: str) -> Any:
    """A checkpoint as Transformers runs it, a GGUF file's weights unpacked. Raises ``ModelError``."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    from outrider.models.checkpoint import transformers_error

    source: dict[str, Any] = {"use_safetensors": True}
    if files.gguf is not None:
        source = {"gguf_file": files.gguf.name, "quantization_config": GgufConfig(dequantize=True)}
    try:
        with quiet_transformers():
            return AutoModelForCausalLM.from_pretrained(
                files.folder, dtype=getattr(torch, dtype), local_files_only=True, **source
            ).eval()
    except Exception as error:
        raise transformers_error(files.name, "Transformers could not load it", error) from error
