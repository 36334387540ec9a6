"""What a user may ask of one request. Names, defaults and meanings are vLLM's; no torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from outrider.config import check_draft_length, is_whole
from outrider.errors import ConfigError

MOST_REQUESTED = 64
"""Longest draft that a request may ask for."""
MAX_LOGPROBS = 20
"""Most alternatives per token that ``logprobs`` may ask for, as in vLLM and the OpenAI API."""

_NOT_YET = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "prompt_logprobs",
    "structured_outputs",
)


@dataclass(frozen=True)
class RequestSpeculation:
    """How one request is drafted for, where it differs from its neighbours. None: as the engine chooses."""

    num_speculative_tokens: int | None = None
    """Draft tokens of every round; 0 is plain decoding."""
    method: str | None = None
    """One of the engine's drafters."""

    def __post_init__(self) -> None:
        check_draft_length(self.num_speculative_tokens, "speculative")
        if self.num_speculative_tokens is not None and self.num_speculative_tokens > MOST_REQUESTED:
            raise ConfigError(
                f"speculative: num_speculative_tokens={self.num_speculative_tokens} is more than {MOST_REQUESTED}; "
                "ask for fewer, or leave it out (as many as pay)"
            )
        if not isinstance(self.method, str | None):
            raise ConfigError(f"speculative: method={self.method!r} must be the name of one of the engine's drafters")

    @property
    def drafts(self) -> bool:
        """Whether any round can have a draft."""
        return self.num_speculative_tokens != 0


_NOTHING_ASKED = RequestSpeculation()


@dataclass(frozen=True)
class SamplingParams:
    """How to choose the tokens of one request, and when to stop. Raises ConfigError on a value that cannot work."""

    n: int = 1
    """Answers to give; answer i is sampled with ``seed + i``."""
    temperature: float = 1.0
    """0 is greedy; any other value divides the logits."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Drop tokens less likely than ``min_p`` times the likeliest."""
    seed: int | None = None
    max_tokens: int | None = 16
    """Most tokens to generate; None is up to the model's length."""
    min_tokens: int = 0
    """EOS and stop tokens are impossible before this many tokens."""
    stop: Sequence[str] = ()
    """One string or several; stored as a tuple."""
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Likeliest alternatives to report beside each token's own log-probability; None reports nothing."""
    speculative: Mapping[str, Any] | RequestSpeculation | None = None
    """``{"num_speculative_tokens": k, "method": name}`` for this request alone; stored as RequestSpeculation."""

    def __new__(cls, *args: object, **values: object) -> Self:  # noqa: ARG004
        # Runs before the generated __init__, whose own complaint about an unknown name would be a bare TypeError.
        _refuse_unknown(values, [f.name for f in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        object.__setattr__(self, "speculative", _speculation(self.speculative))
        self._check_distribution()
        self._check_lengths()
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**64 - 1, "or None for a fresh one each time")
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS, "or None for none")
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos={self.ignore_eos!r} must be True or False")

    def _check_distribution(self) -> None:
        if not (_is_number(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature={self.temperature!r} must be a finite number, 0 (greedy) or more")
        _check_int("top_k", self.top_k, -1, None, "(0 or -1 keeps every token)")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p={self.top_p!r} must be above 0 and at most 1 (1 keeps every token)")
        if not (_is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise ConfigError(f"min_p={self.min_p!r} must be from 0 to 1 (0 keeps every token)")

    def _check_lengths(self) -> None:
        _check_int("n", self.n, 1, None)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, None, "or None for up to the model's length")
        _check_int("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}; "
                "lower the one or raise the other"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Read a dictionary such as a JSON body; an unknown key is an error that lists the known ones."""
        _refuse_unknown(values, [f.name for f in fields(cls)])
        return cls(**values)

    @property
    def speculation(self) -> RequestSpeculation:
        """What the request says of its drafts, or nothing."""
        return self.speculative if isinstance(self.speculative, RequestSpeculation) else _NOTHING_ASKED

    @property
    def greedy(self) -> bool:
        """Whether every token is the likeliest one, with no randomness at all."""
        return self.temperature == 0


def _refuse_unknown(values: Mapping[str, object], known: Sequence[str]) -> None:
    for name in values:
        if name in _NOT_YET:
            raise ConfigError(f"sampling parameter {name!r} is not supported yet; remove it")
        if name not in known:
            raise ConfigError(f"unknown sampling parameter {name!r}; known ones: {', '.join(known)}")


def _check_int(name: str, value: object, low: int, high: int | None, hint: str = "") -> None:
    if is_whole(value) and low <= value and (high is None or value <= high):
        return
    limit = f"{low} or more" if high is None else f"from {low} to {high}"
    raise ConfigError(f"{name}={value!r} must be a whole number, {limit} {hint}".rstrip())


def _is_number(value: object) -> bool:
    # A whole number beyond the floats is not finite for our purposes either.
    return (isinstance(value, float) and math.isfinite(value)) or (is_whole(value) and abs(value) < 2**63)


def _strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"stop={value!r} must be a string or a list of strings")
    if "" in items:
        raise ConfigError(f"stop={value!r} holds an empty string, which would stop at once; remove it")
    return tuple(items)


def _speculation(value: object) -> RequestSpeculation | None:
    if value is None or isinstance(value, RequestSpeculation):
        return value
    known = [f.name for f in fields(RequestSpeculation)]
    if not isinstance(value, Mapping) or not set(value) <= set(known):
        raise ConfigError(f"speculative={value!r} must be a dictionary with nothing but {' and '.join(known)}")
    return RequestSpeculation(**value)


def _token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or not all(is_whole(item) and item >= 0 for item in value):
        raise ConfigError(f"stop_token_ids={value!r} must be a list of token ids, whole numbers from 0 up")
    return tuple(value)
