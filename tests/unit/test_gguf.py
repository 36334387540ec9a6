"""Reading GGUF files made here, tensor by tensor, and refusing damaged ones in one line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from outrider.errors import ModelError
from outrider.models.gguf_config import config_from_gguf, gguf_eos_ids
from outrider.models.gguf_file import GGUFFile, open_gguf
from outrider.models.gguf_names import hugging_face_name, read_gguf_tensors, unpermute

HEADS, KV_HEADS, HEAD_DIM, WIDTH, VOCAB = 4, 2, 8, 32, 6
SIZES: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": WIDTH,
    "feed_forward_length": 48,
    "block_count": 1,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "rope.freq_base": 5000.0,
}


def write(
    path: Path,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
    packed: dict[str, GGMLQuantizationType] | None = None,
    **extra: Any,
) -> Path:
    """A small GGUF file; keys of ``extra`` use ``__`` for a dot, and None leaves a size out."""
    writer = GGUFWriter(path, architecture)
    own = {key.replace("__", "."): value for key, value in extra.items()}
    sizes = SIZES | {"attention.layer_norm_rms_epsilon": 1e-5} | own
    for key, value in sizes.items():
        full = key if key.startswith(("general.", "tokenizer.", "split.")) else f"{architecture}.{key}"
        if isinstance(value, bool | str | list):
            {bool: writer.add_bool, str: writer.add_string, list: writer.add_array}[type(value)](full, value)
        elif value is not None:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(full, value)
    embedding = np.arange(VOCAB * WIDTH, dtype=np.float32).reshape(VOCAB, WIDTH)
    for name, values in {"token_embd.weight": embedding, **(tensors or {})}.items():
        kind = (packed or {}).get(name)
        data = values if kind is None else quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_array(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def tensors_of(file: GGUFFile, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return dict(read_gguf_tensors(file, dtype))


# --- values -----------------------------------------------------------------------------------------------


def test_header_keeps_values_array_lengths_and_shapes(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path / "m.gguf", tokenizer__ggml__tokens=["a", "bc"], flag=True))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.flag"] is True
    assert file.metadata["llama.rope.freq_base"] == 5000.0
    assert file.arrays == {"tokenizer.ggml.tokens": 2}
    assert file.tensors["token_embd.weight"].shape == (VOCAB, WIDTH)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_packed_values_come_back_within_their_precision(tmp_path: Path, kind: str) -> None:
    values = random_array(48, WIDTH)
    packed = {"blk.0.ffn_up.weight": GGMLQuantizationType[kind]}
    file = open_gguf(write(tmp_path / "m.gguf", tensors={"blk.0.ffn_up.weight": values}, packed=packed))
    error = (tensors_of(file)["model.layers.0.mlp.up_proj.weight"] - torch.from_numpy(values)).abs().max()
    steps = {"F32": 0.0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}
    assert error <= steps.get(kind, 0.5)


def test_rows_of_a_large_tensor_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.models.gguf_file._CHUNK_VALUES", 3 * WIDTH)  # 48 rows in 16 steps, 7 in 3
    values = {"blk.0.ffn_up.weight": random_array(48, WIDTH), "blk.0.ffn_gate.weight": random_array(7, WIDTH)}
    read = tensors_of(open_gguf(write(tmp_path / "m.gguf", tensors=values)))
    assert torch.equal(read["model.layers.0.mlp.up_proj.weight"], torch.from_numpy(values["blk.0.ffn_up.weight"]))
    assert torch.equal(read["model.layers.0.mlp.gate_proj.weight"], torch.from_numpy(values["blk.0.ffn_gate.weight"]))


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """What the llama converter does: row i of a head's first half and of its second half become neighbours."""
    out = np.empty_like(rows)
    dim = rows.shape[0] // heads
    for head in range(heads):
        for i in range(dim // 2):
            out[head * dim + 2 * i] = rows[head * dim + i]
            out[head * dim + 2 * i + 1] = rows[head * dim + dim // 2 + i]
    return out


@pytest.mark.parametrize(("part", "name", "heads"), [("q", "q_proj", HEADS), ("k", "k_proj", KV_HEADS)])
def test_llama_query_and_key_rows_are_put_back(tmp_path: Path, part: str, name: str, heads: int) -> None:
    rows = random_array(heads * HEAD_DIM, WIDTH)
    stored = {f"blk.0.attn_{part}.weight": interleave(rows, heads)}
    target = f"model.layers.0.self_attn.{name}.weight"
    assert torch.equal(tensors_of(open_gguf(write(tmp_path / "a", tensors=stored)))[target], torch.from_numpy(rows))
    untouched = tensors_of(open_gguf(write(tmp_path / "b", "qwen2", tensors=stored)))[target]
    assert not torch.equal(untouched, torch.from_numpy(rows))


def test_unpermute_handles_biases() -> None:
    bias = random_array(HEADS * HEAD_DIM)
    assert torch.equal(unpermute(torch.from_numpy(interleave(bias, HEADS)), HEADS), torch.from_numpy(bias))


def test_gemma_norms_lose_the_one_before_rounding(tmp_path: Path) -> None:
    weight = random_array(WIDTH) / 100
    stored = {"blk.0.attn_norm.weight": weight + 1, "blk.0.ffn_up.weight": random_array(4, WIDTH)}
    read = tensors_of(open_gguf(write(tmp_path / "m.gguf", "gemma3", tensors=stored)), torch.bfloat16)
    exact = torch.from_numpy((weight + 1) - 1).to(torch.bfloat16)
    assert torch.equal(read["model.layers.0.input_layernorm.weight"], exact)
    up = torch.from_numpy(random_array(4, WIDTH)).to(torch.bfloat16)
    assert torch.equal(read["model.layers.0.mlp.up_proj.weight"], up)


def test_names() -> None:
    assert hugging_face_name("llama", "output.weight") == "lm_head.weight"
    assert hugging_face_name("qwen2", "blk.11.attn_q.bias") == "model.layers.11.self_attn.q_proj.bias"
    assert hugging_face_name("llama", "blk.0.ffn_norm.weight") == "model.layers.0.post_attention_layernorm.weight"
    assert hugging_face_name("gemma3", "blk.0.ffn_norm.weight") == "model.layers.0.pre_feedforward_layernorm.weight"
    assert hugging_face_name("llama", "blk.0.post_ffw_norm.weight") is None


def test_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path / "m.gguf", tensors={"blk.0.ffn_gate_exps.weight": random_array(2, WIDTH)}))
    with pytest.raises(ModelError, match=r"'blk.0.ffn_gate_exps.weight' has no place in a 'llama' model"):
        tensors_of(file)


