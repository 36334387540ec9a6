"""What target and draft hold in memory, whether that fits, and what still would."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.plan.architecture import Architecture, Storage
from outrider.plan.cost import CONTEXT_LIMIT, Footprint, largest, sparse_keys

USABLE = 0.9
"""Share of a device's memory for weights and KV, vLLM's default; activations and the runtime have the rest."""


@dataclass(frozen=True)
class Reads:
    """What a trained SPIRe draft is made from: a target of this vocabulary and width, its state after ``layers``."""

    vocab: int
    hidden: int
    layers: int


@dataclass(frozen=True)
class Model:
    """A model as it will be held. ``name`` is what the user wrote, ``location`` what an engine can load it from."""

    name: str
    location: str
    architecture: Architecture
    storage: Storage
    reads: Reads | None = None
    """Of a SPIRe draft that was trained; None for what decodes alone, and for sizes."""

    @property
    def footprint(self) -> Footprint:
        return self.architecture.footprint(self.storage)

    @property
    def weight_bytes(self) -> float:
        return self.architecture.held_bytes(self.storage)


@dataclass(frozen=True)
class Memory:
    """Bytes that a target and its draft need at a batch and a context, of the bytes there are."""

    device: str
    usable: float
    weights: float
    draft_weights: float
    per_request: float
    """KV of target and draft for one request at the context asked."""
    batch: int
    context: int
    longest_context: int | None
    """That fits at this batch; None: not even one token, or no limit where every layer has a window."""
    largest_batch: int
    """That fits at this context; 0: not even one request."""

    @property
    def needed(self) -> float:
        return self.weights + self.draft_weights + self.batch * self.per_request

    @property
    def fits(self) -> bool:
        return self.needed <= self.usable

    def refusal(self) -> str:
        """Why it does not fit, in numbers, and what would."""
        weights, cache = self.weights + self.draft_weights, self.batch * self.per_request
        what = (
            f"needs {gigabytes(self.needed)} ({gigabytes(weights)} of weights, {gigabytes(cache)} of KV for "
            f"{self.batch} x {self.context} tokens), more than the {gigabytes(self.usable)} for them on {self.device}"
        )
        rooms = []
        if self.longest_context:
            rooms.append(f"a context of {self.longest_context} at batch {self.batch}")
        if self.largest_batch:
            rooms.append(f"a batch of {self.largest_batch} at context {self.context}")
        return f"{what}; what fits: {' or '.join(rooms) or 'nothing, so take another device or a quantization'}"


def plan_memory(
    device: str,
    memory: float,
    target: Model,
    batch: int,
    context: int,
    draft: Model | None = None,
    sparse: bool = False,
) -> Memory:
    """The need on a device of ``memory`` bytes. ``sparse`` with ``draft`` is a small cache of a draft's own.

    A draft that is the target itself (MagicDec) shares its weights.
    """
    usable = memory * USABLE
    weights, draft_weights = target.weight_bytes, draft.weight_bytes if draft and draft is not target else 0.0

    def per_request(tokens: int) -> float:
        kept = sparse_keys(tokens) if sparse else tokens
        return target.footprint.kv_bytes(tokens) + (draft.footprint.kv_bytes(kept) if draft else 0.0)

    free = usable - weights - draft_weights
    longest = largest(lambda tokens: batch * per_request(tokens) <= free, CONTEXT_LIMIT)
    return Memory(
        device=device,
        usable=usable,
        weights=weights,
        draft_weights=draft_weights,
        per_request=per_request(context),
        batch=batch,
        context=context,
        longest_context=longest if 0 < longest < CONTEXT_LIMIT else None,
        largest_batch=max(0, int(free // per_request(context))),
    )


def gigabytes(size: float) -> str:
    """A size for a reader."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
