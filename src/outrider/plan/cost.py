"""What a forward pass and a round cost: bytes moved against arithmetic done, the SPIRe article's model.

Every pass reads the weights once and each sequence's keys and values once, and computes each row; the slower of the two
sets its time (perfect overlap), or their sum without overlap. The article counts in FLOP-equivalents, bytes times HOI
(hardware operational intensity, FLOP a byte): that is a machine of ``flops=HOI`` and ``bandwidth=1``.
Source: arXiv 2504.06419, section 5 and its notebook; Leviathan et al., arXiv 2211.17192, for the round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

SPARSE_SHARE = 8
"""A sparse draft cache keeps one key in this many, and one sink (the article's cost code: 1 + L // 8)."""
CONTEXT_LIMIT = 1 << 40


@dataclass(frozen=True)
class Machine:
    """How fast a device computes (FLOP/s) and reads memory (bytes/s), and whether it does both at once."""

    flops: float
    bandwidth: float
    overlap: bool = True

    def seconds(self, flops: float, nbytes: float) -> float:
        compute, memory = flops / self.flops, nbytes / self.bandwidth
        return max(compute, memory) if self.overlap else compute + memory


@dataclass(frozen=True)
class Footprint:
    """What one forward pass of a model reads and computes, in bytes and FLOP."""

    weight_bytes: float
    """Read once a pass, however many rows it has."""
    flops_per_row: float
    key_bytes: float
    """Keys and values of one position in all layers that see the whole context."""
    local_key_bytes: float = 0.0
    """The same for the layers that see only the last ``window`` positions."""
    window: int = 0
    flops_per_kv_byte: float = 0.0
    """Attention's arithmetic of one row over each byte of its cache; the article leaves it out."""

    def kv_bytes(self, context: float) -> float:
        """Keys and values of one sequence that a pass reads, and that its cache holds."""
        return self.key_bytes * context + self.local_key_bytes * min(context, self.window)

    def seconds(self, machine: Machine, batch: int, context: float, rows: int = 1) -> float:
        """One pass over ``rows`` tokens of each of ``batch`` sequences."""
        cache = batch * self.kv_bytes(context)
        flops = rows * (batch * self.flops_per_row + self.flops_per_kv_byte * cache)
        return machine.seconds(flops, self.weight_bytes + cache)


class Pass(Protocol):
    """How long one forward pass over ``rows`` tokens of each of ``batch`` sequences takes: modelled, or measured."""

    def seconds(self, batch: int, context: int, rows: int = 1) -> float: ...


@dataclass(frozen=True)
class ModelPass:
    """What the model of cost says of a footprint on a machine."""

    footprint: Footprint
    machine: Machine

    def seconds(self, batch: int, context: int, rows: int = 1) -> float:
        return self.footprint.seconds(self.machine, batch, context, rows)


class DraftCost(Protocol):
    """What drafting one token for every sequence of a batch costs, in seconds; ``plain`` is the target's pass."""

    def seconds(self, batch: int, context: int, plain: float) -> float: ...


@dataclass(frozen=True)
class ModelDraft:
    """A forward pass of a draft model, over a sparse cache where ``sparse`` (MagicDec, SPIRe)."""

    model: Pass
    sparse: bool = False

    def seconds(self, batch: int, context: int, plain: float) -> float:  # noqa: ARG002 - its own cost, not a share
        return self.model.seconds(batch, sparse_keys(context) if self.sparse else context)


@dataclass(frozen=True)
class ShareDraft:
    """A fixed share c of the target's pass; 0 for a lookup."""

    share: float

    def seconds(self, batch: int, context: int, plain: float) -> float:  # noqa: ARG002 - whatever they are
        return self.share * plain


@dataclass(frozen=True)
class ScaledDraft:
    """A modelled draft beside a measured target: the share that it has of the target's modelled pass."""

    draft: DraftCost
    target: Pass

    def seconds(self, batch: int, context: int, plain: float) -> float:
        modelled = self.target.seconds(batch, context)
        return plain * self.draft.seconds(batch, context, modelled) / modelled


@dataclass(frozen=True)
class Speculation:
    """A target model and what drafts for it. A round is k draft passes and one target pass of k + 1 rows a sequence."""

    target: Pass
    draft: DraftCost

    def seconds(self, k: int, batch: int, context: int) -> float:
        """One round; k = 0 is plain decoding."""
        verify = self.target.seconds(batch, context, k + 1)
        return verify + k * self.draft.seconds(batch, context, self.target.seconds(batch, context)) if k else verify

    def relative(self, batch: int, context: int) -> Callable[[int], float]:
        """A round's cost by k over plain decoding's: the article's delta t."""
        plain = self.target.seconds(batch, context)
        return lambda k: self.seconds(k, batch, context) / plain


def sparse_keys(context: int) -> int:
    """Positions that a sparse draft cache holds."""
    return 1 + context // SPARSE_SHARE


def critical_batch(model: Footprint, machine: Machine, context: int, rows: int) -> float | None:
    """The batch from which a pass of ``rows`` a sequence is bound by arithmetic: more sequences buy nothing then.

    None when it stays bound by memory at any batch, since each sequence brings more cache to read than work to do.
    """
    cache = model.kv_bytes(context)
    compute = rows * (model.flops_per_row + model.flops_per_kv_byte * cache) / machine.flops
    spare = compute - cache / machine.bandwidth
    return model.weight_bytes / machine.bandwidth / spare if spare > 0 else None


def critical_context(model: Footprint, machine: Machine, rows: int) -> int | None:
    """The shortest context at which a pass of ``rows`` a sequence stays bound by memory at any batch; None: no context.

    The article's L_crit counts the k drafts alone, ``rows=k``.
    """
    longest = largest(lambda context: critical_batch(model, machine, context, rows) is not None, CONTEXT_LIMIT)
    return None if longest == CONTEXT_LIMIT else longest + 1


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """The largest whole number up to ``limit`` for which something holds that holds for all smaller ones; -1: none."""
    low, high = -1, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