# --- configuration ----------------------------------------------------------------------------------------


def test_llama_configuration(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path / "m.gguf", tokenizer__ggml__eos_token_id=2, tokenizer__ggml__eot_token_id=5))
    config = config_from_gguf(file)
    assert (config.model_type, config.vocab_size) == ("llama", VOCAB)
    assert (config.hidden_size, config.head_dim) == (WIDTH, HEAD_DIM)
    assert (config.num_attention_heads, config.num_key_value_heads) == (HEADS, KV_HEADS)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 5000.0}
    assert config.tie_word_embeddings is True
    assert gguf_eos_ids(file) == {2, 5}


def test_output_tensor_unties_the_embedding(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "qwen3", tensors={"output.weight": random_array(VOCAB, WIDTH)})
    config = config_from_gguf(open_gguf(path))
    assert (config.model_type, config.tie_word_embeddings) == ("qwen3", False)


def test_gemma_scaling_applies_to_full_attention_only(tmp_path: Path) -> None:
    extra: dict[str, Any] = {"attention__sliding_window": 16, "attention__key_length": 8}
    extra |= {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    config = config_from_gguf(open_gguf(write(tmp_path / "m.gguf", "gemma3", **extra)))
    assert (config.model_type, config.sliding_window, config.query_pre_attn_scalar) == ("gemma3_text", 16, 8)
    full, window = config.rope_parameters["full_attention"], config.rope_parameters["sliding_attention"]
    assert full == {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}
    assert window == {"rope_type": "default", "rope_theta": 10_000.0}


def llama3_divisors(factor: float, theta: float, dim: int) -> np.ndarray:
    """Llama 3's published rule, one frequency at a time (context 8192, low 1, high 4)."""
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * theta ** (i / dim)
        smooth = np.clip((8192 / wavelength - 1) / (4 - 1), 0, 1)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


def test_llama3_rule_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    divisors = llama3_divisors(32.0, 500_000.0, 64)
    extra: dict[str, Any] = {"attention__key_length": 64, "rope__freq_base": 500_000.0}
    path = write(tmp_path / "m.gguf", tensors={"rope_freqs.weight": divisors}, **extra)
    config = config_from_gguf(open_gguf(path))
    assert config.rope_parameters["rope_type"] == "llama3"
    assert config.rope_parameters["factor"] == 32.0
    assert "rope_freqs.weight" not in tensors_of(open_gguf(path))
    divisors[10] *= 1.1
    other = write(tmp_path / "n.gguf", tensors={"rope_freqs.weight": divisors}, **extra)
    with pytest.raises(ModelError, match="follow no rule known here"):
        config_from_gguf(open_gguf(other))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"attention__head_count": None}, r"incomplete: metadata 'llama.attention.head_count' is missing"),
        ({"attention__head_count_kv": [1, 2]}, r"llama.attention.head_count_kv differs by layer"),
        ({"rope__scaling__type": "longrope"}, r"rotary scaling 'longrope' is not supported"),
    ],
)
def test_configuration_that_cannot_be_used(tmp_path: Path, extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_gguf(open_gguf(write(tmp_path / "m.gguf", **extra)))


WHOLE = (
    "embedding_length",
    "attention__head_count",
    "attention__head_count_kv",
    "feed_forward_length",
    "block_count",
    "context_length",
    "attention__key_length",
)
REAL = ("attention__layer_norm_rms_epsilon", "rope__freq_base", "rope__scaling__factor")


@pytest.mark.parametrize("value", ["x", float("nan"), float("inf"), -1.0, 0, True])
@pytest.mark.parametrize("key", [*WHOLE, *REAL])
def test_size_that_is_no_size_is_named(tmp_path: Path, key: str, value: Any) -> None:
    extra: dict[str, Any] = {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0, key: value}
    file = open_gguf(write(tmp_path / "m.gguf", **extra))
    with pytest.raises(ModelError, match=f"m.gguf: metadata 'llama.{key.replace('__', '.')}' is .*, not a"):
        config_from_gguf(file)


def test_billions_of_layers_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="block_count is 2147483648, but it has only 1 tensors"):
        config_from_gguf(open_gguf(write(tmp_path / "m.gguf", block_count=1 << 31)))


