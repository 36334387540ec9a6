"""Quantised weights compute what Transformers computes with the same weights unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import LlamaConfig

from outrider import kernels
from outrider.config import Quantization
from outrider.errors import CapabilityError
from outrider.models.base import Feed
from outrider.models.checkpoint import read_config, read_packed_tensors, read_tensors
from outrider.models.decoder import DecoderRunner
from outrider.models.decoder_native import NativeForward
from outrider.models.resolve import ModelFiles
from tests.unit.decoders import SMALL, VOCAB, families, load, on, random_weights, reference
from tests.unit.test_gguf import interleave, write

TOKENS = tuple((i * i * 7 + 3 * i + 1) % VOCAB for i in range(40))
FAMILIES = ["llama-tied", "llama-untied-biased", "llama-odd", "qwen3", "gemma3"]


@pytest.fixture(autouse=True)
def native_kernels() -> None:
    if reason := kernels.load().reason:
        pytest.skip(reason)


def logits_of(runner: DecoderRunner, *counts: int) -> torch.Tensor:
    runner.open(1)
    rows, at = [], 0
    for count in counts or (len(TOKENS),):
        rows.append(runner.score([Feed(1, TOKENS[at : at + count], count)]).logits[0])
        at += count
    return torch.cat(rows)


def expected(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


def rounded(x_NI: torch.Tensor) -> torch.Tensor:
    """Every row to 255 levels between its largest magnitude and the opposite."""
    scale_N1 = x_NI.abs().amax(-1, keepdim=True) / 127
    return (x_NI / scale_N1.clamp_min(1e-30)).round() * scale_N1


def with_int8_weights(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = rounded(module.weight.data)
    if model.config.tie_word_embeddings:
        model.model.embed_tokens.weight.data = model.lm_head.weight.data
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_has_one_scale_an_output(family: str) -> None:
    config = families()[family]
    model = reference(config)
    runner = load(config, iter(model.state_dict().items()), quantization="int8")
    plain = expected(model)
    exact = expected(with_int8_weights(model))
    assert (plain - exact).abs().max() > 1e-2, "the tolerance below must tell quantised from plain"
    torch.testing.assert_close(logits_of(runner, 30, 1, 9), exact, atol=1e-3, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_dynamic_rounds_activations_too(family: str) -> None:
    config = families()[family]
    model = reference(config)
    runner = load(config, iter(model.state_dict().items()), quantization="int8-dynamic")
    plain = expected(with_int8_weights(model))
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]),))
    exact, got = expected(model), logits_of(runner, 30, 1, 9)
    # An activation next to the middle of two levels may take the other one, so rows are compared as wholes.
    assert error(got, exact) < 0.3 * error(plain, exact)


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got - exact).norm() / exact.norm())


@pytest.mark.parametrize("quantization", get_args(Quantization))
def test_bfloat16_activations(quantization: Quantization) -> None:
    config = families()["llama-tied"]
    wide = load(config, random_weights(config), quantization=quantization)
    narrow = load(config, random_weights(config), quantization=quantization, dtype=torch.bfloat16)
    got, exact = logits_of(narrow), logits_of(wide)
    assert 1e-4 < error(got, exact) < 0.1
    assert got.dtype == torch.float32, "sums are fp32 and stay so"


def test_weights_are_kept_small() -> None:
    config = LlamaConfig(**{**SMALL, "hidden_size": 256, "intermediate_size": 512})
    sizes: dict[str | None, int] = {}
    for quantization in (None, "int8", "int8-dynamic"):
        forward = load(config, random_weights(config), dtype=torch.bfloat16, quantization=quantization).forward
        assert isinstance(forward, NativeForward)
        sizes[quantization] = forward._decoder.nbytes
    assert sizes["int8"] < 0.6 * sizes[None]
    assert sizes["int8-dynamic"] < 0.6 * sizes[None]


def test_torch_has_no_quantization() -> None:
    config = families()["llama-tied"]
    with on("torch"), pytest.raises(CapabilityError, match="quantization='int8' needs the native kernels: turned off"):
        load(config, random_weights(config), quantization="int8")


# --- GGUF -------------------------------------------------------------------------------------------------

HEADS, KV_HEADS, LAYERS = 4, 2, 2
CONFIG: dict[str, Any] = {**SMALL, "num_hidden_layers": LAYERS, "intermediate_size": 128}
# v is stored otherwise than q and k, so that one matrix has to be unpacked; gate and up are alike.
KINDS = {"attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q8_0", "attn_output": "Q4_1", "ffn_gate": "Q4_1"}
KINDS |= {"ffn_up": "Q4_1", "ffn_down": "Q8_0"}
PLACES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(params=["mixed", "alike"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> ModelFiles:
    """A llama of random weights, its matrices in blocks: of several kinds, or all but the table of one."""
    state = reference(LlamaConfig(**CONFIG)).state_dict()
    kinds = KINDS if request.param == "mixed" else dict.fromkeys(KINDS, "Q4_0")
    tensors: dict[str, np.ndarray] = {"token_embd.weight": state["model.embed_tokens.weight"].numpy()}
    tensors["output_norm.weight"] = state["model.norm.weight"].numpy()
    packed = {"token_embd.weight": Kind.Q8_0}
    for layer in range(LAYERS):
        for part, place in PLACES.items():
            values, name = state[f"model.layers.{layer}.{place}.weight"].numpy(), f"blk.{layer}.{part}.weight"
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(part)
            tensors[name] = interleave(values, heads) if heads else values
            if part in kinds:
                packed[name] = Kind[kinds[part]]
    sizes: dict[str, Any] = {
        "embedding_length": 64,
        "feed_forward_length": 128,
        "block_count": LAYERS,
        "context_length": 512,
    }
    path = write(tmp_path / "m.gguf", tensors=tensors, packed=packed, **sizes)
    return ModelFiles("toy", tmp_path, path)


def from_gguf(files: ModelFiles, quantization: Quantization | None, dtype: torch.dtype) -> DecoderRunner:
    tensors = read_packed_tensors(files, dtype) if quantization == "gguf" else read_tensors(files, dtype)
    return load(read_config(files), tensors, dtype=dtype, quantization=quantization)


def test_blocks_are_multiplied_as_they_are(files: ModelFiles) -> None:
    exact = logits_of(from_gguf(files, None, torch.float32))
    torch.testing.assert_close(logits_of(from_gguf(files, "gguf", torch.float32), 30, 1, 9), exact, atol=1e-4, rtol=0)


def test_blocks_with_bfloat16_activations(files: ModelFiles) -> None:
    exact = logits_of(from_gguf(files, None, torch.float32))
    assert 1e-4 < error(logits_of(from_gguf(files, "gguf", torch.bfloat16)), exact) < 0.1


def test_blocks_are_never_expanded(files: ModelFiles) -> None:
    forward, dense = (from_gguf(files, each, torch.float32).forward for each in ("gguf", None))
    assert isinstance(forward, NativeForward)
    assert isinstance(dense, NativeForward)
    assert forward._decoder.nbytes < 0.5 * dense._decoder.nbytes


def test_rows_of_queries_are_put_back_packed_as_unpacked(files: ModelFiles) -> None:
    dense = dict(read_tensors(files, torch.float32))
    kept = 0
    for name, tensor in read_packed_tensors(files, torch.float32):
        kept += not isinstance(tensor, torch.Tensor)
        values = tensor if isinstance(tensor, torch.Tensor) else tensor.dense(torch.float32)
        assert torch.equal(values, dense.pop(name)), name
    assert not dense
    assert kept == 7 * LAYERS + 1
