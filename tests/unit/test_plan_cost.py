"""The roofline of a pass: hand-made cases in which every term is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.plan.cost import (
    CONTEXT_LIMIT,
    Footprint,
    Machine,
    ModelDraft,
    ModelPass,
    ScaledDraft,
    ShareDraft,
    Speculation,
    critical_batch,
    critical_context,
    largest,
    sparse_keys,
)

MODEL = Footprint(weight_bytes=1000.0, flops_per_row=500.0, key_bytes=10.0)
MACHINE = Machine(flops=100.0, bandwidth=10.0)
PASS = ModelPass(MODEL, MACHINE)


def test_plain_decoding_is_bound_by_reading_the_weights() -> None:
    """14 GB at 300 GB/s: 21.4 tokens per second."""
    model = Footprint(weight_bytes=14e9, flops_per_row=14e9, key_bytes=0.0)
    seconds = model.seconds(Machine(flops=121e12, bandwidth=300e9), batch=1, context=0)
    assert 1 / seconds == pytest.approx(21.4, abs=0.05)


def test_the_slower_of_memory_and_arithmetic_sets_the_pace() -> None:
    # Memory: 1000 + 2 * 10 * 50 = 2000 bytes in 200 s. Arithmetic: 500 FLOP a row, 5 s each.
    assert MODEL.seconds(MACHINE, batch=2, context=50) == 200.0
    assert MODEL.seconds(MACHINE, batch=2, context=50, rows=20) == 200.0
    assert MODEL.seconds(MACHINE, batch=2, context=50, rows=21) == 210.0
    assert MODEL.seconds(replace(MACHINE, overlap=False), batch=2, context=50, rows=21) == 410.0


def test_attention_is_work_for_every_row_over_all_keys() -> None:
    model = replace(MODEL, flops_per_kv_byte=4.0)
    # 30 rows of each of two sequences: 30 * 2 * 500 of products, 30 * 4 FLOP over each of 1000 bytes of cache.
    assert model.seconds(MACHINE, batch=2, context=50, rows=30) == (30_000 + 120_000) / 100


def test_a_window_bounds_the_cache() -> None:
    model = replace(MODEL, local_key_bytes=3.0, window=20)
    assert model.kv_bytes(5) == 65.0
    assert model.kv_bytes(20) == 260.0
    assert model.kv_bytes(100) == 1060.0


def test_a_round_is_its_drafts_and_one_pass() -> None:
    draft = Footprint(weight_bytes=100.0, flops_per_row=50.0, key_bytes=1.0)
    speculation = Speculation(PASS, ModelDraft(ModelPass(draft, MACHINE)))
    assert speculation.seconds(0, batch=2, context=50) == 200.0
    assert speculation.seconds(3, batch=2, context=50) == 200.0 + 3 * 20.0
    assert speculation.relative(2, 50)(3) == pytest.approx(1.3)
    # 30 rows take 300 s: verification has turned to arithmetic.
    assert speculation.seconds(29, batch=2, context=50) == 300.0 + 29 * 20.0


def test_a_sparse_draft_reads_an_eighth_of_the_keys_and_one() -> None:
    assert sparse_keys(0) == 1
    assert sparse_keys(512) == 65
    draft = ModelDraft(ModelPass(Footprint(100.0, 1.0, 10.0), MACHINE), sparse=True)
    assert draft.seconds(batch=2, context=80, plain=0.0) == (100 + 2 * 10 * 11) / 10


def test_a_draft_at_a_share_costs_it_of_a_plain_pass() -> None:
    speculation = Speculation(PASS, ShareDraft(0.25))
    assert speculation.relative(2, 50)(4) == pytest.approx(2.0)
    assert Speculation(PASS, ShareDraft(0.0)).relative(2, 50)(4) == 1.0


def test_a_modelled_draft_beside_a_measured_target_keeps_its_share() -> None:
    draft = ModelDraft(ModelPass(Footprint(weight_bytes=500.0, flops_per_row=1.0, key_bytes=5.0), MACHINE))
    # Half of the modelled target at any context: half of whatever a pass really takes.
    assert ScaledDraft(draft, PASS).seconds(2, 50, plain=7.0) == pytest.approx(3.5)


def test_a_drafts_own_machine_sets_its_pace() -> None:
    draft = Footprint(weight_bytes=1.0, flops_per_row=1000.0, key_bytes=0.0)
    ours = ModelDraft(ModelPass(draft, Machine(flops=200.0, bandwidth=10.0)))
    assert Speculation(PASS, ours).seconds(1, 1, 50) == 150.0 + 5.0


def test_critical_batch_is_where_memory_and_arithmetic_take_the_same_time() -> None:
    batch = critical_batch(MODEL, MACHINE, context=10, rows=4)
    # A sequence adds 20 s of work and 10 s of cache to the 100 s of weights.
    assert batch == pytest.approx(10.0)
    assert critical_batch(MODEL, MACHINE, context=20, rows=4) is None
    assert critical_context(MODEL, MACHINE, rows=4) == 20


def test_attention_heavy_enough_is_bound_by_arithmetic_at_any_context() -> None:
    heavy = replace(MODEL, flops_per_kv_byte=20.0)
    assert critical_context(heavy, MACHINE, rows=1) is None


def test_a_model_of_windows_alone_never_leaves_arithmetic() -> None:
    windows = replace(MODEL, key_bytes=0.0, local_key_bytes=10.0, window=4)
    assert critical_context(windows, MACHINE, rows=1) is None
    assert critical_context(replace(windows, window=30), MACHINE, rows=4) == 20


def test_largest_finds_the_edge() -> None:
    assert largest(lambda n: n * n <= 50, CONTEXT_LIMIT) == 7
    assert largest(lambda n: True, 5) == 5
    assert largest(lambda n: False, 5) == -1
    assert largest(lambda n: n < 1, 5) == 0
