"""The runner's books over a forward that only records, and what the native forward hands to the extension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from outrider.errors import ConfigError
from outrider.kernels import Native
from outrider.models.base import Feed
from outrider.models.decoder import DecoderConfig, DecoderRunner
from outrider.models.decoder_native import NativeForward
from outrider.models.decoder_weights import Layer, Weights
from outrider.models.rope import rotation_table
from outrider.models.tiles import Span
from tests.unit.decoders import VOCAB, families

GEMMA = DecoderConfig.from_hf(families()["gemma3"])


class Recording:
    """A forward whose logits name the packed row that they belong to."""

    deterministic = True

    def __init__(self) -> None:
        self.opened: list[tuple[int, int]] = []
        self.closed: list[int] = []
        self.calls: list[tuple[list[int], list[Span], list[int]]] = []
        self.broken = False

    def open(self, slot: int, used: int) -> None:
        self.opened.append((slot, used))

    def close(self, slot: int) -> None:
        self.closed.append(slot)

    def run(
        self,
        tokens: Sequence[int],
        spans: Sequence[Span],
        wanted: Sequence[int],
        hidden: bool,
        layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        if self.broken:
            raise ValueError("broken")
        self.calls.append((list(tokens), list(spans), list(wanted)))
        rows_M1 = torch.tensor(wanted, dtype=torch.float32).reshape(-1, 1)
        rows_N1 = torch.arange(len(tokens), dtype=torch.float32).reshape(-1, 1)
        states = torch.stack([rows_N1 + 100 * layer for layer in layers]) if layers else None
        return rows_M1.expand(-1, VOCAB), -rows_M1 if hidden else None, states


def make() -> tuple[DecoderRunner, Recording]:
    forward = Recording()
    return DecoderRunner(GEMMA, forward, max_num_seqs=3, max_model_len=20, name="toy"), forward


def test_feeds_are_packed_by_size_and_answered_in_their_own_order() -> None:
    runner, forward = make()
    for sequence_id in (7, 8, 9):
        runner.open(sequence_id)
    feeds = [Feed(9, (1, 2, 3), 2), Feed(8, (4,), 1), Feed(7, (5,), 0)]
    scores = runner.score(feeds, hidden=True, layers=(2, 0))
    ((tokens, spans, wanted),) = forward.calls
    assert tokens == [5, 4, 1, 2, 3]
    assert spans == [Span(0, 0, 0, 1), Span(1, 1, 0, 1), Span(2, 2, 0, 3)]
    assert wanted == [1, 3, 4]
    assert [rows[:, 0].tolist() for rows in scores.logits] == [[3, 4], [1], []]
    assert scores.hidden is not None
    assert [rows[:, 0].tolist() for rows in scores.hidden] == [[-3, -4], [-1], []]
    # Of every token fed, wanted or not, in the order in which layers were asked for.
    assert scores.states is not None
    expected = [[[202, 203, 204], [2, 3, 4]], [[201], [1]], [[200], [0]]]
    assert [states[..., 0].tolist() for states in scores.states] == expected
    runner.score([Feed(9, (6,), 1)])
    assert forward.calls[-1] == ([6], [Span(0, 2, 3, 1)], [0])


def test_nothing_fed_runs_nothing() -> None:
    runner, forward = make()
    assert runner.score([]).logits == ()
    assert runner.score([], hidden=True).hidden == ()
    assert forward.calls == []


def test_slots_are_opened_and_closed_with_the_sequences() -> None:
    runner, forward = make()
    runner.open(5)
    runner.open(6)
    runner.score([Feed(6, (1, 2), 0)])
    runner.close(6)
    runner.close(6)
    runner.open(7)
    assert forward.opened == [(0, 0), (1, 0), (1, 2)]
    assert forward.closed == [1]


def test_a_forward_that_fails_changes_no_length() -> None:
    runner, forward = make()
    runner.open(5)
    runner.score([Feed(5, (1, 2), 0)])
    forward.broken = True
    with pytest.raises(ValueError, match="broken"):
        runner.score([Feed(5, (3,), 1)])
    assert runner.length(5) == 2
    forward.broken = False
    runner.score([Feed(5, (3,), 1)])
    assert forward.calls[-1][1] == [Span(0, 0, 2, 1)]


class FakeDecoder:
    """Keeps what it is given, and opens and closes like the real one."""

    def __init__(self, pool: object, **settings: Any) -> None:
        self.settings, self.layers, self.opened = settings, list[dict[str, Any]](), set[int]()
        self.steps: list[tuple[Any, ...]] = []
        self.erased: list[int] = []

    def add_layer(self, **parts: Any) -> None:
        self.layers.append(parts)

    def open(self, slot: int) -> None:
        if slot in self.opened:
            raise ValueError("open")
        self.opened.add(slot)

    def close(self, slot: int) -> None:
        if slot not in self.opened:
            raise ValueError("closed")
        self.opened.remove(slot)
        self.erased.append(slot)

    def step(
        self,
        *arrays: np.ndarray,
        hidden_MD: np.ndarray | None,
        layers_L: np.ndarray | None,
        states_LND: np.ndarray | None,
    ) -> None:
        self.steps.append((*arrays, hidden_MD, layers_L, states_LND))
        arrays[-1][:] = 5
        if hidden_MD is not None:
            hidden_MD[:] = 7
        if states_LND is not None:
            states_LND[:] = 9


def native_forward(config: DecoderConfig = GEMMA, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, FakeDecoder]:
    layers = [Layer[Any, Any, Any](*(f"{i}{part}" for part in "nqomgd")) for i in range(config.num_layers)]
    native = cast("Native", SimpleNamespace(module=SimpleNamespace(Decoder=FakeDecoder)))
    weights: Any = Weights[Any, Any, Any, Any]("embedding", "head", "norm", layers)
    forward: Any = NativeForward(
        config, weights, native, cast("Any", "pool"), dtype=dtype, max_num_seqs=2, max_model_len=20
    )
    return forward, forward._decoder


def test_the_extension_gets_the_models_settings() -> None:
    _, decoder = native_forward()
    got = decoder.settings
    assert (got["window"], got["slots"], got["positions"], got["kv_dtype"]) == (9, 2, 20, "bfloat16")
    assert (got["num_heads"], got["num_kv_heads"], got["head_dim"], got["num_layers"]) == (4, 2, 24, 4)
    assert [layer["local"] for layer in decoder.layers] == [True, True, False, True]
    assert [layer["qkv"] for layer in decoder.layers] == ["0q", "1q", "2q", "3q"]
    for rope, prefix in ((GEMMA.rope, ""), (GEMMA.rope_local, "local_")):
        turns_SP = rotation_table(rope, 24, 20)
        assert np.array_equal(got[prefix + "cos_SP"], turns_SP.real.numpy())
        assert np.array_equal(got[prefix + "sin_SP"], turns_SP.imag.numpy())
    assert not np.array_equal(got["cos_SP"], got["local_cos_SP"]), "gemma's layers of the two kinds turn differently"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_embedding_scale_is_rounded_as_in_transformers(dtype: torch.dtype) -> None:
    _, decoder = native_forward(replace(GEMMA, embedding_scale=640**0.5), dtype)
    assert decoder.settings["embedding_scale"] == float(torch.tensor(640**0.5, dtype=dtype))


def test_a_model_without_windows_has_window_0() -> None:
    _, decoder = native_forward(DecoderConfig.from_hf(families()["llama-tied"]))
    assert decoder.settings["window"] == 0
    assert not any(layer["local"] for layer in decoder.layers)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("wanted", [[], [0, 4]])
def test_a_step_is_arrays_of_the_right_kinds(wanted: list[int], hidden: bool) -> None:
    forward, decoder = native_forward()
    spans, layers = [Span(0, 1, 7, 2), Span(2, 0, 0, 3)], (4, 0) if hidden else ()
    logits_MV, hidden_MD, states_LND = forward.run([1, 2, 3, 4, 5], spans, wanted, hidden, layers)
    *integers, logits, given, asked, states = decoder.steps[0]
    assert [array.tolist() for array in integers] == [[1, 2, 3, 4, 5], [1, 0], [7, 0], [2, 3], wanted]
    assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in integers)
    assert logits.dtype == np.float32
    assert (logits_MV.shape, logits_MV.dtype) == ((len(wanted), VOCAB), torch.float32)
    for array, made in ((given, hidden_MD), (states, states_LND), (asked, states_LND)):
        assert (array is not None) == (made is not None) == hidden
    assert bool((logits_MV == 5).all())
    assert hidden_MD is None or (hidden_MD.shape == (len(wanted), 64) and bool((hidden_MD == 7).all()))
    if hidden:
        assert (asked.tolist(), asked.dtype) == ([4, 0], np.int32)
        assert states_LND is not None
        assert (states_LND.shape, states_LND.dtype) == ((2, 5, 64), torch.float32)
        assert bool((states_LND == 9).all())


def test_a_slot_that_an_interrupt_left_open_serves_its_next_owner() -> None:
    forward, decoder = native_forward()
    runner = DecoderRunner(GEMMA, forward, max_num_seqs=2, max_model_len=20, name="toy")
    runner.open(1)
    runner._slots.close(1)  # what an interrupt between the two leaves behind
    runner.open(2)
    assert (decoder.opened, decoder.erased) == ({0}, [0])
    runner.close(2)
    assert decoder.opened == set()


def test_keys_and_values_that_do_not_fit_are_a_setting_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.models.kv.physical_memory", lambda: 200_000)
    native_forward(dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="max_num_seqs=2 slots of 128 tokens need"):
        native_forward(dtype=torch.float32)


def test_memory_that_the_system_refuses_is_a_setting_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr("outrider.models.decoder_native.NativeBuilder", refuse)
    sizes = {"max_num_seqs": 2, "max_model_len": 20}
    native = cast("Native", SimpleNamespace())
    with pytest.raises(ConfigError, match=r"no memory for its weights .* reduce them, or quantize the weights$"):
        NativeForward.load(GEMMA, (), native, dtype=torch.float32, quantization=None, name="tiny", **sizes)
