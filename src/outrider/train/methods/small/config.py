"""What a small draft is, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.models.decoder_config import DecoderConfig


@dataclass(frozen=True)
class SmallConfig:
    """A Llama model: half the target's depth and half its width, so an eighth of what its blocks hold.

    Heads keep their number and have half the width, as in the article (8 heads of 128 become 8 of 64): any grouping of
    queries still divides, and where the target's widths are multiples of 64, all of the draft's are multiples of 32.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    draft_vocab_size: int
    """Tokens whose logits are learnt; all others have the logit 0."""
    max_positions: int
    """Longest text that training may show."""

    @classmethod
    def of_target(cls, target: DecoderConfig, *, draft_vocab_size: int, max_positions: int) -> SmallConfig:
        """The draft for this target, whatever its family."""
        return cls(
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size // 2,
            intermediate_size=target.intermediate_size // 2,
            num_layers=-(-target.num_layers // 2),
            num_heads=target.num_heads,
            num_kv_heads=target.num_kv_heads,
            # Even, for rotations turn pairs.
            head_dim=max(2, target.head_dim // 4 * 2),
            norm_eps=target.norm_eps,
            rope_theta=target.rope.theta,
            draft_vocab_size=draft_vocab_size,
            max_positions=max_positions,
        )

    @property
    def left_out(self) -> int:
        """Tokens whose logit is 0."""
        return self.vocab_size - self.draft_vocab_size

    def to_dict(self) -> dict[str, Any]:
        return {"format": "small", **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SmallConfig:
        """From ``to_dict``."""
        return cls(**{key: value for key, value in values.items() if key != "format"})

    def to_hugging_face(self) -> dict[str, Any]:
        """``config.json``, for Transformers 4 and 5 and for vLLM; ids of special tokens are the tokenizer's."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_positions,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        }
