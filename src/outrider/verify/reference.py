"""Proof by enumeration: the exact law of what a verifier emits, from its real ``judge`` code.

The random decisions of a round are answered every way in turn, each with its exact weight, so that a law can
be compared with plain decoding's to rounding error. Slow: for vocabularies and drafts of a few tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.types import Draft

if TYPE_CHECKING:
    from outrider.types import Verdict
    from outrider.verify.base import Draws, Verifier

Prefix: TypeAlias = tuple[int, ...]
Row: TypeAlias = NDArray[np.float64]
Model: TypeAlias = Callable[[Prefix], Row]
"""From the tokens so far to the next token's probabilities."""
Proposal: TypeAlias = Callable[[Prefix], Row | int]
"""What a drafter does: a distribution to draw from, or one token it always proposes. One kind per drafter."""
Law: TypeAlias = dict[Prefix, float]

R = TypeVar("R")


class EnumeratingDraws:
    """``verify.base.Draws`` that follows a script of choices, then takes the first way of each further one.

    ``unexplored`` collects the scripts of the ways not taken; ``weight`` is the probability of the way taken.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = tuple(script)
        self._taken: tuple[int, ...] = ()
        self.weight = 1.0
        self.unexplored: list[tuple[int, ...]] = []

    def accept(self, i: int, probability: float) -> bool:  # noqa: ARG002
        assert 0.0 <= probability <= 1.0, f"{probability} is no probability"
        return self._choose([1.0 - probability, probability]) == 1

    def emit(self, i: int, logp_V: torch.Tensor) -> int:  # noqa: ARG002
        return self._choose(torch.softmax(logp_V.double(), -1).tolist())

    def _choose(self, weights: Sequence[float]) -> int:
        depth = len(self._taken)
        if depth < len(self._script):
            choice = self._script[depth]
        else:
            choice, *others = [way for way, weight in enumerate(weights) if weight > 0]
            self.unexplored += [(*self._taken, other) for other in others]
        self._taken = (*self._taken, choice)
        self.weight *= weights[choice]
        return choice


def every_outcome(play: Callable[[EnumeratingDraws], R]) -> Iterator[tuple[R, float]]:
    """Run ``play`` once for every way its draws can come out; yields its result and that way's probability."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        draws = EnumeratingDraws(scripts.pop())
        result = play(draws)
        yield result, draws.weight
        scripts += draws.unexplored


def exact_law(
    verifier: Verifier, p: Model, q: Proposal, k: int, *, prefix: Prefix = (), reported: Proposal | None = None
) -> Law:
    """Probability of every token tuple that one round of k draft tokens after ``prefix`` can emit.

    Draft tokens are enumerated from ``q``; the verifier is told ``reported`` where that is given, which is how to
    show that a drafter that misreports what it drew from is noticed.
    """
    law: defaultdict[Prefix, float] = defaultdict(float)
    for tokens, drawn in _drafts(q, k, prefix):
        prefixes = [(*prefix, *tokens[:i]) for i in range(k + 1)]
        draft = Draft(tokens, _log_rows([(reported or q)(before) for before in prefixes[:k]]))
        logp_TV = _log_rows([p(before) for before in prefixes])
        assert logp_TV is not None, "the target has a distribution, not one token"
        for verdict, chance in every_outcome(_judging(verifier, draft, logp_TV)):
            law[(*tokens[: verdict.kept], verdict.token)] += drawn * chance
    return dict(law)


def sequence_law(
    verifier: Verifier, p: Model, q: Proposal, k: int, *, length: int, reported: Proposal | None = None
) -> Law:
    """Law of the first ``length`` tokens when one speculative round is continued by plain decoding."""
    law: defaultdict[Prefix, float] = defaultdict(float)
    for emitted, chance in exact_law(verifier, p, q, k, reported=reported).items():
        for tokens, more in plain_law(p, length, emitted[:length]).items():
            law[tokens] += chance * more
    return dict(law)


def plain_law(p: Model, length: int, prefix: Prefix = ()) -> Law:
    """Law of the first ``length`` tokens of plain decoding that starts with ``prefix``."""
    if len(prefix) == length:
        return {prefix: 1.0}
    law: Law = {}
    for token, chance in enumerate(p(prefix).tolist()):
        if chance > 0:
            law |= {tokens: chance * more for tokens, more in plain_law(p, length, (*prefix, token)).items()}
    return law


def total_variation(a: Law, b: Law) -> float:
    """Half the summed difference: the most by which any event's probability differs."""
    return 0.5 * math.fsum(abs(a.get(tokens, 0.0) - b.get(tokens, 0.0)) for tokens in a.keys() | b.keys())


def expected_emitted(law: Law) -> float:
    """Mean tokens of one round, correction or bonus token included (tau)."""
    return math.fsum(chance * len(tokens) for tokens, chance in law.items())


def block_acceptances(p_TV: Row, q_KV: Row, tokens: Sequence[int]) -> list[float]:
    """h_1..h_k of block verification, straight from its formulas (Sun et al. 2403.10444), in plain probabilities."""
    acceptances, weight = [], 1.0
    for i, token in enumerate(tokens):
        weight = min(1.0, weight * p_TV[i, token] / q_KV[i, token])
        if i + 1 == len(tokens):
            acceptances.append(weight)
            continue
        mass = float(np.maximum(weight * p_TV[i + 1] - q_KV[i + 1], 0.0).sum())
        denominator = mass + 1.0 - weight
        acceptances.append(mass / denominator if denominator > 0 else 1.0)
    return acceptances


def random_model(vocab_size: int, seed: int, zeros: int = 0) -> Model:
    """A distribution of its own for every prefix, ``zeros`` of its tokens impossible; the same on every call."""

    def probabilities(prefix: Prefix) -> Row:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        weights = rng.exponential(size=vocab_size)
        weights[rng.permutation(vocab_size)[:zeros]] = 0.0
        return np.asarray(weights / weights.sum())

    return probabilities


def _drafts(q: Proposal, k: int, prefix: Prefix) -> Iterator[tuple[Prefix, float]]:
    if k == 0:
        yield (), 1.0
        return
    proposed = q(prefix)
    first = [(proposed, 1.0)] if isinstance(proposed, int) else enumerate(proposed.tolist())
    for token, chance in first:
        if chance > 0:
            for rest, more in _drafts(q, k - 1, (*prefix, token)):
                yield (token, *rest), chance * more


def _log_rows(rows: Sequence[Row | int]) -> torch.Tensor | None:
    """(rows, V) log-probabilities in float64; None for no rows or for point masses, which have no row to report."""
    arrays = [row for row in rows if not isinstance(row, int)]
    assert len(arrays) in (0, len(rows)), "a drafter reports rows or point masses, not both"
    return torch.from_numpy(np.stack(arrays)).log() if arrays else None


def _judging(verifier: Verifier, draft: Draft, logp_TV: torch.Tensor) -> Callable[[Draws], Verdict]:
    return lambda draws: verifier.judge(draft, logp_TV, draws)
