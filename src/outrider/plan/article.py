"""The SPIRe article's models and what it measured of them, and its multipliers from our cost model.

Source: arXiv 2504.06419, sections 5 and 6 and its notebook. Its counting: layers alone without embeddings, one byte a
number, no arithmetic of attention, a machine of 600 FLOP a byte (H100 SXM at FP8), k = 4, tau held at its value at a
context of 512.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from outrider.plan.architecture import Architecture
from outrider.plan.cost import Footprint, Machine, ModelDraft, ModelPass, Speculation

K = 4
BATCH = 64
CONTEXT = 512
"""Where tau was measured."""
MACHINE = Machine(flops=600.0, bandwidth=1.0)

TAU: Mapping[str, float] = MappingProxyType({"vanilla": 2.647, "MagicDec": 3.891, "SPIRe": 3.401})
"""By draft."""
ABLATIONS: Mapping[str, float] = MappingProxyType(
    {
        "SPIRe": 3.401,
        "no MixedLoss (omega = 1)": 3.375,
        "no feedback memory": 3.352,
        "random initialisation": 3.105,
        "hard targets": 3.069,
        "no feedback memory, no target activations": 2.959,
    }
)
"""Tau of SPIRe, and without one of its parts."""

BATCHES = tuple(2**n for n in range(8))
"""Of the heat map."""
MAP_CONTEXTS = tuple(2**n for n in range(5, 14))
CONTEXTS = tuple(2**n for n in range(3, 14))
"""Of the figure at one batch."""
LLAMA_CONTEXTS = tuple(2**n for n in range(10, 21))


@dataclass(frozen=True)
class Setup:
    """A target with the drafts that are compared; MagicDec drafts with the target itself."""

    target: Architecture
    vanilla: Architecture
    spire: Architecture

    def speculation(self, draft: str, machine: Machine = MACHINE) -> Speculation:
        """A round with one of the drafts that TAU names."""
        spire = footprint(self.spire)
        projecting = replace(spire, flops_per_row=spire.flops_per_row + self.spire.memory_flops)
        drafts = {
            "vanilla": ModelDraft(ModelPass(footprint(self.vanilla), machine)),
            "MagicDec": ModelDraft(ModelPass(footprint(self.target), machine), sparse=True),
            "SPIRe": ModelDraft(ModelPass(projecting, machine), sparse=True),
        }
        return Speculation(ModelPass(footprint(self.target), machine), drafts[draft])

    def multiplier(self, draft: str, batch: int, context: int, tau: float | None = None, k: int = K) -> float:
        """Throughput over plain decoding's: tau, the article's unless given, over the relative cost of a round."""
        return (TAU[draft] if tau is None else tau) / self.speculation(draft).relative(batch, context)(k)


def footprint(model: Architecture) -> Footprint:
    """What a pass reads and computes in the article's counting."""
    body = model.body_parameters
    return Footprint(body, 2.0 * body, model.layers * model.values_per_key)


_TARGET = Architecture(8, 512, 8, 8, 128, 4096, vocab=0)
SMALL = Setup(_TARGET, Architecture(4, 256, 8, 8, 64, 2048, vocab=0), _TARGET.trunk(2))
_LLAMA = Architecture(80, 8192, 64, 8, 128, 28672, vocab=0)
LLAMA = Setup(_LLAMA, Architecture(32, 4096, 32, 8, 128, 14336, vocab=0), _LLAMA.trunk(20))
"""Llama-3-70B: its vanilla draft has the shape of the 8B model, its SPIRe draft a quarter of the layers."""
