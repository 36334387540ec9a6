"""Safetensors checkpoints, whole, sharded and damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.errors import ModelError
from outrider.models.checkpoint import read_config, read_tensors
from outrider.models.resolve import ModelFiles
from outrider.models.tokenizer import load_tokenizer

A, B = torch.arange(6.0).reshape(2, 3), torch.ones(4)


def read(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return dict(read_tensors(ModelFiles("m", folder), dtype))


def write_index(folder: Path, names: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def write_sharded(folder: Path) -> None:
    save_file({"a": A}, folder / "model-1.safetensors")
    save_file({"b": B}, folder / "model-2.safetensors")
    write_index(folder, {"a": "model-1.safetensors", "b": "model-2.safetensors"})


def test_single_file_is_cast_to_the_asked_dtype(tmp_path: Path) -> None:
    save_file({"a": A.half(), "b": B}, tmp_path / "model.safetensors")
    read_back = read(tmp_path, torch.bfloat16)
    assert torch.equal(read_back["a"], A.bfloat16())
    assert {tensor.dtype for tensor in read_back.values()} == {torch.bfloat16}


def test_single_file_wins_over_copies(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model.safetensors")
    save_file({"a": A + 1}, tmp_path / "other.safetensors")
    assert torch.equal(read(tmp_path)["a"], A)


def test_shards_are_joined(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    read_back = read(tmp_path)
    assert torch.equal(read_back["a"], A)
    assert torch.equal(read_back["b"], B)


def test_missing_shard_and_missing_tensor(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"})
    with pytest.raises(ModelError, match="lists tensor 'c', but no shard has it"):
        read(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-2.safetensors.*No such file"):
        read(tmp_path)


@pytest.mark.parametrize("shard", ["../other.safetensors", "/tmp/other.safetensors", "sub/other.safetensors"])
def test_index_cannot_reach_other_folders(tmp_path: Path, shard: str) -> None:
    write_index(tmp_path, {"a": shard})
    with pytest.raises(ModelError, match="not in its own folder"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "\ufeff{}"])
def test_unusable_index(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=r"model.safetensors.index.json"):
        read(tmp_path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": A}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model.safetensors is corrupt or truncated") as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_packed_integers_are_not_taken_for_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a": torch.ones(4).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="quantised safetensors are not read"):
        read(tmp_path)


def test_config_is_read_without_code_or_network(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    assert read_config(ModelFiles("m", tmp_path)).hidden_size == 64


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_never_runs_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    # Where Transformers copies such code, kept from the user's own folder.
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = tmp_path / "marker"
    (tmp_path / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Own: pass\n")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    auto_map = {"AutoConfig": "own.Own", "AutoTokenizer": ["own.Own", None]}
    (tmp_path / name).write_text(json.dumps({"model_type": "own", "tokenizer_class": "Own", "auto_map": auto_map}))
    read = read_config if name == "config.json" else load_tokenizer
    with pytest.raises(ModelError, match=r"^m: it needs Python code of its own[^\n]+--trust-remote-code"):
        read(ModelFiles("m", tmp_path))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", "must hold a JSON object, not a list"),
        ('{"model_type": "no-such-model"}', "Transformers cannot read its configuration"),
        ('{"model_type": "llama", "hidden_size": 48}', "hidden size .*48.* is not a multiple"),
        ("{}", "Transformers cannot read its configuration"),
    ],
)
def test_config_that_cannot_be_used(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        read_config(ModelFiles("m", tmp_path))
    assert "\n" not in str(caught.value)
