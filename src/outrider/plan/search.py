"""From a target, a device and drafters to predictions: the best k of each, its speed, and where it stops paying."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from outrider.errors import ConfigError
from outrider.plan.acceptance import Estimate
from outrider.plan.closed_form import alpha_for, best_k, break_even, expected_tokens, fastest_k, speedup
from outrider.plan.cost import (
    DraftCost,
    Machine,
    ModelDraft,
    ModelPass,
    Pass,
    ScaledDraft,
    ShareDraft,
    Speculation,
    critical_batch,
)
from outrider.plan.curves import CostCurve, MeasuredPass
from outrider.plan.hardware import Device
from outrider.plan.memory import Memory, Model, plan_memory

Method = Literal["ngram", "draft_model", "magicdec", "spire"]
METHODS: tuple[Method, ...] = get_args(Method)
EFFICIENCY = 0.75
"""Measured over modelled speedup in the independent reproduction of SPIRe on an H100 PCIe, by all three drafts alike:
the low end of every prediction."""
MEASURED_EFFICIENCY = 0.85
"""The same where passes were measured here: what a round does besides its passes is left out."""
LOOKUP_SHARE = 0.02
"""What a looked-up token costs, as a share of a plain pass: its row in the check, whose small costs the model leaves
out (benchmarks/decoder.py: a step of 5 rows takes 1.08 of a step of 1)."""
MAX_BATCH = 4096
SPIRE_DEPTH = 4
"""A SPIRe draft that is not given has the target's width and this fraction of its layers, the article's choice."""


@dataclass(frozen=True)
class Scenario:
    """What is asked: a target on a device, so many requests with so many tokens each, drafts up to ``k_max``.

    ``curve`` is what the target's passes take, where that was measured.
    """

    target: Model
    device: Device
    batch: int
    context: int
    k_max: int
    curve: CostCurve | None = None

    def machine(self, model: Model) -> Machine:
        return self.device.machine(*model.storage.arithmetic)

    @property
    def modelled(self) -> Pass:
        """The target's passes at the device's limit."""
        return ModelPass(self.target.footprint, self.machine(self.target))

    @property
    def passes(self) -> Pass:
        """The target's passes, as measured where they were."""
        return self.modelled if self.curve is None else MeasuredPass(self.curve)

    @property
    def most_batch(self) -> int:
        """The largest batch that a prediction may speak of."""
        return MAX_BATCH if self.curve is None else self.curve.batches[-1]

    @property
    def plain_seconds(self) -> float:
        """One plain step of the whole batch."""
        return self.passes.seconds(self.batch, self.context)

    @property
    def plain_tokens_per_second(self) -> float:
        """Of the whole batch: measured, or at the device's limit."""
        return self.batch / self.plain_seconds

    def memory(self, candidate: Candidate | None = None) -> Memory:
        """What target and drafter hold; the target alone without one."""
        draft = candidate.held(self.target) if candidate else None
        sparse = candidate is not None and candidate.sparse
        return plan_memory(self.device.name, self.device.memory, self.target, self.batch, self.context, draft, sparse)


