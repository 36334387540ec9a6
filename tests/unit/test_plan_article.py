"""The SPIRe article's figures, published and recomputed, from our cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider.plan.architecture import Architecture
from outrider.plan.article import ABLATIONS, LLAMA, SMALL, TAU, K, Setup, footprint
from outrider.plan.article import MACHINE as HOI
from outrider.plan.closed_form import alpha_for, net_saving
from outrider.plan.cost import ModelDraft, ModelPass, Speculation, critical_batch, critical_context

TARGET, SPIRE = SMALL.target, SMALL.spire


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (TARGET, 67_117_056),
        (SMALL.vanilla, 8_390_656),
        (SPIRE, 16_779_264),
        (LLAMA.target, 68_452_352_000),
        (LLAMA.vanilla, 6_979_584_000),
        (LLAMA.spire, 17_113_088_000),
    ],
)
def test_body_parameters(model: Architecture, parameters: int) -> None:
    assert model.body_parameters == parameters


@pytest.mark.parametrize(
    ("setup", "batch", "context", "multipliers"),
    [
        (SMALL, 64, 512, [1.36, 2.05, 2.78]),
        (LLAMA, 64, 65_536, [1.06, 2.14, 2.82]),
        (SMALL, 1, 32, [1.76, 0.78, 1.71]),
        (SMALL, 128, 8192, [1.32, 2.57, 3.01]),
    ],
)
def test_throughput_multipliers(setup: Setup, batch: int, context: int, multipliers: Sequence[float]) -> None:
    assert [round(setup.multiplier(draft, batch, context), 2) for draft in TAU] == multipliers


def test_relative_cost_of_a_round() -> None:
    costs = [SMALL.speculation(draft).relative(64, 512)(K) for draft in TAU]
    assert [round(cost, 3) for cost in costs] == [1.944, 1.896, 1.224]


def test_without_a_sparse_cache_spire_gains_the_same_everywhere() -> None:
    dense = Speculation(ModelPass(footprint(TARGET), HOI), ModelDraft(ModelPass(footprint(SPIRE), HOI)))
    for batch, context in ((64, 512), (1, 32), (128, 8192)):
        assert TAU["SPIRe"] / dense.relative(batch, context)(K) == pytest.approx(1.70, abs=0.005)


def test_intensity_cancels_where_memory_sets_every_pace() -> None:
    faster = replace(HOI, flops=1200.0)
    for draft in TAU:
        ours, theirs = (SMALL.speculation(draft, machine).relative(64, 2048)(K) for machine in (HOI, faster))
        assert ours == pytest.approx(theirs, rel=1e-12)
    # Where arithmetic does, it matters.
    assert SMALL.speculation("SPIRe").relative(128, 8)(K) > SMALL.speculation("SPIRe", faster).relative(128, 8)(K)


def test_without_overlap_speculation_gains_less() -> None:
    apart = replace(HOI, overlap=False)
    speculation = SMALL.speculation("SPIRe", apart)
    target, draft = footprint(TARGET), footprint(SPIRE)
    f_draft = 64 * (draft.flops_per_row + SPIRE.memory_flops)
    memory = [600.0 * (TARGET.body_parameters + 64 * target.kv_bytes(512))]
    memory.append(600.0 * (SPIRE.body_parameters + 64 * draft.kv_bytes(65)))
    f_target = 64 * target.flops_per_row
    expected = (K * (f_draft + memory[1]) + 5 * f_target + memory[0]) / (f_target + memory[0])
    assert speculation.relative(64, 512)(K) == pytest.approx(expected, rel=1e-12)
    assert speculation.relative(64, 512)(K) > SMALL.speculation("SPIRe").relative(64, 512)(K)


@pytest.mark.parametrize(("model", "article"), [(TARGET, 55), (LLAMA.target, 5571)])
def test_critical_context(model: Architecture, article: int) -> None:
    """The article counts the k drafts without the token they follow."""
    assert critical_context(footprint(model), HOI, rows=K) == article


def test_below_the_critical_context_batching_stops_paying() -> None:
    model, rows = footprint(TARGET), K + 1
    limit = critical_context(model, HOI, rows)
    assert limit is not None
    batch = critical_batch(model, HOI, limit - 1, rows)
    assert batch is not None
    assert critical_batch(model, HOI, limit, rows) is None

    def per_sequence(size: int, context: int) -> float:
        return model.seconds(HOI, size, context, rows) / size

    beyond = int(batch) + 1
    assert per_sequence(beyond, limit - 1) == pytest.approx(per_sequence(8 * beyond, limit - 1), rel=1e-12)
    assert per_sequence(beyond // 100, limit - 1) > 1.2 * per_sequence(beyond, limit - 1)
    assert per_sequence(beyond, limit) > per_sequence(8 * beyond, limit)


def test_what_training_a_draft_costs_and_serving_with_it_saves() -> None:
    """In units of the target's training, ten of them spent on serving. A draft learns from as many tokens as the
    target, so that its training costs its share of the parameters."""
    share = SPIRE.body_parameters / TARGET.body_parameters
    assert share == pytest.approx(0.25, abs=0.0005)
    assert net_saving(2.78, 10, share) == pytest.approx(6.15, abs=0.005)
    assert net_saving(2.05, 10) == pytest.approx(5.12, abs=0.005)
    assert net_saving(2.82, 10, share) == pytest.approx(6.20, abs=0.005)
    assert net_saving(2.14, 10) == pytest.approx(5.33, abs=0.005)


@pytest.mark.parametrize(("draft", "alpha"), [("vanilla", 0.675), ("MagicDec", 0.874), ("SPIRe", 0.806)])
def test_acceptance_rates_behind_the_article_s_tau(draft: str, alpha: float) -> None:
    assert alpha_for(TAU[draft], K) == pytest.approx(alpha, abs=0.0005)


def test_ablations() -> None:
    assert list(ABLATIONS.values()) == [3.401, 3.375, 3.352, 3.105, 3.069, 2.959]
    multipliers = [SMALL.multiplier("SPIRe", 64, 512, tau) for tau in ABLATIONS.values()]
    assert multipliers == pytest.approx([2.78, 2.76, 2.74, 2.54, 2.51, 2.42], abs=0.005)


def test_where_each_draft_is_the_best() -> None:
    """The crossovers of the figure over contexts: a small model while contexts are short, a sparse cache after."""

    def best(setup: Setup, batch: int, context: int) -> str:
        return max(TAU, key=lambda draft: setup.multiplier(draft, batch, context))

    assert best(SMALL, 1, 32) == "vanilla"
    assert best(SMALL, 64, 512) == best(SMALL, 128, 8192) == best(LLAMA, 64, 65_536) == "SPIRe"
