"""Several draft lengths of one drafter, and what a configuration is called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError

PLAIN = "plain"
_LARGEST_K = 64
_PART = re.compile(r"\s*(\d{1,3})(?:\s*\.\.\s*(\d{1,3}))?\s*", re.ASCII)
_NAMED = ("method", "num_speculative_tokens", "model")


def k_range(text: str) -> tuple[int, ...]:
    """Draft lengths of "0..8", "0,2,4" or both mixed: each once, in the order given. Raises ConfigError."""
    ks: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= _LARGEST_K:
            raise ConfigError(
                f"k={text[:60]!r} must be draft lengths from 0 to {_LARGEST_K} such as '0..8' or '0,2,4', "
                f"and {part.strip()[:20]!r} is not"
            )
        ks += range(first, last + 1)
    return tuple(dict.fromkeys(ks))


def sweep_configs(base: SpeculativeConfig, ks: Iterable[int]) -> list[SpeculativeConfig | None]:
    """The same drafter at every draft length; k = 0 is plain decoding, whatever the drafter, so None."""
    return [replace(base, num_speculative_tokens=k) if k else None for k in ks]


def configuration_name(config: SpeculativeConfig | None) -> str:
    """A short title: method, k, the draft model's name, and whatever else is not a default."""
    if config is None or config.num_speculative_tokens == 0:
        return PLAIN
    k = config.num_speculative_tokens
    words = [config.method, *([] if k is None else [f"k={k}"])]
    if config.model is not None:
        words.append(Path(config.model).name)
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in _NAMED and value != field.default:
            words.append(f"{field.name}={value}")
    return " ".join(words)
