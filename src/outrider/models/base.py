"""The TargetRunner contract: the only way the engine and drafters reach a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Feed:
    """Tokens to run through the model for one sequence, appended at its current length.

    Prefill chunk, pending token plus drafts, and recovery after a crash are all this one case.
    ``rows`` is how many of the last tokens need logits (0 for a prefill chunk that is not the last).
    """

    sequence_id: int
    tokens: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Scores:
    """One entry per feed: raw logits ``(rows, vocab)`` and, when asked for, final hidden states ``(rows, width)`` and
    the residual stream at chosen depths ``(layers, tokens, width)``, of every token fed."""

    logits: tuple[torch.Tensor, ...]
    hidden: tuple[torch.Tensor, ...] | None = None
    states: tuple[torch.Tensor, ...] | None = None


@dataclass(frozen=True)
class Capabilities:
    """What a runner can do; checked at construction, never discovered at the first request."""

    rollback: Literal["truncate", "none"] = "truncate"
    hidden_states: bool = False
    layer_states: bool = False
    """``score`` gives the residual stream after chosen layers."""
    deterministic_shape: bool = False
    """A row's bits depend on its own sequence only: not on rows, padding or batch neighbours beside it."""


class TargetRunner(Protocol):
    """A causal language model with one KV slot per open sequence."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int:
        """Most tokens a slot can hold."""
        ...

    @property
    def max_num_seqs(self) -> int: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def open(self, sequence_id: int) -> None:
        """Reserve a slot of ``max_model_len`` tokens, length 0. The caller keeps to ``max_num_seqs``."""
        ...

    def close(self, sequence_id: int) -> None:
        """Free the slot; unknown ids are ignored, so that it is safe after any failure."""
        ...

    def length(self, sequence_id: int) -> int:
        """Tokens whose KV the slot holds."""
        ...

    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        """Run every feed in one packed forward; each slot grows by its feed's tokens.

        ``layers``: states after so many layers (0: the embeddings) come with the scores, where
        ``capabilities.layer_states`` says that they can.

        If it raises, lengths are as before the call.
        """
        ...

    def commit(self, sequence_id: int, length: int) -> None:
        """Set the slot's length, absolute and idempotent; never beyond what was fed."""
        ...
