"""The promise: a row's bits depend on its own sequence only, however the work around it is arranged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from outrider.models.base import Feed
from outrider.models.decoder import DecoderRunner
from outrider.models.decoder_torch import TorchForward
from outrider.models.invariance import rows_are_independent
from outrider.models.ops_torch import LinearFactory, OneDNNLinear, TiledLinear, norm_weight, rms_norm
from outrider.models.rope import LANES, rotate_rows
from outrider.models.tile_probe import find_tile_rule
from outrider.models.tiles import TileRule
from tests.unit.decoders import BACKENDS, SMALL, SMOLLM2, VOCAB, families, load, on, random_weights

DTYPES = [torch.float32, torch.bfloat16]
MODELS = ["llama-odd", "gemma3", "smollm2-shapes"]
LENGTH = 430
FIXED = TileRule(min_rows=8, max_rows=8, key_step=128, fixed=True)


@cache
def runner_of(backend: str, model: str, dtype: torch.dtype, purpose: str = "test") -> DecoderRunner:
    """A runner for each purpose, so that one may run while another has sequences open."""
    assert purpose in ("test", "alone")
    shapes = LlamaConfig(**SMOLLM2, num_hidden_layers=2, vocab_size=VOCAB)
    config = shapes if model == "smollm2-shapes" else families()[model]
    with on(backend):
        runner = load(config, random_weights(config), dtype=dtype, max_num_seqs=5)
    if not runner.capabilities.deterministic_shape:
        pytest.skip("no kernel of this machine keeps rows apart, and the runner says so")
    return runner


@cache
def texts(count: int = 5) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(11)
    return [tuple(torch.randint(VOCAB, (LENGTH,), generator=generator).tolist()) for _ in range(count)]


@cache
def alone(backend: str, model: str, dtype: torch.dtype, text: int) -> torch.Tensor:
    """Every row of a text, one token at a time in slot 0 with nobody beside it: plain decoding."""
    rows = run(runner_of(backend, model, dtype, "alone"), [(0, text)], [1] * LENGTH)
    return rows[0]


def run(runner: DecoderRunner, sequences: Sequence[tuple[int, int]], counts: Sequence[int]) -> list[torch.Tensor]:
    """Feed (id, text) pairs side by side, the same chunks for each; all their logits."""
    for sequence_id, _ in sequences:
        runner.open(sequence_id)
    rows: list[list[torch.Tensor]] = [[] for _ in sequences]
    at = 0
    for count in counts:
        feeds = [Feed(i, texts()[text][at : at + count], count) for i, text in sequences]
        for line, logits in zip(rows, runner.score(feeds).logits, strict=True):
            line.append(logits)
        at += count
    for sequence_id, _ in sequences:
        runner.close(sequence_id)
    return [torch.cat(line) for line in rows]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=10)
@given(counts=st.lists(st.one_of(st.integers(1, 10), st.integers(1, 150)), min_size=1, max_size=12))
def test_chunks_and_drafts_do_not_show(backend: str, model: str, dtype: torch.dtype, counts: list[int]) -> None:
    kept, total = [], 0
    for count in counts:
        if total + count <= LENGTH:
            kept.append(count)
            total += count
    rows = run(runner_of(backend, model, dtype), [(7, 0)], kept)[0]
    assert torch.equal(rows, alone(backend, model, dtype, 0)[:total])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=10)
@given(data=st.data())
def test_neighbours_slots_and_rollback_do_not_show(
    backend: str, model: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    runner = runner_of(backend, model, dtype)
    lengths = [0] * 5
    # A sequence left out keeps its slot empty, so that batches have holes.
    members = data.draw(st.lists(st.integers(0, 4), min_size=1, unique=True), label="members")
    for sequence_id in members:
        runner.open(sequence_id)
    try:
        for _ in range(data.draw(st.integers(1, 4), label="steps")):
            feeds = []
            for sequence_id in data.draw(st.lists(st.sampled_from(members), min_size=1, unique=True), label="fed"):
                size = st.one_of(st.integers(1, 9), st.just(1), st.integers(60, 200))
                count = min(data.draw(size, label="count"), LENGTH - lengths[sequence_id])
                start = lengths[sequence_id]
                feeds.append(Feed(sequence_id, texts()[sequence_id][start : start + count], count))
            feeds = [feed for feed in feeds if feed.tokens]
            for feed, logits in zip(feeds, runner.score(feeds).logits, strict=True):
                i, start = feed.sequence_id, lengths[feed.sequence_id]
                assert torch.equal(logits, alone(backend, model, dtype, i)[start : start + feed.rows])
                lengths[i] = start + data.draw(st.integers(0, feed.rows), label="accepted")
                runner.commit(i, lengths[i])
    finally:
        for sequence_id in members:
            runner.close(sequence_id)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_broken_neighbour_and_its_slot_leave_no_trace(dtype: torch.dtype) -> None:
    runner = runner_of("torch", "llama-odd", dtype)
    assert isinstance(runner.forward, TorchForward)
    for sequence_id in (0, 1):
        runner.open(sequence_id)
    runner.score([Feed(0, texts()[0][:20], 0), Feed(1, texts()[1][:20], 0)])
    with torch.inference_mode():
        runner.forward._kv[:, :, 1, :, :20] = float("nan")
    beside = runner.score([Feed(0, texts()[0][20:25], 5), Feed(1, texts()[1][20:25], 5)]).logits
    assert torch.equal(beside[0], alone("torch", "llama-odd", dtype, 0)[20:25])
    assert beside[1].isnan().all()
    for sequence_id in (0, 1):
        runner.close(sequence_id)
    again = run(runner, [(0, 0), (1, 1)], [5])
    assert torch.equal(again[1], alone("torch", "llama-odd", dtype, 1)[:5])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings_of", ["llama", "gemma3"])
def test_the_fallback_keeps_the_promise_too(
    settings_of: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight-row tiles and position-dependent key lengths, for machines whose free shapes fail the trial."""
    monkeypatch.setattr("outrider.models.ops_torch.onednn_runs", lambda _: False)
    monkeypatch.setattr("outrider.models.decoder_torch.find_tile_rule", lambda _: FIXED)
    config = families()["gemma3"] if settings_of == "gemma3" else LlamaConfig(**SMALL)
    with on("torch"):
        runner = load(config, random_weights(config), dtype=dtype)
    if not runner.capabilities.deterministic_shape:
        pytest.skip("no kernel of this machine keeps rows apart, and the runner says so")
    single = run(runner, [(0, 0)], [1] * 270)[0]
    for counts in ([100, 60, 5, 1, 104], [127, 9, 120, 1, 13]):
        assert torch.equal(run(runner, [(3, 0)], counts)[0], single)
    both = run(runner, [(1, 1), (0, 0)], [120, 9, 1, 1, 130, 9])
    assert torch.equal(both[1], single)
    monkeypatch.undo()
    with on("torch"):
        usual = run(load(config, random_weights(config), dtype=dtype), [(0, 0)], [270])[0]
    torch.testing.assert_close(single, usual, atol=1e-4 if dtype == torch.float32 else 0.3, rtol=0)