def test_frequency_factors_for_another_head_size(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tensors={"rope_freqs.weight": random_array(4)}, attention__key_length=1 << 31)
    with pytest.raises(ModelError, match="follow no rule known here"):
        config_from_gguf(open_gguf(path))


@pytest.mark.parametrize("value", ["x", float("nan"), -1.0])
def test_end_token_that_is_no_id(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ModelError, match=r"'tokenizer.ggml.eos_token_id' is .*, not a token id"):
        gguf_eos_ids(open_gguf(write(tmp_path / "m.gguf", tokenizer__ggml__eos_token_id=value)))


def test_query_rows_that_are_no_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tensors={"blk.0.attn_q.weight": random_array(HEADS * 3, WIDTH)})
    with pytest.raises(ModelError, match=r"the 12 rows of 'blk.0.attn_q.weight' are no pairs for 4 heads"):
        tensors_of(open_gguf(path))


# --- damage -----------------------------------------------------------------------------------------------


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_norm.weight": random_array(8)}
    whole = write(tmp_path / "m.gguf", tensors=tensors, tokenizer__ggml__tokens=["a", "bc"]).read_bytes()
    file = open_gguf(tmp_path / "m.gguf")
    end = max(info.start + info.nbytes for info in file.tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in range(end):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut.gguf"):
            open_gguf(cut)
    cut.write_bytes(whole[:end])
    assert open_gguf(cut).tensors.keys() == file.tensors.keys()


@pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
def test_no_changed_header_byte_escapes_as_another_error(tmp_path: Path, value: int) -> None:
    whole = write(tmp_path / "m.gguf", tokenizer__ggml__tokens=["a", "bc"]).read_bytes()
    header = open_gguf(tmp_path / "m.gguf").data_start
    bad = tmp_path / "bad.gguf"
    refused = 0
    for position in range(header):
        bad.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
        refused += 1
        with suppress(ModelError):
            open_gguf(bad)
            refused -= 1
    assert refused > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04 a zip", "is not a GGUF file"),
        (b"GGUF\x01\x00\x00\x00" + bytes(16), "GGUF version 1 is not supported"),
        (b"GGUF\x00\x00\x00\x03" + bytes(16), "GGUF version 50331648 is not supported"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        open_gguf(path)


def test_metadata_of_the_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"m.gguf is corrupt: invalid literal .* in its header"):
        open_gguf(write(tmp_path / "m.gguf", general__alignment="wide"))


def test_missing_file_and_split_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match="one piece of a split model"):
        open_gguf(write(tmp_path / "m.gguf", split__count=3))