@dataclass(frozen=True)
class Candidate:
    """One drafter to judge: a method, its draft model if it has one of its own, and how much of it survives.

    ``share`` fixes the cost of a draft token as a share of the target's pass, whatever the method. ``curve`` is what
    the draft model's passes take, where that was measured.
    """

    method: Method
    estimate: Estimate
    draft: Model | None = None
    share: float | None = None
    curve: CostCurve | None = None

    def __post_init__(self) -> None:
        if self.method in ("draft_model", "spire") and self.draft is None and self.share is None:
            raise ConfigError(f"method {self.method!r} needs a draft model, or what its draft token costs")
        if self.method in ("ngram", "magicdec") and self.draft is not None:
            raise ConfigError(f"method {self.method!r} has no draft model of its own, but {self.draft.name!r} is given")

    @property
    def trained(self) -> bool:
        """Whether the draft is a SPIRe draft at hand, and not only the sizes of one."""
        return self.draft is not None and self.draft.reads is not None

    @property
    def sparse(self) -> bool:
        """Whether it keeps the article's share of the cache; what a trained draft keeps is among its sizes."""
        return self.method in ("magicdec", "spire") and not self.trained

    @property
    def fixed_share(self) -> float | None:
        """The cost of a draft token that goes before any model of it: given, or else measured by a probe."""
        return self.estimate.draft_cost if self.share is None else self.share

    @property
    def name(self) -> str:
        if self.draft is not None:
            return f"{self.method} {self.draft.name}"
        return self.method if self.share is None else f"{self.method} c={self.share:g}"

    def held(self, target: Model) -> Model | None:
        """The model whose cache the drafter keeps beside the target's; None where there is none, or it is not known."""
        return target if self.method == "magicdec" and self.share is None else self.draft

    def measured(self, scenario: Scenario) -> CostCurve | None:
        """The curve of the model that drafts, where it can be compared with the target's."""
        if scenario.curve is None or self.fixed_share is not None:
            return None
        return scenario.curve if self.held(scenario.target) is scenario.target else self.curve

    def cost(self, scenario: Scenario) -> DraftCost:
        """What a draft token costs: measured, or modelled as a share of the target's pass."""
        model, curve = self.held(scenario.target), self.measured(scenario)
        if self.fixed_share is not None:
            return ShareDraft(self.fixed_share)
        if model is None:
            # A measured pass has the small costs of its rows in it.
            return ShareDraft(LOOKUP_SHARE if scenario.curve is None else 0.0)
        if curve is not None:
            return ModelDraft(MeasuredPass(curve), self.sparse)
        footprint = model.footprint
        if self.method == "spire":
            footprint = replace(footprint, flops_per_row=footprint.flops_per_row + model.architecture.memory_flops)
        draft = ModelDraft(ModelPass(footprint, scenario.machine(model)), self.sparse)
        return draft if scenario.curve is None else ScaledDraft(draft, scenario.modelled)

    def efficiency(self, scenario: Scenario) -> float:
        """What is left of a predicted speedup at its low end."""
        known = self.estimate.draft_cost is not None or self.measured(scenario) is not None
        modelled = self.held(scenario.target) is not None and not known
        return EFFICIENCY if scenario.curve is None or modelled else MEASURED_EFFICIENCY


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
    """The acceptance rate, where there is a draft, that would give this tau; None at k = 0."""
    break_even: float | None
    """The acceptance rate below which k (or, at k = 0, any) loses; None: it loses at any."""
    least_break_even: float | None
    """The same for k = 1: below it nothing pays, whatever k."""
    pays: tuple[int, int] | None
    """Smallest and largest batch, up to the scenario's most, at which some k is faster than plain; None: none."""
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
    speculation = Speculation(scenario.passes, candidate.cost(scenario))
    estimate = candidate.estimate
    survival = estimate.survival[: scenario.k_max]

    def cost_at(batch: int) -> Callable[[int], float]:
        drafted, share = speculation.relative(batch, scenario.context), estimate.drafting
        return lambda k: (1.0 - share) + share * drafted(k)

    # What was measured has steps, where the marginal rule would stop too soon.
    best = best_k if scenario.curve is None else fastest_k
    cost = cost_at(scenario.batch)
    k = best(survival, cost)
    tau, gain = expected_tokens(survival, k), speedup(survival, k, cost)
    drafted = speculation.relative(scenario.batch, scenario.context)
    return Prediction(
        candidate=candidate,
        k=k,
        tau=tau,
        speedup=gain,
        low=gain * candidate.efficiency(scenario) * estimate.low if k else 1.0,
        high=gain * estimate.high if k else 1.0,
        alpha=alpha_for(min(k + 1.0, 1.0 + (tau - 1.0) / estimate.drafting), k) if k else None,
        break_even=break_even(drafted, max(k, 1)),
        least_break_even=break_even(drafted),
        pays=_paying(lambda at: best(survival, cost_at(at)) > 0, scenario.most_batch),
        compute_bound_from=critical_batch(scenario.target.footprint, machine, scenario.context, k + 1),
        memory=scenario.memory(candidate),
    )


def _paying(pays: Callable[[int], bool], most: int) -> tuple[int, int] | None:
    """Smallest and largest batch up to ``most`` at which it pays."""
    paying = [batch for batch in range(1, most + 1) if pays(batch)]
    return (paying[0], paying[-1]) if paying else None


def recommend(predictions: Iterable[Prediction]) -> Prediction | None:
    """The fastest drafter that fits; None where plain decoding is faster than all."""
    better = [each for each in predictions if each.k and each.memory.fits]
    return max(better, key=lambda each: each.speedup, default=None)
