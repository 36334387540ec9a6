"""A model's sizes, from a Transformers configuration or given: what it weighs, reads and computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from outrider.errors import ModelError
from outrider.plan.cost import Footprint

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "granite", "smollm3",
)  # fmt: skip
"""Dense decoders with grouped attention and a gated MLP of three matrices, which is what is counted here."""
VALUE_BYTES: Mapping[str, int] = MappingProxyType({"bfloat16": 2, "float32": 4})
WEIGHT_BITS: Mapping[str, float] = MappingProxyType({"int8": 8, "int8-dynamic": 8, "fp8": 8, "int4": 4.5})
"""By quantization; int4 with a two-byte scale for 32 weights, as in Q4_0."""
_ARITHMETIC: Mapping[str, str] = MappingProxyType({"int8-dynamic": "int8", "fp8": "fp8"})

_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_SIZES = (
    *_REQUIRED, "num_key_value_heads", "head_dim", "tie_word_embeddings", "sliding_window", "layer_types",
)  # fmt: skip
_LARGEST = 10**8


@dataclass(frozen=True)
class Storage:
    """How numbers are held: weights as ``quantization`` says, or else like everything else in ``dtype``."""

    dtype: str = "bfloat16"
    quantization: str | None = None

    @property
    def weight_bytes(self) -> float:
        """Of one parameter."""
        return self.value_bytes if self.quantization is None else WEIGHT_BITS[self.quantization] / 8

    @property
    def value_bytes(self) -> int:
        """Of one activation, key or value."""
        return VALUE_BYTES[self.dtype]

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """Number formats of the matrix products, the wanted one first; without it weights are unpacked."""
        return (*filter(None, [_ARITHMETIC.get(self.quantization or "")]), self.dtype)


@dataclass(frozen=True)
class Architecture:
    """A dense decoder's sizes. Biases and norms of single heads are not counted: below 0.1 % of the parameters."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False
    local_layers: int = 0
    """Layers that see only the last ``window`` positions."""
    window: int = 0

    @property
    def body_parameters(self) -> int:
        """All layers: two norms, attention, and the MLP's three matrices."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim * self.hidden
        return self.layers * (2 * self.hidden + attention + 3 * self.hidden * self.intermediate)

    @property
    def pass_parameters(self) -> int:
        """What a pass multiplies with: layers, last norm and head. Of an embedding table it reads single rows."""
        return self.body_parameters + self.hidden + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All that is held; a tied head is the embedding table."""
        return self.pass_parameters + (0 if self.tied else self.vocab * self.hidden)

    @property
    def values_per_key(self) -> int:
        """Numbers of keys and values that one position adds to the cache of one layer."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def memory_flops(self) -> int:
        """What SPIRe's draft adds to a row: its memory projected to keys and values in every layer."""
        return 2 * self.layers * self.values_per_key * self.hidden

    def footprint(self, storage: Storage) -> Footprint:
        """What one pass reads and computes when numbers are held like this."""
        key_bytes = self.values_per_key * storage.value_bytes
        return Footprint(
            weight_bytes=self.pass_parameters * storage.weight_bytes,
            flops_per_row=2.0 * self.pass_parameters,
            key_bytes=(self.layers - self.local_layers) * key_bytes,
            local_key_bytes=self.local_layers * key_bytes,
            window=self.window,
            # A multiply-add for each query head of the group over each number of the cache.
            flops_per_kv_byte=2.0 * self.heads / self.kv_heads / storage.value_bytes,
        )

    def held_bytes(self, storage: Storage) -> float:
        """All weights in memory."""
        return self.parameters * storage.weight_bytes

    def trunk(self, layers: int) -> Architecture:
        """The same with fewer layers, windows in the same proportion."""
        return replace(self, layers=layers, local_layers=round(self.local_layers * layers / self.layers))


def read_architecture(values: Mapping[str, Any], name: str) -> Architecture:
    """From a complete Transformers configuration (with ``model_type``), or from sizes alone under the same keys.

    Raises ModelError for a family that is not counted here, an unknown key among sizes, or sizes that do not fit.
    """
    family = values.get("model_type")
    if family is not None and family not in FAMILIES:
        raise ModelError(
            f"{name}: model_type {family!r} is not counted here (only {', '.join(FAMILIES)}); "
            "give its sizes as JSON without model_type if it is built like these"
        )
    if family is None:
        unknown = sorted(set(values) - set(_SIZES))
        if unknown:
            raise ModelError(f"{name}: unknown size {unknown[0]!r}; known: {', '.join(_SIZES)}")
    hidden, intermediate, layers, heads, vocab = (_whole(values, key, name) for key in _REQUIRED)
    kv_heads = _whole(values, "num_key_value_heads", name, heads)
    head_dim = _whole(values, "head_dim", name, max(1, hidden // heads))
    if heads % kv_heads:
        raise ModelError(f"{name}: num_attention_heads={heads} must be a multiple of num_key_value_heads={kv_heads}")
    local, window = _windows(values, layers, name)
    tied = bool(values.get("tie_word_embeddings", False))
    return Architecture(layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, tied, local, window)


def _windows(values: Mapping[str, Any], layers: int, name: str) -> tuple[int, int]:
    """Layers with a window, and its length; every layer has it where ``layer_types`` does not say."""
    if values.get("sliding_window") is None:
        return 0, 0
    window, kinds = _whole(values, "sliding_window", name), values.get("layer_types")
    if kinds is None:
        return layers, window
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list | tuple) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise ModelError(f"{name}: layer_types must list {' or '.join(map(repr, known))} for each of {layers} layers")
    return kinds.count("sliding_attention"), window


def _whole(values: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    value = values.get(key)
    if value is None:
        value = default
    if value is None:
        raise ModelError(f"{name}: {key} is missing; needed are {', '.join(_REQUIRED)}")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise ModelError(f"{name}: {key}={str(value)[:40]} must be a whole number from 1 to {_LARGEST:,}")
    return value
