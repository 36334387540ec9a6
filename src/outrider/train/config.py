"""What a training run is, as a frozen value: one field, one flag, one line of the provenance beside a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from outrider.config import DEFAULT_MODEL
from outrider.errors import ConfigError
from outrider.rules import ABOVE_0, FLAG, LAYERS, NOT_BELOW_0, SHARE, complaint, optional, whole
from outrider.train.methods import check_method

_LAYERS = 3


_RULES = {
    **dict.fromkeys(("draft_vocab_size", "k", "segment", "batch", "accumulate", "steps"), whole(1)),
    **dict.fromkeys(("warmup", "sink", "seed"), whole(0)),
    **dict.fromkeys(("feedback", "sees_itself", "pruned_init", "hard_targets"), FLAG),
    **dict.fromkeys(("blocks", "reads"), LAYERS),
    **dict.fromkeys(("learning_rate", "clip"), ABOVE_0),
    "window": optional(whole(1)),
    "weight_decay": NOT_BELOW_0,
    "omega": SHARE,
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run."""

    target: str = DEFAULT_MODEL
    method: str = "spire"
    """Kind of draft, of ``train/methods``."""
    blocks: tuple[int, ...] = ()
    """Target blocks, counted from 0, that the draft's layers start from; empty: three, spread over its depth."""
    reads: tuple[int, ...] = ()
    """Target state (after so many blocks) that each layer remembers of a committed position; empty: as ``blocks``."""
    draft_vocab_size: int = 8192
    """Most frequent tokens of the training text that the draft may propose."""
    window: int | None = 64
    sink: int = 1
    feedback: bool = True
    sees_itself: bool = True
    pruned_init: bool = True
    omega: float = 0.5
    """Share of the cross-entropy in MixedLoss; the rest is the acceptance rate."""
    hard_targets: bool = False
    k: int = 4
    """Positions of a block: the draft length that training rehearses."""
    segment: int = 64
    """Positions learnt of a text at a time, whole blocks."""
    batch: int = 32
    """Segments of a step."""
    accumulate: int = 1
    """Batches of a step, one after the other: as much as one so many times as large, in the memory of one."""
    steps: int = 5000
    learning_rate: float = 5e-4
    warmup: int = 100
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_method(self.method)
        wrong = complaint(asdict(self), _RULES)
        if wrong is not None:
            raise ConfigError(wrong)
        if self.segment % self.k:
            raise ConfigError(f"segment={self.segment} must be a multiple of k={self.k}: a segment is whole blocks")
        if self.reads and len(self.blocks) != len(self.reads):
            raise ConfigError(f"blocks={self.blocks} and reads={self.reads}: give one of each for every draft layer")

    def for_depth(self, num_layers: int) -> TrainConfig:
        """The same with ``blocks`` and ``reads`` filled in for a target of so many blocks."""
        last_of_parts = sorted({max(0, num_layers * part // _LAYERS - 1) for part in range(1, _LAYERS + 1)})
        blocks = self.blocks or tuple(last_of_parts)
        return replace(self, blocks=blocks, reads=self.reads or blocks)

    def to_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Raises ConfigError for a key that is none; lists become tuples."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known), key=repr)
        if unknown:
            raise ConfigError(f"unknown setting {unknown[0]!r}; known: {', '.join(known)}")
        given: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in values.items()}
        return cls(**given)
