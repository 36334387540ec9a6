"""Drafters whose proposals a test decides: scripted, random, or hostile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.types import Draft, RequestState

Script = Callable[[RequestState, int], Draft | Sequence[int]]


@dataclass(frozen=True)
class Proposal:
    """One recorded answer of a ``ScriptedDrafter``."""

    sequence_id: int
    committed: tuple[int, ...]
    budget: int
    draft: Draft


class _Stateless:
    """The part of the contract that a drafter without state of its own leaves empty."""

    def open(self, sequence: RequestState) -> None:
        """Nothing to prepare."""

    def close(self, sequence_id: int) -> None:
        """Nothing to forget."""

    def sync(self, sequences: Sequence[RequestState]) -> None:
        """Nothing to bring up to date."""


class ScriptedDrafter:
    """Proposes what a script says, cut to the budget, and records every call.

    The script is a function ``(sequence, budget) -> Draft or tokens``, or a list of them that each sequence walks
    through, a step a round, and then proposes nothing. Any ``logq_KV`` is passed on as it is, true or not.
    """

    name = "scripted"

    def __init__(self, script: Script | Sequence[Draft | Sequence[int]]) -> None:
        self._script = script
        self._round: dict[int, int] = {}
        self.proposals: list[Proposal] = []
        self.synced: list[tuple[int, int]] = []
        """(sequence id, committed tokens) of every ``sync``."""

    @property
    def open_ids(self) -> frozenset[int]:
        """Sequences taken in and not yet closed."""
        return frozenset(self._round)

    def open(self, sequence: RequestState) -> None:
        self._round[sequence.id] = 0

    def close(self, sequence_id: int) -> None:
        self._round.pop(sequence_id, None)

    def sync(self, sequences: Sequence[RequestState]) -> None:
        self.synced += [(sequence.id, len(sequence.tokens)) for sequence in sequences]

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        drafts = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            draft = _cut(self._next(sequence, budget), budget)
            self.proposals.append(Proposal(sequence.id, tuple(sequence.tokens), budget, draft))
            drafts.append(draft)
        return drafts

    def _next(self, sequence: RequestState, budget: int) -> Draft | Sequence[int]:
        if callable(self._script):
            return self._script(sequence, budget)
        at = self._round[sequence.id]
        self._round[sequence.id] = at + 1
        return self._script[at] if at < len(self._script) else ()


class RandomDrafter(_Stateless):
    """Random laws, and tokens really drawn from them: the drafter that knows nothing and never lies.

    The law of each position is seeded by (seed, committed length, position). ``zeros`` is the share of the
    vocabulary given no probability at all.
    """

    name = "random"

    def __init__(self, vocab_size: int, seed: int = 0, scale: float = 1.5, zeros: float = 0.0) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._scale = scale
        self._zeros = zeros

    def law(self, length: int, i: int) -> torch.Tensor:
        """Log-probabilities (V,) of draft position ``i`` after ``length`` committed tokens."""
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + length) * 1_009 + i)
        logits_V = torch.randn(self._vocab_size, generator=generator) * self._scale
        dropped_V = torch.rand(self._vocab_size, generator=generator) < self._zeros
        dropped_V[int(logits_V.argmax())] = False
        return logits_V.masked_fill(dropped_V, -torch.inf).log_softmax(-1)

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: RequestState, budget: int) -> Draft:
        if budget <= 0:
            return Draft()
        length = len(sequence.tokens)
        draws = sequence.randomness.round(length)
        logq_KV = torch.stack([self.law(length, i) for i in range(budget)])
        return Draft(tuple(draws.draft(i, logq_V) for i, logq_V in enumerate(logq_KV)), logq_KV)


class AdversarialDrafter(_Stateless):
    """Point-mass drafts meant to hurt, a different kind each round; none exceeds its budget.

    ``kinds`` are walked through in turn: "noise" (arbitrary tokens), "shuffled" (committed tokens out of order),
    "stutter" (the last token again and again), "eos" (nothing but ends of text), "empty", "short" (one token).
    """

    name = "adversarial"
    kinds = ("noise", "shuffled", "stutter", "eos", "empty", "short")

    def __init__(self, vocab_size: int, eos_id: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._eos_id = eos_id
        self._seed = seed

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        return [
            Draft(tuple(self._tokens(sequence, max(budget, 0))))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

    def _tokens(self, sequence: RequestState, budget: int) -> list[int]:
        # Seeded by the state alone, so that a failing case can be replayed from it.
        length = len(sequence.tokens)
        noise = random.Random(self._seed * 1_000_003 + sequence.id * 1_009 + length)
        kind = self.kinds[(self._seed + length) % len(self.kinds)]
        if kind == "noise":
            return [noise.randrange(self._vocab_size) for _ in range(budget)]
        if kind == "shuffled":
            return [noise.choice(sequence.tokens) for _ in range(budget)]
        if kind == "stutter":
            return [sequence.tokens[-1]] * budget
        if kind == "eos":
            return [self._eos_id] * budget
        return [] if kind == "empty" else [noise.randrange(self._vocab_size)] * min(budget, 1)


def _cut(draft: Draft | Sequence[int], budget: int) -> Draft:
    if not isinstance(draft, Draft):
        return Draft(tuple(draft[:budget]))
    logq_KV = None if draft.logq_KV is None else draft.logq_KV[:budget]
    return Draft(draft.tokens[:budget], logq_KV)