def test_a_kernel_whose_rows_depend_on_each_other_is_found_out() -> None:
    x_NI = torch.randn(40, 8)
    assert rows_are_independent(lambda x: 2 * x, (x_NI,), [4, 5, 33])
    assert not rows_are_independent(lambda x: x + 1e-7 * len(x), (x_NI,), [4])
    assert not rows_are_independent(lambda x: x + 1e-6 * torch.arange(len(x))[:, None], (x_NI,), [4])


def test_a_linear_that_fails_the_trial_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaky(self: OneDNNLinear, x_NI: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(x_NI), 16) * len(x_NI)

    monkeypatch.setattr("outrider.models.ops_torch.onednn_runs", lambda _: True)
    monkeypatch.setattr(OneDNNLinear, "__init__", lambda *_: None)
    monkeypatch.setattr(OneDNNLinear, "__call__", leaky)
    factory = LinearFactory(torch.float32, "silu")
    weight_OI = torch.randn(16, 8)
    for _ in range(2):
        linear = factory.build(weight_OI)
        assert isinstance(linear, TiledLinear)
    x_NI = torch.randn(11, 8)
    torch.testing.assert_close(linear(x_NI), x_NI @ weight_OI.t())


def test_when_nothing_keeps_rows_apart_the_runner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.models.tile_probe._Trial.passes", lambda *_: False)
    config = LlamaConfig(**SMALL)
    with on("torch"):
        assert not load(config, random_weights(config)).capabilities.deterministic_shape


def test_the_trial_of_attention_shapes_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that depends on its row count by a hair must end in fixed tiles."""
    true_bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: true_bmm(a, b) * (1 + 1e-6 * a.shape[1]))
    from outrider.models.decoder import DecoderConfig

    assert find_tile_rule(DecoderConfig.from_hf(LlamaConfig(**SMALL))).fixed


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_are_right_and_row_independent(dtype: torch.dtype) -> None:
    x_ND = (torch.randn(300, 577) * torch.logspace(-4, 4, 300)[:, None] + 3.0).to(dtype)
    weight_D = torch.randn(577)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, norm_weight(weight_D, 1.0), 1e-6)

    exact = x_ND.double()
    exact = exact * (exact.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (weight_D + 1.0)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(norm(x_ND).double(), exact, atol=tolerance, rtol=tolerance)
    assert rows_are_independent(norm, (x_ND,), [1, 2, 4, 9, 64, 250])


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("total", [4, 5, 200, 12289])
def test_rotation_is_row_independent(total: int) -> None:
    """Three threads would part a long call in the middle of a vector, and round there in another way."""
    rows_NC, turns_NC = torch.randn(2, total, LANES // 2, dtype=torch.complex64)
    single = torch.stack([row * turn for row, turn in zip(rows_NC, turns_NC, strict=True)])
    rotate_rows(rows_NC, turns_NC)
    assert torch.equal(rows_NC, single)
