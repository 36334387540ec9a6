"""Deliberate mistakes: a check that does not see these has shown nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from outrider.draft.base import Drafter
from outrider.types import Draft, RequestState, Verdict

if TYPE_CHECKING:
    from outrider.engine.sequence import Sequence
    from outrider.verify.base import Draws, Rows, Verifier


@dataclass(frozen=True)
class ControlCheck:
    """What became of the deliberate mistake, the last one tried."""

    mistake: str
    caught: bool
    by: str
    """Which check saw it, in words; what it saw instead if it did not."""
    unseen: tuple[str, ...] = ()
    """Smaller mistakes that were tried before it and changed too little to be seen."""

    @property
    def passed(self) -> bool:
        return self.caught


@dataclass(frozen=True)
class Mistake:
    """One way to spoil an engine: its drafter or its accept rule."""

    words: str
    drafter: Callable[[Drafter], Drafter] | None = None
    verifier: Callable[[Sequence], Verifier] | None = None


def mistakes_for(verifier: Verifier, greedy: bool, vocab_size: int) -> tuple[Mistake, ...]:
    """A wrong q where the accept rule looks at q, then a rule that keeps what it should not.

    Where the target is nearly sure of its tokens a wrong q biases next to nothing, which is no fault of the audit.
    """
    keeps = Mistake(
        "an accept rule that keeps the first draft token whatever the target says",
        verifier=lambda sequence: KeepsFirst(sequence.verifier),
    )
    if greedy or verifier.shared_noise:
        return (keeps,)
    misreports = Mistake(
        "a drafter that always proposes one token and reports that it drew from a distribution",
        drafter=lambda drafter: Misreporting(drafter, vocab_size),
    )
    return misreports, keeps


class Misreporting:
    """Proposes the likeliest token of each reported row, and still reports the row.

    A point mass is reported as drawn evenly from all tokens. This is the fault of a drafter that decodes greedily
    under a rule that takes its tokens for sampled ones.
    """

    def __init__(self, inner: Drafter, vocab_size: int) -> None:
        self._inner = inner
        self._even_V = torch.full((vocab_size,), -math.log(vocab_size))

    @property
    def name(self) -> str:
        return self._inner.name

    def open(self, sequence: RequestState) -> None:
        self._inner.open(sequence)

    def close(self, sequence_id: int) -> None:
        self._inner.close(sequence_id)

    def sync(self, sequences: Seq[RequestState]) -> None:
        self._inner.sync(sequences)

    def propose(self, sequences: Seq[RequestState], budgets: Seq[int]) -> list[Draft]:
        return [self._misreported(draft) for draft in self._inner.propose(sequences, budgets)]

    def _misreported(self, draft: Draft) -> Draft:
        if not draft.tokens:
            return draft
        if draft.logq_KV is None:
            return Draft(draft.tokens, self._even_V.expand(len(draft.tokens), -1))
        return Draft(tuple(draft.logq_KV.argmax(-1).tolist()), draft.logq_KV)


class KeepsFirst:
    """Judges as the rule inside does, but never refuses the first draft token."""

    def __init__(self, inner: Verifier) -> None:
        self.name = inner.name
        self.lossless = False
        self.shared_noise = inner.shared_noise
        self._inner = inner

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        verdict = self._inner.judge(draft, logp_TV, draws)
        if verdict.kept > 0 or not draft.tokens:
            return verdict
        return Verdict(1, draws.emit(1, logp_TV[1]))
