"""Small random decoders for tests, by family or by the shapes of a real model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from outrider import kernels
from outrider.models.decoder import DecoderConfig, DecoderRunner
from outrider.models.decoder_weights import Stored

VOCAB = 97
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
}
ODD: dict[str, Any] = {
    "hidden_size": 66,
    "intermediate_size": 101,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 12,
}
SMOLLM2: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
MIXED_LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA: dict[str, Any] = {"head_dim": 24, "sliding_window": 9, "query_pre_attn_scalar": 20, "layer_types": MIXED_LAYERS}


def families() -> dict[str, PretrainedConfig]:
    """Every family, and within them every switch: ties, biases, windows, head counts, stretched rotations."""
    return {
        "llama-tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
        "llama-untied-biased": LlamaConfig(**SMALL, tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
        "llama-odd": LlamaConfig(**{**SMALL, **ODD}),
        "llama-odd-head": LlamaConfig(**{**SMALL, **ODD, "head_dim": 10}),
        "llama-one-kv-head": LlamaConfig(**{**SMALL, "num_key_value_heads": 1}),
        "llama3-rope": LlamaConfig(**SMALL, rope_parameters=LLAMA3_ROPE),
        "linear-rope": LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        "mistral": MistralConfig(**SMALL, sliding_window=None),
        "mistral-window": MistralConfig(**SMALL, sliding_window=7),
        "qwen2": Qwen2Config(**SMALL),
        "qwen2-window": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=9, max_window_layers=2),
        "qwen3": Qwen3Config(**SMALL, head_dim=24),
        "gemma3": Gemma3TextConfig(**SMALL, **GEMMA),
    }


def reference(config: PretrainedConfig) -> Any:
    """Transformers' own model with random weights that keep logits of ordinary size."""
    from transformers import AutoModelForCausalLM

    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    centre = 0.0 if config.model_type.startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(centre, 0.3)
            else:
                parameter.normal_(0.0, 0.15)
    return model


BACKENDS = ("native", "torch")


@contextmanager
def on(backend: str) -> Iterator[None]:
    """Within it, decoders are loaded for this backend; a test that wants one which is not here is skipped."""
    with pytest.MonkeyPatch.context() as patch:
        if backend == "torch":
            patch.setenv(kernels.LEVEL_VARIABLE, kernels.TORCH)
        elif reason := kernels.load().reason:
            pytest.skip(reason)
        yield


def load(config: PretrainedConfig, tensors: Iterator[tuple[str, Stored]], **sizes: Any) -> DecoderRunner:
    """Our runner over the same weights."""
    settings = {"dtype": torch.float32, "max_num_seqs": 4, "max_model_len": 512, "name": config.model_type, **sizes}
    return DecoderRunner.load(DecoderConfig.from_hf(config), tensors, **settings)


def random_weights(config: PretrainedConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of ``reference`` without building it twice."""
    return iter(reference(config).state_dict().items())
