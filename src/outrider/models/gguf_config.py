"""The Transformers configuration that a GGUF file's metadata describes.

Transformers can derive one too, but parses the whole vocabulary for it (3 s for 49k tokens, 12 s for 262k) and
drops rotary scaling. It remains the way for architectures not listed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.config import is_whole
from outrider.errors import ModelError
from outrider.models.gguf_metadata import Metadata
from outrider.models.gguf_names import ARCHITECTURES
from outrider.models.quiet import first_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from outrider.models.gguf_file import GGUFFile

# What files do not carry. Gemma 3's largest size alone scales queries by width / heads, and Llama 3 files hold the
# result of its rotary rule instead of the rule.
_GEMMA_27B_LAYERS = 62
_LLAMA3_ORIGINAL_CONTEXT = 8192
_LLAMA3_LOW, _LLAMA3_HIGH = 1.0, 4.0


def is_known(file: GGUFFile) -> bool:
    """Whether ``config_from_gguf`` knows the file's architecture."""
    return file.metadata.get("general.architecture") in ARCHITECTURES


def config_from_gguf(file: GGUFFile) -> PretrainedConfig:
    """Raises ``ModelError`` for an unknown architecture, a missing size, or sizes that do not fit each other."""
    from transformers import AutoConfig

    model_type, values = _describe(file)
    try:
        return AutoConfig.for_model(model_type, **values)
    except Exception as error:
        # Each configuration class validates its own fields with its own kinds of error.
        raise ModelError(f"{file.path}: its metadata make no valid {model_type} model: {first_line(error)}") from error


def _describe(file: GGUFFile) -> tuple[str, dict[str, Any]]:
    architecture = str(file.metadata.get("general.architecture"))
    if not is_known(file):
        raise ModelError(f"{file.path}: architecture {architecture!r} is none of {', '.join(ARCHITECTURES)}")
    reader = Metadata(file, architecture)
    values = _common(reader)
    if architecture == "gemma3":
        return "gemma3_text", values | _gemma(reader, values)
    if architecture == "llama" and reader.optional("attention.sliding_window"):
        return "mistral", values | {"sliding_window": reader.whole("attention.sliding_window")}
    if architecture == "llama":
        return "llama", values | {"attention_bias": "blk.0.attn_q.bias" in file.tensors}
    return architecture, values


def gguf_eos_ids(file: GGUFFile) -> frozenset[int]:
    """Tokens that end a text (``eos``), a turn (``eot``) or a message (``eom``). Raises ``ModelError``."""
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    found = {key: file.metadata[key] for key in keys if key in file.metadata}
    for key, value in found.items():
        if not is_whole(value) or int(value) < 0:
            raise ModelError(f"{file.path}: metadata {key!r} is {value!r}, not a token id")
    return frozenset(int(value) for value in found.values())


def _common(reader: Metadata) -> dict[str, Any]:
    tensors, metadata = reader.file.tensors, reader.file.metadata
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{reader.file.path} has no tensor 'token_embd.weight'; it is not a language model")
    heads = reader.whole("attention.head_count")
    width = reader.whole("embedding_length")
    head_dim = reader.whole("attention.key_length", reader.whole("rope.dimension_count", width // heads))
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": reader.whole("feed_forward_length"),
        "num_hidden_layers": _layers(reader),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": reader.real("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": reader.whole("context_length"),
        "rope_parameters": _rope(reader, head_dim),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _layers(reader: Metadata) -> int:
    """Checked against the tensors, since configurations hold one entry a layer and a file may claim billions."""
    layers, tensors = reader.whole("block_count"), len(reader.file.tensors)
    if layers > tensors:
        raise ModelError(f"{reader.file.path}: block_count is {layers}, but it has only {tensors} tensors")
    return layers


def _gemma(reader: Metadata, values: dict[str, Any]) -> dict[str, Any]:
    heads, width = values["num_attention_heads"], values["hidden_size"]
    scale = width // heads if values["num_hidden_layers"] == _GEMMA_27B_LAYERS else values["head_dim"]
    return {
        "sliding_window": reader.whole("attention.sliding_window"),
        "query_pre_attn_scalar": scale,
        # Only full-attention layers use the file's base and scaling; window layers keep gemma3's own 10,000.
        "rope_parameters": {
            "full_attention": values["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }


def _rope(reader: Metadata, head_dim: int) -> dict[str, Any]:
    theta = reader.real("rope.freq_base", 10_000.0)
    kind = reader.optional("rope.scaling.type") or "none"
    if "rope_freqs.weight" in reader.file.tensors:
        return _llama3_rope(reader.file, theta, head_dim)
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind not in ("linear", "yarn"):
        raise ModelError(f"{reader.file.path}: rotary scaling {kind!r} is not supported; 'linear' and 'yarn' are")
    scaled: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": theta,
        "factor": reader.real("rope.scaling.factor"),
    }
    if reader.optional("rope.scaling.original_context_length"):
        scaled["original_max_position_embeddings"] = reader.whole("rope.scaling.original_context_length")
    return scaled


def _llama3_rope(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3 files store one divisor per frequency instead of the rule; find the rule and check it explains them."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    no_rule = f"{file.path}: its rotary frequency factors follow no rule known here; use the safetensors model"
    divisors = file.read("rope_freqs.weight", torch.float32)
    # Compared before anything of size head_dim is made, since the file may say any size.
    if divisors.shape != (head_dim // 2,) or not (divisors.isfinite() & (divisors > 0)).all():
        raise ModelError(no_rule)
    rule = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": float(divisors.max()),
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_CONTEXT,
    }
    config = LlamaConfig(head_dim=head_dim, hidden_size=head_dim, num_attention_heads=1, rope_parameters=dict(rule))
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if not torch.allclose(plain / frequencies, divisors, rtol=1e-3):
        raise ModelError(no_rule)
    return rule
