"""What our decoder needs to know about a model of the Llama family, as plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from outrider.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PretrainedConfig

Activation = Literal["silu", "gelu_tanh"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: its base, and how frequencies are stretched for a longer context (Llama 3.1, or linear)."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder: sizes, and the few switches in which the families differ."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    attention_scale: float
    local: tuple[bool, ...]
    """One entry a layer: whether it sees only the last ``window`` keys."""
    window: int | None
    rope: RopeConfig
    rope_local: RopeConfig
    activation: Activation = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    """Gemma: the outputs of attention and MLP are normalised too, before they join the residual."""
    norm_offset: float = 0.0
    """Gemma stores norm weights as their distance from 1."""
    embedding_scale: float = 1.0
    tied: bool = True

    @property
    def num_layers(self) -> int:
        return len(self.local)

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_hf(cls, config: PretrainedConfig) -> DecoderConfig:
        """Read a Transformers configuration. Raises CapabilityError for a feature this decoder does not have."""
        family = str(config.model_type)
        if family not in FAMILIES:
            raise CapabilityError(f"model_type={family!r} is not one of {', '.join(FAMILIES)}; use another runner")
        _refuse_unknown_features(config)
        heads = int(config.num_attention_heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        if min(heads, kv_heads, head_dim) < 1 or heads % kv_heads or head_dim % 2:
            raise CapabilityError(
                f"num_attention_heads={heads}, num_key_value_heads={kv_heads}, head_dim={head_dim} do not fit: all "
                "must be 1 or more, heads must divide evenly among KV heads and head_dim be even; use another runner"
            )
        gemma = family == "gemma3_text"
        local, window = _windows(config)
        rope, rope_local = _ropes(config)
        attention_bias = bool(getattr(config, "attention_bias", False))
        return cls(
            family=family,
            vocab_size=int(config.vocab_size),
            hidden_size=int(config.hidden_size),
            intermediate_size=int(config.intermediate_size),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=float(config.rms_norm_eps),
            attention_scale=float(config.query_pre_attn_scalar if gemma else head_dim) ** -0.5,
            local=local,
            window=window,
            rope=rope,
            rope_local=rope_local,
            activation=_activation(config),
            qkv_bias=family == "qwen2" or attention_bias,
            out_bias=attention_bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            qk_norm=family in ("qwen3", "gemma3_text"),
            post_norms=gemma,
            norm_offset=1.0 if gemma else 0.0,
            embedding_scale=float(config.hidden_size) ** 0.5 if gemma else 1.0,
            tied=bool(config.tie_word_embeddings),
        )


def supports(config: PretrainedConfig) -> bool:
    """Whether this decoder can run the model, so that a caller may choose another runner instead."""
    try:
        DecoderConfig.from_hf(config)
    except CapabilityError:
        return False
    return True


def _refuse_unknown_features(config: PretrainedConfig) -> None:
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        value = getattr(config, name, None)
        if value:
            raise CapabilityError(f"{name}={value!r} is not supported by this decoder; use another runner")


def _activation(config: PretrainedConfig) -> Activation:
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise CapabilityError(
            f"hidden_act={name!r} is not supported by this decoder (it has {known}); use another runner"
        )
    return _ACTIVATIONS[name]


def _windows(config: PretrainedConfig) -> tuple[tuple[bool, ...], int | None]:
    layers = int(config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    if window is None:
        return (False,) * layers, None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (True,) * layers, int(window)
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise CapabilityError(f"layer_types has {min(unknown)!r}, which this decoder does not have; use another runner")
    return tuple(kind == "sliding_attention" for kind in kinds), int(window)


def _ropes(config: PretrainedConfig) -> tuple[RopeConfig, RopeConfig]:
    parameters: Mapping[str, Any] = config.rope_parameters
    full, sliding = parameters.get("full_attention"), parameters.get("sliding_attention")
    return _rope(full or sliding or parameters, config), _rope(sliding or full or parameters, config)


def _rope(parameters: Mapping[str, Any], config: PretrainedConfig) -> RopeConfig:
    kind = parameters.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3"):
        raise CapabilityError(
            f"rope_type={kind!r} is not supported by this decoder (it has default, linear, llama3); use another runner"
        )
    if float(parameters.get("partial_rotary_factor") or 1.0) != 1.0:
        raise CapabilityError("partial_rotary_factor below 1 is not supported by this decoder; use another runner")
    base = RopeConfig(float(parameters["rope_theta"]))
    if kind == "default":
        return base
    original = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
    return RopeConfig(
        base.theta,
        kind,
        float(parameters["factor"]),
        float(parameters.get("low_freq_factor", base.low_freq_factor)),
        float(parameters.get("high_freq_factor", base.high_freq_factor)),
        int(original),
    )
