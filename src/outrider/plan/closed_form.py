"""When speculation pays, from survival and cost alone.

``survival[j]`` is the share of rounds that keep draft token j + 1 (unconditional, never rising). ``cost(k)`` is a
round's cost by draft length, in any unit: k c + v(k) for a draft cost c and a verify cost v. It must be convex in k, as
passes bound by memory or arithmetic are; then gain per cost has one peak.
Sources: Leviathan et al., arXiv 2211.17192, equation 1 and theorem 3.8; MagicDec, arXiv 2408.11049, equation 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Cost = Callable[[int], float]
_HALVINGS = 60  # to the last bit of a float


def geometric_survival(alpha: float, k: int) -> tuple[float, ...]:
    """Survival of k positions when every draft token is accepted with probability ``alpha``, independently."""
    return tuple(alpha**j for j in range(1, k + 1))


def expected_tokens(survival: Sequence[float], k: int) -> float:
    """Mean tokens a round of k drafts emits (tau); for a geometric survival (1 - alpha^(k+1)) / (1 - alpha)."""
    return 1.0 + sum(survival[:k])


def speedup(survival: Sequence[float], k: int, cost: Cost) -> float:
    """Tokens per second over plain decoding's."""
    return expected_tokens(survival, k) * cost(0) / cost(k)


def best_k(survival: Sequence[float], cost: Cost) -> int:
    """The fastest draft length, up to ``len(survival)``, by the marginal rule; 0 is plain decoding.

    One token more pays while it adds a larger share to the tokens expected than to the cost.
    """
    k, tokens = 0, 1.0
    while k < len(survival) and survival[k] / tokens > cost(k + 1) / cost(k) - 1.0:
        tokens += survival[k]
        k += 1
    return k


def fastest_k(survival: Sequence[float], cost: Cost) -> int:
    """The same for any cost, by trying every length: passes that are measured have steps. The shortest of the best."""
    return max(range(len(survival) + 1), key=lambda k: speedup(survival, k, cost))


def alpha_for(tokens: float, k: int) -> float | None:
    """The acceptance rate at which rounds of k drafts emit ``tokens`` on average; None above k + 1."""
    if tokens > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(geometric_survival(middle, k), k) < tokens else (low, middle)
    return high if tokens > 1.0 else 0.0


def break_even(cost: Cost, k: int = 1) -> float | None:
    """The acceptance rate above which rounds of k drafts are faster than plain decoding; None: never.

    At k = 1 it is the least that any k can do with: c + v(1) - 1.
    """
    return alpha_for(cost(k) / cost(0), k)


def net_saving(speedup: float, serving: float, training: float = 0.0) -> float:
    """Compute saved by serving that would cost ``serving`` without drafts, less the drafts' ``training``; one unit."""
    return serving * (1.0 - 1.0 / speedup) - training
