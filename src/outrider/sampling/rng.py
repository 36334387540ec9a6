"""Randomness without a stream: every draw is a function of (seed, position, purpose) alone.

A request's output therefore cannot depend on its batch neighbours, on how many draws came before, or (for
what ``emit`` decides) on how the tokens were cut into rounds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_EMIT: Final = 1
_ACCEPT: Final = 2
_DRAFT: Final = 3

_BELOW_ONE: Final = np.nextafter(np.float32(1), np.float32(0))


@dataclass(frozen=True)
class KeyedRandomness:
    """All random decisions of one request.

    ``shared_noise`` makes the drafter draw with the noise the target will use (the coupled verifier's way).
    """

    seed: int
    shared_noise: bool

    def round(self, start: int) -> RoundDraws:
        """The draws of one round; ``start`` is the number of committed tokens, i.e. draft position 0's position."""
        return RoundDraws(self, start)


@dataclass(frozen=True)
class RoundDraws:
    """One round's draws: ``verify.base.Draws`` for the verifier, ``draft`` for the drafter."""

    randomness: KeyedRandomness
    start: int

    def accept(self, i: int, probability: float) -> bool:
        """Whether an event of that probability happens at draft position ``i``; independent of every other draw."""
        word = int(self._bits(_ACCEPT, self.start, i, 1)[0])
        return (word >> 11) * 2.0**-53 < probability

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        """A token with (possibly unnormalised) log-weights ``logp_V``, the same in whatever round the position falls.

        A position is emitted once, in the round that commits it, so its noise needs no round in its key.
        """
        return _race(logp_V, self._bits(_EMIT, 0, i, _words(logp_V)))

    def draft(self, i: int, logq_V: torch.Tensor) -> int:
        """A draft token drawn from ``logq_V``."""
        if self.randomness.shared_noise:
            return self.emit(i, logq_V)
        # The round is part of this key: a later round may draft this position again, and by then the first noise has
        # influenced what was kept (block verification looks ahead), so reusing it would bias the output.
        return _race(logq_V, self._bits(_DRAFT, self.start, i, _words(logq_V)))

    def _bits(self, purpose: int, start: int, i: int, words: int) -> NDArray[np.uint64]:
        # Philox's raw words are fixed by its definition, unlike numpy's distributions, which may change with a version.
        # Its counter's lowest word counts blocks within one draw; the others tell draws apart, so none overlap.
        key = np.array([self.randomness.seed, purpose], dtype=np.uint64)
        counter = np.array([0, start, self.start + i, 0], dtype=np.uint64)
        return np.random.Philox(key=key, counter=counter).random_raw(words)


def child_seed(seed: int, index: int) -> int:
    """The seed of answer ``index`` of a request with n > 1, as vLLM derives it."""
    return (seed + index) % 2**64


def fresh_seed() -> int:
    """A seed from the operating system's entropy, for a request that has none."""
    return int.from_bytes(os.urandom(8), "little")


def _words(logp_V: torch.Tensor) -> int:
    return (logp_V.shape[-1] + 1) // 2


def _race(logp_V: torch.Tensor, bits: NDArray[np.uint64]) -> int:
    """Exponential race: argmin of e_v / p_v with e_v ~ Exp(1), which wins with probability proportional to p_v.

    Two tokens share a 64-bit word, so a token's noise does not depend on the vocabulary's size. Uniforms carry 32
    bits: probabilities below about 2**-32 are not resolved.
    """
    logp = logp_V.detach().float().cpu().contiguous().numpy()
    score = logp - _log_exponentials(bits.view(np.uint32)[: logp.shape[0]])
    winner = int(score.argmax())
    assert score[winner] > -np.inf, "a distribution needs at least one possible token, and no NaN"
    return winner


def _log_exponentials(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    noise = bits.astype(np.float32)
    noise += np.float32(0.5)
    noise *= np.float32(2.0**-32)
    # The largest words round to 1, whose exponential would be infinite.
    np.minimum(noise, _BELOW_ONE, out=noise)
    np.negative(noise, out=noise)
    np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    return np.log(noise, out=noise)
