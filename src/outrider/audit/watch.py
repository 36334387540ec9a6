"""What accept rules are shown while an engine serves: overheard, never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from outrider.audit.capture import DEEP, WIDE, CapturedRound, capture
from outrider.types import Draft, Verdict

if TYPE_CHECKING:
    import torch

    from outrider.engine.sequence import Sequence
    from outrider.verify.base import Draws, Rows, Verifier


@dataclass(frozen=True)
class ShownRows:
    """The target rows of one round, as digests: whole rows of every round would not fit in memory."""

    start: int
    """Tokens committed before it."""
    draft: tuple[int, ...]
    digests: tuple[bytes, ...]


@dataclass
class Watched:
    """One sequence and all that its accept rule was shown. It is the engine's own, so in the end it is whole."""

    sequence: Sequence
    rule: Verifier
    shown: list[ShownRows] = field(default_factory=list)
    captured: list[CapturedRound] = field(default_factory=list)


@dataclass
class Watch:
    """Wraps the accept rule of every sequence; of each, the first ``rounds`` with a draft are captured."""

    rounds: int
    sequences: list[Watched] = field(default_factory=list)

    def __call__(self, sequence: Sequence) -> Verifier:
        self.sequences.append(Watched(sequence, sequence.verifier))
        return _Overheard(self.sequences[-1], self.rounds)


class _Overheard:
    """A verifier that judges as the one inside does."""

    def __init__(self, watched: Watched, rounds: int) -> None:
        self._watched = watched
        self._inner = watched.rule
        self._rounds = rounds
        self.name = self._inner.name
        self.lossless = self._inner.lossless
        self.shared_noise = self._inner.shared_noise

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        watched = self._watched
        digests = tuple(digest(logp_TV[i]) for i in range(len(logp_TV)))
        watched.shown.append(ShownRows(len(watched.sequence.tokens), draft.tokens, digests))
        if draft.tokens and len(watched.captured) < self._rounds:
            depth = DEEP if len(watched.captured) % 2 else WIDE
            watched.captured.append(capture(self._inner, draft, logp_TV, depth))
        return self._inner.judge(draft, logp_TV, draws)


def digest(row_V: torch.Tensor) -> bytes:
    """Equal for equal bits."""
    return blake2b(row_V.numpy().tobytes(), digest_size=16).digest()
