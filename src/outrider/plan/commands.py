"""A prediction as something to run: Outrider's ``speculative_config`` and vLLM's command."""

from __future__ import annotations

import json
import shlex
from typing import Any

from outrider.plan.search import Prediction, Scenario

UNNAMED_DRAFT = "DRAFT"
"""Stands for a draft model of which only sizes, or its cost, are known."""
FROM_CHECKPOINT = ("int8", "int8-dynamic", "int4")
"""Quantizations that vLLM reads from a checkpoint that holds them, but does not make."""
_OURS = (None, "int8", "int8-dynamic")
"""Quantizations that Outrider runs."""
_LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
"""Outrider's defaults, written out because vLLM's are others."""


def outrider_config(scenario: Scenario, prediction: Prediction) -> dict[str, Any] | None:
    """Outrider's ``speculative_config``; None where k is 0, and for what Outrider does not run."""
    draft = prediction.candidate.draft
    held = [model.storage.quantization for model in (scenario.target, draft) if model is not None]
    if any(each not in _OURS for each in held):
        return None
    if draft and prediction.k and prediction.candidate.trained:
        return {"method": "spire", "model": draft.location, "num_speculative_tokens": prediction.k}
    config = _config(prediction, draft.name if draft else UNNAMED_DRAFT)
    if config is None:
        return None
    return config | ({"quantization": draft.storage.quantization} if draft and draft.storage.quantization else {})


def vllm_command(scenario: Scenario, prediction: Prediction | None) -> str | None:
    """How vLLM serves the target like this, plainly without a prediction; None for a drafter that vLLM does not run."""
    target = scenario.target
    words = ["vllm", "serve", target.location, "--dtype", target.storage.dtype]
    if target.storage.quantization == "fp8":
        words += ["--quantization", "fp8"]
    words += ["--max-model-len", str(scenario.context), "--max-num-seqs", str(scenario.batch)]
    if prediction is None or not prediction.k:
        return shlex.join(words)
    draft = prediction.candidate.draft
    config = _config(prediction, draft.location if draft else UNNAMED_DRAFT)
    return shlex.join([*words, "--speculative-config", json.dumps(config)]) if config else None


def _config(prediction: Prediction, model: str) -> dict[str, Any] | None:
    """What the two share: vLLM's keys."""
    method, k = prediction.candidate.method, prediction.k
    if k and method == "ngram":
        return {"method": "ngram", "num_speculative_tokens": k, **_LOOKUP}
    if k and method == "draft_model":
        return {"method": "draft_model", "model": model, "num_speculative_tokens": k}
    return None
