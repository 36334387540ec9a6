"""What a user may set about an engine, as frozen values. One field = one keyword = one flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from outrider.errors import ConfigError

Method = Literal["ngram", "draft_model"]
VerifierName = Literal["auto", "coupled", "block", "token"]
DTYPES = ("bfloat16", "float32")

# vLLM's word for each rule where it has one ("standard" is its token-level rejection sampling).
_VERIFIER_ALIASES = {"standard": "token"}


@dataclass(frozen=True)
class SpeculativeConfig:
    """How to speculate; keys and meanings are vLLM's."""

    method: Method
    num_speculative_tokens: int = 5
    model: str | None = None
    """Draft model: a name, folder, GGUF file or Hub id (``method="draft_model"`` only)."""
    dtype: str | None = None
    """Draft model's own dtype; None means the target's."""
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 3
    rejection_sample_method: VerifierName = "auto"

    def __post_init__(self) -> None:
        if self.method not in ("ngram", "draft_model"):
            raise ConfigError(f"speculative_config: method={self.method!r} is unknown; use 'ngram' or 'draft_model'")
        if not _is_int(self.num_speculative_tokens) or self.num_speculative_tokens < 0:
            raise ConfigError(
                f"speculative_config: num_speculative_tokens={self.num_speculative_tokens!r} must be a whole "
                "number, 0 or more (0 is plain decoding)"
            )
        if not (
            _is_int(self.prompt_lookup_min)
            and _is_int(self.prompt_lookup_max)
            and 1 <= self.prompt_lookup_min <= self.prompt_lookup_max
        ):
            raise ConfigError(
                f"speculative_config: prompt_lookup_min={self.prompt_lookup_min!r} and prompt_lookup_max="
                f"{self.prompt_lookup_max!r} must be whole numbers with 1 <= min <= max"
            )
        if self.method == "draft_model" and not self.model:
            raise ConfigError("speculative_config: method='draft_model' needs 'model', the draft to load")
        if self.method == "ngram" and self.model is not None:
            raise ConfigError("speculative_config: method='ngram' takes no 'model'; remove it or use 'draft_model'")
        if self.dtype is not None:
            check_dtype(self.dtype, "speculative_config: dtype")
        if self.rejection_sample_method not in ("auto", "coupled", "block", "token"):
            raise ConfigError(
                f"speculative_config: rejection_sample_method={self.rejection_sample_method!r} is unknown; "
                "use 'auto', 'coupled', 'block' or 'token'"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Read vLLM's dictionary; an unknown key is an error that lists the known ones."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(f"speculative_config: unknown key {unknown[0]!r}; known keys: {', '.join(known)}")
        if "method" not in values:
            values = {**values, "method": "draft_model" if values.get("model") else "ngram"}
        rule = values.get("rejection_sample_method")
        if isinstance(rule, str):
            values = {**values, "rejection_sample_method": _VERIFIER_ALIASES.get(rule, rule)}
        return cls(**values)


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine; names are vLLM's."""

    max_num_seqs: int = 8
    """Sequences decoded together; each holds one KV slot of ``max_model_len`` tokens."""
    max_num_batched_tokens: int = 512
    """Most tokens of one forward pass: prompts longer than this are prefilled in chunks."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if not _is_int(value) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number, 1 or more")


def check_dtype(value: str, where: str = "dtype") -> str:
    """Refuse a dtype that the engine does not run."""
    if value not in DTYPES:
        raise ConfigError(f"{where}={value!r} is not supported; use {' or '.join(map(repr, DTYPES))}")
    return value


def parse_speculative_config(value: str | Mapping[str, Any] | SpeculativeConfig | None) -> SpeculativeConfig | None:
    """Resolve the public argument: ``"auto"`` is n-gram lookup with default settings, None plain decoding."""
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, str):
        if value == "auto":
            return SpeculativeConfig(method="ngram")
        raise ConfigError(
            f"speculative_config={value!r} is unknown; use 'auto', None or a dict such as {{'method': 'ngram'}}"
        )
    if not isinstance(value, Mapping):
        raise ConfigError(f"speculative_config={value!r} must be 'auto', None or a dict")
    return SpeculativeConfig.from_dict(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
