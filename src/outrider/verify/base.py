"""The verifier contract: an accept rule, pure in everything but the randomness it is handed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from outrider.types import Draft, Verdict

if TYPE_CHECKING:
    import torch


class Draws(Protocol):
    """The random decisions of one round, by position in the draft.

    A real round answers from noise keyed by (seed, position, purpose); an enumerating one
    (``verify.reference``) answers every way in turn, which is how a verifier is proven exact.
    """

    def accept(self, i: int, probability: float) -> bool:
        """Whether an event of that probability happens at draft position ``i``; independent over ``i``."""
        ...

    def emit(self, i: int, logp_V: torch.Tensor) -> int:
        """A token with (possibly unnormalised) log-weights ``logp_V``, emitted at draft position ``i``."""
        ...


class Rows(Protocol):
    """The target's distributions, a row (V,) for every position: a tensor (T, V), or rows made when they are asked for.

    On the CPU, and of a dtype that numpy knows.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> torch.Tensor: ...


class Verifier(Protocol):
    """Judges a draft against the target's distribution."""

    name: str
    lossless: bool
    shared_noise: bool
    """Whether draft tokens are to be drawn with the noise ``Draws.emit`` will use (coupling).

    Such a rule compares tokens and looks at no probability, so its rows need not be normalised.
    """

    def judge(self, draft: Draft, logp_TV: Rows, draws: Draws) -> Verdict:
        """Keep a prefix of the draft and emit one token after it.

        ``logp_TV`` has ``len(draft.tokens) + 1`` rows: row i is the target's distribution for
        the token at draft position i, after policy. Rows that are not looked at cost nothing. Mutates nothing.
        """
        ...
