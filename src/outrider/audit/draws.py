"""Is every random choice of a speculative round made with the odds it should have, whatever went before?"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.stats import kstest

from outrider.sampling.arrays import Floats, as_floats
from outrider.types import Draft, Verdict

if TYPE_CHECKING:
    import torch

    from outrider.engine.sequence import Sequence
    from outrider.verify.base import Draws, Rows, Verifier

PURPOSES: Final = ("draft tokens", "acceptances", "emitted tokens")
DRAFTED, ACCEPTED, EMITTED = PURPOSES


@dataclass(frozen=True)
class DrawTest:
    """Kolmogorov-Smirnov test of the choices of one kind."""

    count: int
    p_value: float
    alarm: float

    @property
    def rejected(self) -> bool:
        return self.p_value < self.alarm


@dataclass(frozen=True)
class DrawCheck:
    """Draft tokens against the q reported with them, acceptances and emitted tokens against what the rule asked for."""

    tests: Mapping[str, DrawTest]
    """By purpose; those that were never drawn for are left out."""

    @property
    def rejected(self) -> tuple[str, ...]:
        return tuple(purpose for purpose, test in self.tests.items() if test.rejected)

    @property
    def passed(self) -> bool:
        return not self.rejected


@dataclass
class DrawWatch:
    """Wraps accept rules and notes the rank of every choice among those that could have been made instead.

    Ranks are randomised integral transforms: uniform on (0, 1) given all that went before, and so independent, if
    each choice has the odds it should have. One that leans on noise that was used before has others.
    """

    ranks: dict[str, list[float]] = field(default_factory=lambda: {purpose: [] for purpose in PURPOSES})
    # Whose luck it is matters to no one; that an audit with a seed can be repeated does.
    luck: Callable[[], float] = field(default_factory=lambda: random.Random(0).random)

    def __call__(self, sequence: Sequence) -> Verifier:
        return self.wrap(sequence.verifier)

    def wrap(self, verifier: Verifier) -> Verifier:
        return _Overheard(verifier, self)

    def drafted(self, draft: Draft) -> None:
        for token, logq_V in zip(draft.tokens, () if draft.logq_KV is None else draft.logq_KV, strict=False):
            self.ranks[DRAFTED].append(rank(as_floats(logq_V), token, self.luck()))

    def accepted(self, probability: float, happened: bool) -> None:
        if 0 < probability < 1:
            luck = self.luck()
            self.ranks[ACCEPTED].append(luck * probability if happened else 1 - luck * (1 - probability))

    def emitted(self, logp_V: torch.Tensor, token: int) -> None:
        self.ranks[EMITTED].append(rank(as_floats(logp_V), token, self.luck()))

    def check(self, alarm: float) -> DrawCheck:
        """``alarm``: odds of a false alarm of each of at most ``len(PURPOSES)`` tests."""
        tests = {
            purpose: DrawTest(len(ranks), float(kstest(ranks, "uniform").pvalue), alarm)
            for purpose, ranks in self.ranks.items()
            if ranks
        }
        return DrawCheck(tests)


def rank(logp_V: Floats, token: int, luck: float) -> float:
    """The share of the tokens likelier than this one, and ``luck`` of those as likely, by their (log-)weights."""
    weights_V = np.exp(logp_V - logp_V.max())
    likelier, equal = logp_V > logp_V[token], logp_V == logp_V[token]
    above, level = (float(weights_V.sum(where=some, dtype=np.float64)) for some in (likelier, equal))
    return (above + luck * level) / float(weights_V.sum(dtype=np.float64))


class _Overheard:
    """A verifier that judges as the one inside does."""

    def __init__(self, inner: Verifier, watch: DrawWatch) -> None:
        self._inner = inner
        self._watch = watch
        self.name = inner.name
        self.lossless = inner.lossless
        self.shared_noise = inner.shared_noise

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        # Under shared noise a refused position is drafted again with the noise it had, which is no fault there.
        if not self.shared_noise:
            self._watch.drafted(draft)
        return self._inner.judge(draft, logp_TV, _OverheardDraws(draws, self._watch))


class _OverheardDraws:
    def __init__(self, inner: Draws, watch: DrawWatch) -> None:
        self._inner = inner
        self._watch = watch

    def accept(self, i: int, probability: float) -> bool:
        happened = self._inner.accept(i, probability)
        self._watch.accepted(probability, happened)
        return happened

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        token = self._inner.emit(i, logp_V)
        self._watch.emitted(logp_V, token)
        return token
