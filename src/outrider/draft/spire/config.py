"""What a SPIRe draft is, as frozen values: kept beside its weights and read by trainer and drafter alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from outrider.errors import ModelError
from outrider.rules import ABOVE_0, FLAG, LAYERS, complaint, optional, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outrider.models.decoder_config import DecoderConfig

FORMAT = "spire"


_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "draft_vocab_size")
_RULES = {
    **dict.fromkeys(_SIZES, whole(1)),
    "norm_eps": ABOVE_0,
    "rope_theta": ABOVE_0,
    "blocks": LAYERS,
    "reads": LAYERS,
    "window": optional(whole(1)),
    "sink": whole(0),
    "feedback": FLAG,
    "sees_itself": FLAG,
}


@dataclass(frozen=True)
class SpireConfig:
    """Sizes are the target's; layers are counted from 0, and a *state* i is the residual stream after i target layers.

    Source: SPIRe (sparse KV, pruned initialisation, feedback memory, target activations).
    """

    vocab_size: int
    """Of the target: tokens that the draft reads."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    blocks: tuple[int, ...]
    """Target block that each draft layer starts from."""
    reads: tuple[int, ...]
    """Target state that is each draft layer's memory of a committed position."""
    draft_vocab_size: int
    """Tokens that the draft can propose; all others have q = 0."""
    window: int | None = 64
    """Positions before its own that a query sees; None: all."""
    sink: int = 1
    """First positions of the text, always seen."""
    feedback: bool = True
    """A position without target states is remembered as a mixture over depth; otherwise as each layer's input."""
    sees_itself: bool = True
    """A position is among its own keys, by its layer's input; otherwise it sees strictly earlier ones."""

    def __post_init__(self) -> None:
        if not self.blocks or len(self.blocks) != len(self.reads):
            raise ModelError(f"blocks={self.blocks} and reads={self.reads}: one of each for every draft layer")

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @classmethod
    def of_target(cls, target: DecoderConfig, **own: Any) -> SpireConfig:
        """A draft for this target. Raises ModelError for a family whose blocks this draft cannot hold."""
        odd = {
            "qkv_bias": target.qkv_bias, "out_bias": target.out_bias, "mlp_bias": target.mlp_bias,
            "qk_norm": target.qk_norm, "post_norms": target.post_norms, "window": target.window is not None,
            "embedding_scale": target.embedding_scale != 1.0, "activation": target.activation != "silu",
            "rope": target.rope.kind != "default",
        }  # fmt: skip
        wrong = [name for name, differs in odd.items() if differs]
        if wrong:
            raise ModelError(
                f"a draft of the target's blocks takes plain Llama blocks; this target's have {', '.join(wrong)}; "
                "use 'draft_model'"
            )
        return cls(
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_heads=target.num_heads,
            num_kv_heads=target.num_kv_heads,
            head_dim=target.head_dim,
            norm_eps=target.norm_eps,
            rope_theta=target.rope.theta,
            **own,
        )

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str) -> SpireConfig:
        """Raises ModelError for what is no SPIRe configuration."""
        known = {field.name for field in fields(cls)}
        given = {key: value for key, value in values.items() if key != "format"}
        odd = sorted(known ^ set(given))
        if values.get("format") != FORMAT or odd:
            raise ModelError(f"{name}: not the configuration of a SPIRe draft ({', '.join(odd) or 'format'})")
        wrong = complaint(given, _RULES)
        if wrong is not None:
            raise ModelError(f"{name}: {wrong}; export the draft again")
        for key in ("blocks", "reads"):
            given[key] = tuple(given[key])
        return cls(**given)


class Fit(NamedTuple):
    """What of a target a draft depends on. ``layers``: those it has, or after which a draft reads its state."""

    vocab_size: int
    hidden_size: int
    layers: int


def misfit(draft: Fit, target: Fit, name: str) -> str | None:
    """Why a draft is not the named target's; None where it is."""
    if draft[:2] == target[:2] and draft.layers <= target.layers:
        return None
    return (
        f"was trained for another target (vocabulary {draft.vocab_size}, width {draft.hidden_size}, state "
        f"{draft.layers}; {name} has {target.vocab_size}, {target.hidden_size}, {target.layers} layers); train one for "
        "this"
    )
