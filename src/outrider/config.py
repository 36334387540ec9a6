"""What a user may set about an engine, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeGuard, get_args

from outrider.errors import ConfigError

Method = Literal["auto", "ngram", "draft_model", "spire", "sparse_self"]
VerifierName = Literal["auto", "coupled", "block", "standard"]
Quantization = Literal["int8", "int8-dynamic", "gguf"]
DTYPES = ("bfloat16", "float32")
_LONGEST_LOOKUP = 32
MOST_TOKENS = 12
"""Longest draft where the engine chooses the length."""
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DTYPE = "bfloat16"


@dataclass(frozen=True)
class SpeculativeConfig:
    """How to speculate. Keys and meanings are vLLM's, ``dtype`` and the rule "coupled" are ours."""

    method: Method
    num_speculative_tokens: int | None = None
    """Draft tokens of every round; None drafts as much as pays, chosen anew for every sequence and round."""
    model: str | None = None
    """Draft model: a name, folder, GGUF file or Hub id (``method="draft_model"``), or the folder of a SPIRe draft
    (``method="spire"``)."""
    dtype: str | None = None
    """Draft model's own dtype; None means the target's."""
    quantization: Quantization | None = None
    """Draft model's own quantization (see ``LLM``); None means none, whatever the target's."""
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    """Shortest and longest n-gram looked up ("ngram" and "auto" only); 1 and 3 unless one of them says otherwise."""
    rejection_sample_method: VerifierName = "auto"

    def __post_init__(self) -> None:
        self._check_choice("method", get_args(Method))
        self._check_choice("rejection_sample_method", get_args(VerifierName))
        check_draft_length(self.num_speculative_tokens, "speculative_config")
        if self.method in ("auto", "ngram"):
            self._refuse("model", "dtype", "quantization")
            self._check_lookup()
        elif self.method == "sparse_self":
            self._refuse("model", "dtype", "quantization", "prompt_lookup_min", "prompt_lookup_max")
        else:
            self._refuse("prompt_lookup_min", "prompt_lookup_max")
            if not isinstance(self.model, str) or not self.model:
                raise ConfigError(
                    f"speculative_config: model={self.model!r}: method={self.method!r} needs the draft's "
                    + ("folder" if self.method == "spire" else "name, folder, GGUF file or Hub id")
                )
            if self.dtype is not None:
                check_dtype(self.dtype, "speculative_config: dtype")
            check_quantization(self.quantization, "speculative_config: quantization")

    @property
    def lookup_min(self) -> int:
        return 1 if self.prompt_lookup_min is None else self.prompt_lookup_min

    @property
    def lookup_max(self) -> int:
        return max(3, self.lookup_min) if self.prompt_lookup_max is None else self.prompt_lookup_max

    def _check_choice(self, name: str, known: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in known:
            listed = ", ".join(map(repr, known))
            raise ConfigError(f"speculative_config: {name}={value!r} is unknown; use one of {listed}")

    def _check_lookup(self) -> None:
        given = [value for value in (self.prompt_lookup_min, self.prompt_lookup_max) if value is not None]
        if not all(map(is_whole, given)) or not 1 <= self.lookup_min <= self.lookup_max <= _LONGEST_LOOKUP:
            raise ConfigError(
                f"speculative_config: prompt_lookup_min={self.prompt_lookup_min!r} and prompt_lookup_max="
                f"{self.prompt_lookup_max!r} must be whole numbers with 1 <= min <= max <= {_LONGEST_LOOKUP}"
            )

    def _refuse(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"speculative_config: {name}={getattr(self, name)!r} means nothing with method={self.method!r}; "
                    "remove it or use the other method"
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Read vLLM's dictionary; an unknown key is an error that lists the known ones."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(values) - set(known), key=repr)
        if unknown:
            raise ConfigError(f"speculative_config: unknown key {unknown[0]!r}; known keys: {', '.join(known)}")
        if "method" not in values:
            values = {**values, "method": "draft_model" if values.get("model") else "ngram"}
        return cls(**values)


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine; names are vLLM's."""

    max_num_seqs: int = 8
    """Sequences decoded together; each holds one KV slot of ``max_model_len`` tokens."""
    max_num_batched_tokens: int = 512
    """Tokens of one forward pass, drafts aside: longer prompts are prefilled in chunks."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number, 1 or more")


def check_dtype(value: str, where: str = "dtype") -> str:
    """Refuse a dtype that the engine does not run."""
    if value not in DTYPES:
        raise ConfigError(f"{where}={value!r} is not supported; use {' or '.join(map(repr, DTYPES))}")
    return value


def check_quantization(value: str | None, where: str = "quantization") -> Quantization | None:
    """Refuse a word that is no way to store weights."""
    known: dict[str, Quantization] = {word: word for word in get_args(Quantization)}
    if value is None:
        return None
    if not isinstance(value, str) or value not in known:
        raise ConfigError(
            f"{where}={value!r} is unknown; use {', '.join(map(repr, known))} or None (as the dtype says)"
        )
    return known[value]


def parse_speculative_config(
    value: str | Mapping[str, Any] | SpeculativeConfig | None, can_roll_back: bool = True
) -> SpeculativeConfig | None:
    """Resolve the public argument: None is plain, "auto" its method (plain too where drafts cannot be undone)."""
    if value is None:
        return None
    if isinstance(value, SpeculativeConfig):
        return value if can_roll_back or value.method != "auto" else None
    if value == "auto":
        return parse_speculative_config(SpeculativeConfig(method="auto"), can_roll_back)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"speculative_config={value!r} is unknown; use 'auto', None (on the command line: none) or a dict such as "
            '{"method": "ngram"}'
        )
    return parse_speculative_config(SpeculativeConfig.from_dict(value), can_roll_back)


def check_draft_length(value: object, where: str) -> None:
    """Refuse what is no number of draft tokens; None leaves it open."""
    if value is not None and (not is_whole(value) or value < 0):
        raise ConfigError(
            f"{where}: num_speculative_tokens={value!r} must be a whole number, 0 or more (0 is plain decoding), or "
            "left out (as many as pay)"
        )


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a setting is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)
