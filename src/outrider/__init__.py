"""Outrider: language models generate faster and say the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling.params import SamplingParams
    from outrider.types import CompletionOutput, RequestMetrics, RequestOutput

__all__ = ["LLM", "CompletionOutput", "RequestMetrics", "RequestOutput", "SamplingParams", "__version__"]

__version__ = "0.1.0"

_HOMES = {
    "LLM": "outrider.llm",
    "SamplingParams": "outrider.sampling.params",
    "CompletionOutput": "outrider.types",
    "RequestMetrics": "outrider.types",
    "RequestOutput": "outrider.types",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `import outrider` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
