"""Randomness without a stream: every draw is a function of (seed, position, purpose) alone.

A request's output therefore cannot depend on its batch neighbours, on how many draws came before, or (for
what ``emit`` decides) on how the tokens were cut into rounds.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from outrider.sampling.arrays import Floats, as_floats

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_EMIT: Final = 1
_ACCEPT: Final = 2
_DRAFT: Final = 3

_BELOW_ONE: Final = np.nextafter(np.float32(1), np.float32(0))

_NOTHING: Final = np.zeros(4, dtype=np.uint64)

_FAR: Final = 8.0
"""Nats below the likeliest token from where on a token needs luck that its noise shows before any logarithm."""
_MARGIN: Final = 1.01
"""Rounding of noise and weights, for weights within 2**14 of 0: a token too many costs nothing."""
_IDS_PER_BLOCK_CALL: Final = 2000
"""Ids whose noise, made in one go, costs about as much as one block made on its own."""


@dataclass(frozen=True)
class KeyedRandomness:
    """All random decisions of one request.

    ``shared_noise`` makes the drafter draw with the noise the target will use (the coupled verifier's way).
    """

    seed: int
    shared_noise: bool
    # Set to its place before every use, so it carries nothing over; a new one would ask the system for entropy.
    _philox: np.random.Philox = field(default_factory=np.random.Philox, init=False, repr=False, compare=False)

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
        if not 0 < probability < 1:
            return probability >= 1
        word = int(self._noise(_ACCEPT, self.start, i).block(0)[0])
        return (word >> 11) * 2.0**-53 < probability

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        """A token with (possibly unnormalised) log-weights ``logp_V``, the same in whatever round the position falls.

        A position is emitted once, in the round that commits it, so its noise needs no round in its key.
        """
        return _race(as_floats(logp_V), self._noise(_EMIT, 0, i))

    def draft(self, i: int, logq_W: torch.Tensor, ids_W: NDArray[np.intp] | None = None) -> int:
        """The place of a draft token drawn from ``logq_W``, the law of tokens ``ids_W``, ascending; None: of 0 to W-1.

        It is these ids whose noise is shared; noise of the draft's own goes by places.
        """
        if self.randomness.shared_noise:
            return _race(as_floats(logq_W), self._noise(_EMIT, 0, i), ids_W)
        # The round is part of this key: a later round may draft this position again, and by then the first noise has
        # influenced what was kept (block verification looks ahead), so reusing it would bias the output.
        return _race(as_floats(logq_W), self._noise(_DRAFT, self.start, i))

    def _noise(self, purpose: int, start: int, i: int) -> _Noise:
        key = np.array([self.randomness.seed, purpose], dtype=np.uint64)
        return _Noise(self.randomness._philox, key, start, self.start + i)


@dataclass(frozen=True)
class _Noise:
    """One draw's random words: 32 bits for every token id there could be.

    Two tokens share a 64-bit word, so a token's noise does not depend on the vocabulary's size. Philox makes words in
    blocks of four from a counter, so the noise of a few tokens can be had without that of the others.
    """

    philox: np.random.Philox
    key: NDArray[np.uint64]
    start: int
    position: int

    def block(self, number: int, words: int = 4) -> NDArray[np.uint64]:
        """64-bit words from the start of a block on."""
        # Philox's raw words are fixed by its definition, unlike numpy's distributions, which may change with a version.
        # Its counter's lowest word counts blocks within one draw; the others tell draws apart, so none overlap.
        counter = np.array([number, self.start, self.position, 0], dtype=np.uint64)
        self.philox.state = {
            "bit_generator": "Philox",
            "state": {"counter": counter, "key": self.key},
            "buffer": _NOTHING,
            "buffer_pos": _NOTHING.size,
            "has_uint32": 0,
            "uinteger": 0,
        }
        return self.philox.random_raw(words)

    def first(self, tokens: int) -> NDArray[np.uint32]:
        """The words of ids 0 to ``tokens`` - 1."""
        return self.block(0, (tokens + 1) // 2).view(np.uint32)[:tokens]

    def of(self, ids: NDArray[np.intp]) -> NDArray[np.uint32]:
        """The words of these ids, in ascending order."""
        if ids[-1] < _IDS_PER_BLOCK_CALL * ids.size:
            return self.first(int(ids[-1]) + 1)[ids]
        return np.array([self.block(each >> 3).view(np.uint32)[each & 7] for each in ids.tolist()], dtype=np.uint32)


def child_seed(seed: int, index: int) -> int:
    """The seed of answer ``index`` of a request with n > 1, as vLLM derives it."""
    return (seed + index) % 2**64


def fresh_seed() -> int:
    """A seed from the operating system's entropy, for a request that has none."""
    return int.from_bytes(os.urandom(8), "little")


def _race(logp: Floats, noise: _Noise, ids: NDArray[np.intp] | None = None) -> int:
    """Exponential race: argmin of e_v / p_v with e_v ~ Exp(1), which wins with probability proportional to p_v.

    ``ids``: of the tokens that ``logp`` is the law of, ascending; None: 0 to its size. The place of the winner is
    returned.

    Uniforms carry 32 bits: probabilities below about 2**-32 are not resolved. Logarithms are taken only of the noise
    of tokens that could win; the winner is the one that a race of all of them has.
    """
    best = int(logp.argmax())
    assert logp[best] > -np.inf, "a distribution needs at least one possible token, and no NaN"
    likely = logp >= logp[best] - _FAR
    if logp[logp.argmin()] == -np.inf and np.count_nonzero(likely) == np.count_nonzero(logp > -np.inf):
        places = likely.nonzero()[0]
        words = noise.of(places if ids is None else ids[places]) if places.size > 1 else np.zeros(1, np.uint32)
    else:
        every_word = noise.first(logp.size) if ids is None else noise.first(int(ids[-1]) + 1)[ids]
        # e_v >= u_v, so a token _FAR below the best can win only with a uniform below that share of the best's e.
        luck = -math.log1p(-(int(every_word[best]) + 0.5) * 2.0**-32) * math.exp(-_FAR) * _MARGIN
        places = (likely | (every_word <= np.uint32(luck * 2.0**32))).nonzero()[0]
        words = every_word[places]
    return int(places[(logp[places] - _log_exponentials(words)).argmax()])


def _log_exponentials(bits: NDArray[np.uint32]) -> Floats:
    noise = bits.astype(np.float32)
    noise += np.float32(0.5)
    noise *= np.float32(-(2.0**-32))
    # The largest words round to 1, whose exponential would be infinite.
    np.maximum(noise, -_BELOW_ONE, out=noise)
    np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    return np.log(noise, out=noise)
