"""How weights reach the native kernels: which tensors make a matrix, in which format; checked on a numpy stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from outrider.config import Quantization
from outrider.kernels import Native
from outrider.models.decoder_config import DecoderConfig
from outrider.models.gguf_file import PackedKind, PackedRows
from outrider.models.weights_native import NativeBuilder
from tests.unit.decoders import families

WIDTH = 64


@dataclass
class Call:
    """How a matrix was made."""

    how: str
    weights: np.ndarray
    bias: np.ndarray | None
    options: dict[str, Any]


class Matrix:
    """Records what it would pack."""

    made: ClassVar[list[Call]] = []

    @classmethod
    def _record(cls, how: str) -> Any:
        def make(pool: object, weights: np.ndarray, bias: np.ndarray | None = None, **options: Any) -> Call:
            assert pool == "pool"
            assert weights.flags.c_contiguous
            cls.made.append(Call(how, weights.copy(), bias, options))
            return cls.made[-1]

        return make


for way in ("dense", "int8", "gguf"):
    setattr(Matrix, way, Matrix._record(way))


@pytest.fixture(autouse=True)
def nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Matrix, "made", [])


def builder(
    quantization: Quantization | None = None, dtype: torch.dtype = torch.float32, family: str = "llama-tied"
) -> NativeBuilder:
    native = SimpleNamespace(module=SimpleNamespace(Matrix=Matrix), pool=lambda: "pool")
    return NativeBuilder(DecoderConfig.from_hf(families()[family]), cast("Native", native), dtype, quantization)


def weight(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def packed(rows: int, kind: PackedKind = "Q4_0", seed: int = 0) -> PackedRows:
    blocks = quantize(weight(rows, seed).numpy(), GGMLQuantizationType[kind])
    return PackedRows(kind, torch.from_numpy(blocks), WIDTH)


def made() -> Call:
    (call,) = Matrix.made
    return call


def test_rows_lie_one_below_the_other_with_their_biases() -> None:
    parts = [weight(8, 0), weight(4, 1), weight(4, 2)]
    biases = [torch.arange(8.0), torch.zeros(4), torch.ones(4)]
    builder().qkv(parts, biases)
    assert made().how == "dense"
    assert np.array_equal(made().weights, torch.cat(parts).numpy())
    assert made().bias is not None
    assert np.array_equal(cast("np.ndarray", made().bias), torch.cat(biases).numpy())
    assert made().options == {"gate": ""}


def test_gate_and_up_are_one_gated_matrix() -> None:
    builder(family="gemma3").gate_up([weight(8, 0), weight(8, 1)], ())
    assert made().options == {"gate": "gelu_tanh"}
    assert made().bias is None
    assert np.array_equal(made().weights, torch.cat([weight(8, 0), weight(8, 1)]).numpy())


def test_bfloat16_travels_as_its_bits() -> None:
    values = weight(8).to(torch.bfloat16)
    builder(dtype=torch.bfloat16).linear([values], [torch.ones(8, dtype=torch.bfloat16)])
    assert made().weights.dtype == np.uint16
    assert np.array_equal(made().weights.astype(np.uint32) << 16, values.float().numpy().view(np.uint32))
    assert made().bias is not None
    assert cast("np.ndarray", made().bias).dtype == np.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", ["int8", "int8-dynamic"])
def test_int8_takes_the_values_as_they_were(quantization: Quantization, dtype: torch.dtype) -> None:
    own = builder(quantization, dtype)
    assert own.dtype == torch.float32, "rounding to bfloat16 first would cost precision twice"
    own.gate_up([weight(8), weight(8, 1)], ())
    assert made().how == "int8"
    assert made().weights.dtype == np.float32
    activations = "int8" if quantization == "int8-dynamic" else str(dtype).removeprefix("torch.")
    assert made().options == {"group": 0, "activations": activations, "gate": "silu"}


@pytest.mark.parametrize("quantization", [None, "int8", "int8-dynamic", "gguf"])
def test_a_tied_head_is_the_embedding_itself(quantization: Quantization | None) -> None:
    embedding, head = builder(quantization).tied(weight(12))
    assert cast("object", embedding) is cast("object", head)
    assert len(Matrix.made) == 1


@pytest.mark.parametrize("quantization", ["int8", "int8-dynamic"])
def test_an_embedding_of_its_own_is_not_quantised(quantization: Quantization) -> None:
    builder(quantization, torch.bfloat16).table(weight(12))
    assert made().how == "dense"
    assert made().weights.dtype == np.uint16


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_joined_row_by_row(kind: PackedKind, dtype: torch.dtype) -> None:
    parts = [packed(8, kind, 0), packed(4, kind, 1), packed(4, kind, 2)]
    builder("gguf", dtype).qkv(parts, [torch.ones(8), torch.ones(4), torch.ones(4)])
    assert made().how == "gguf"
    assert np.array_equal(made().weights, np.concatenate([part.blocks.numpy() for part in parts]))
    assert made().options == {"kind": kind, "activations": str(dtype).removeprefix("torch."), "gate": ""}
    assert cast("np.ndarray", made().bias).shape == (16,)


@pytest.mark.parametrize(
    "parts", [[packed(8, "Q4_0"), packed(8, "Q4_1", 1)], [packed(8), weight(8, 1)]], ids=["two kinds", "one unpacked"]
)
def test_rows_that_do_not_match_are_unpacked(parts: list[PackedRows | torch.Tensor]) -> None:
    builder("gguf").gate_up(parts, ())
    assert made().how == "dense"
    values = [part.dense(torch.float32) if isinstance(part, PackedRows) else part for part in parts]
    assert np.array_equal(made().weights, torch.cat(values).numpy())


def test_packed_embeddings_stay_packed() -> None:
    builder("gguf").table(packed(12, "Q8_0"))
    assert made().how == "gguf"
    assert made().options["kind"] == "Q8_0"


def test_norms_carry_their_offset() -> None:
    stored = torch.linspace(-0.5, 0.5, WIDTH, dtype=torch.bfloat16)
    for norm in (builder(family="gemma3").norm(stored), builder(family="gemma3").head_norm(stored, 4)):
        assert norm.dtype == np.float32
        assert np.array_equal(norm, stored.float().numpy() + 1)
    assert np.array_equal(builder().norm(stored), stored.float().numpy())


def test_packed_rows_know_their_shape_and_values() -> None:
    rows = packed(5, "Q8_0")
    assert rows.shape == (5, WIDTH)
    torch.testing.assert_close(rows.dense(torch.float32), weight(5), atol=0.03, rtol=0)
