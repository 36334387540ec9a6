"""From a target, a device and drafters to predictions: the best k of each, its speed, and where it stops paying."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from outrider.errors import ConfigError
from outrider.plan.acceptance import Estimate
from outrider.plan.closed_form import alpha_for, best_k, break_even, expected_tokens, speedup
from outrider.plan.cost import DraftCost, Machine, ModelDraft, ShareDraft, Speculation, critical_batch
from outrider.plan.hardware import Device
from outrider.plan.memory import Memory, Model, plan_memory

Method = Literal["ngram", "draft_model", "magicdec", "spire"]
METHODS: tuple[Method, ...] = get_args(Method)
EFFICIENCY = 0.75
"""Measured over modelled speedup in the independent reproduction of SPIRe on an H100 PCIe, by all three drafts alike:
the low end of every prediction."""
LOOKUP_SHARE = 0.02
"""What a looked-up token costs, as a share of a plain pass: its row in the check, whose small costs the model leaves
out (benchmarks/decoder.py: a step of 5 rows takes 1.08 of a step of 1)."""
MAX_BATCH = 4096
SPIRE_DEPTH = 4
"""A SPIRe draft that is not given has the target's width and this fraction of its layers, the article's choice."""


@dataclass(frozen=True)
class Scenario:
    """What is asked: a target on a device, so many requests with so many tokens each, drafts up to ``k_max``."""

    target: Model
    device: Device
    batch: int
    context: int
    k_max: int

    def machine(self, model: Model) -> Machine:
        return self.device.machine(*model.storage.arithmetic)

    @property
    def plain_seconds(self) -> float:
        """One plain step of the whole batch."""
        return self.target.footprint.seconds(self.machine(self.target), self.batch, self.context)

    @property
    def plain_tokens_per_second(self) -> float:
        """Of the whole batch, at the device's limit."""
        return self.batch / self.plain_seconds

    def memory(self, candidate: Candidate | None = None) -> Memory:
        """What target and drafter hold; the target alone without one."""
        draft = candidate.held(self.target) if candidate else None
        sparse = candidate is not None and candidate.sparse
        return plan_memory(self.device.name, self.device.memory, self.target, self.batch, self.context, draft, sparse)


@dataclass(frozen=True)
class Candidate:
    """One drafter to judge: a method, its draft model if it has one of its own, and how much of it survives.

    ``share`` fixes the cost of a draft token as a share of the target's pass, whatever the method.
    """

    method: Method
    estimate: Estimate
    draft: Model | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if self.method in ("draft_model", "spire") and self.draft is None and self.share is None:
            raise ConfigError(f"method {self.method!r} needs a draft model, or what its draft token costs")
        if self.method in ("ngram", "magicdec") and self.draft is not None:
            raise ConfigError(f"method {self.method!r} has no draft model of its own, but {self.draft.name!r} is given")

    @property
    def sparse(self) -> bool:
        return self.method in ("magicdec", "spire")

    @property
    def name(self) -> str:
        if self.draft is not None:
            return f"{self.method} {self.draft.name}"
        return self.method if self.share is None else f"{self.method} c={self.share:g}"

    def held(self, target: Model) -> Model | None:
        """The model whose cache the drafter keeps beside the target's; None where there is none, or it is not known."""
        return target if self.method == "magicdec" and self.share is None else self.draft

    def cost(self, scenario: Scenario) -> DraftCost:
        """What a draft token costs."""
        model = self.held(scenario.target)
        if self.share is not None or model is None:
            return ShareDraft(LOOKUP_SHARE if self.share is None else self.share)
        footprint = model.footprint
        if self.method == "spire":
            footprint = replace(footprint, flops_per_row=footprint.flops_per_row + model.architecture.memory_flops)
        return ModelDraft(footprint, scenario.machine(model), self.sparse)


@dataclass(frozen=True)
class Prediction:
    """What speculation would do with one candidate at its best k; 0 is plain decoding.

    ``speedup`` is the device's limit. Between ``low`` and ``high`` lies what to expect: from the efficiency that was
    measured, to the limit; each with tau at that end of its own interval.
    """

    candidate: Candidate
    k: int
    tau: float
    speedup: float
    low: float
    high: float
    alpha: float | None
    """The acceptance rate that would give this tau; None at k = 0."""
    break_even: float | None
    """The acceptance rate below which k (or, at k = 0, any) loses; None: it loses at any."""
    least_break_even: float | None
    """The same for k = 1: below it nothing pays, whatever k."""
    pays: tuple[int, int] | None
    """Smallest and largest batch, up to MAX_BATCH, at which some k is faster than plain; None: none."""
    compute_bound_from: float | None
    """The batch from which verification at this k is bound by arithmetic; None: at none."""
    memory: Memory

    @property
    def verdict(self) -> Literal["pays", "may pay", "does not pay", "does not fit"]:
        if not self.memory.fits:
            return "does not fit"
        if self.low > 1.0:
            return "pays"
        return "may pay" if self.speedup > 1.0 else "does not pay"


def spire_draft(target: Model) -> Model:
    """The draft that SPIRe would cut from a target: its width, a quarter of its layers, held as it is."""
    layers = max(1, target.architecture.layers // SPIRE_DEPTH)
    return replace(target, name=f"of {layers} layers", architecture=target.architecture.trunk(layers))


def predict(scenario: Scenario, candidate: Candidate) -> Prediction:
    """The best draft length of a candidate and what it brings."""
    machine = scenario.machine(scenario.target)
    speculation = Speculation(scenario.target.footprint, machine, candidate.cost(scenario))
    cost = speculation.relative(scenario.batch, scenario.context)
    estimate = candidate.estimate
    survival = estimate.survival[: scenario.k_max]
    k = best_k(survival, cost)
    tau, gain = expected_tokens(survival, k), speedup(survival, k, cost)
    return Prediction(
        candidate=candidate,
        k=k,
        tau=tau,
        speedup=gain,
        low=gain * EFFICIENCY * estimate.low if k else 1.0,
        high=gain * estimate.high if k else 1.0,
        alpha=alpha_for(tau, k) if k else None,
        break_even=break_even(cost, max(k, 1)),
        least_break_even=break_even(cost),
        pays=paying_batches(speculation, survival, scenario.context),
        compute_bound_from=critical_batch(speculation.target, machine, scenario.context, k + 1),
        memory=scenario.memory(candidate),
    )


def paying_batches(speculation: Speculation, survival: Sequence[float], context: int) -> tuple[int, int] | None:
    """Smallest and largest batch at which speculation pays. It pays at some k exactly where it does at k = 1."""
    paying = [
        batch for batch in range(1, MAX_BATCH + 1) if best_k(survival[:1], speculation.relative(batch, context)) == 1
    ]
    return (paying[0], paying[-1]) if paying else None


def recommend(predictions: Iterable[Prediction]) -> Prediction | None:
    """The fastest drafter that fits; None where plain decoding is faster than all."""
    better = [each for each in predictions if each.k and each.memory.fits]
    return max(better, key=lambda each: each.speedup, default=None)
