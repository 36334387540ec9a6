"""Which runner a model gets, and the settings that are refused before weights are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from outrider import kernels
from outrider.config import Quantization
from outrider.errors import CapabilityError, ConfigError, ModelError
from outrider.models import checkpoint, load, resolve, tokenizer
from outrider.models.load import load_runner, model_length


@pytest.mark.parametrize(("wanted", "expected"), [(None, 64), (1, 1), (64, 64)])
def test_model_length(wanted: int | None, expected: int) -> None:
    assert model_length(LlamaConfig(max_position_embeddings=64), wanted, "toy") == expected


@pytest.mark.parametrize("wanted", [65, 0, -1, True, 2.0, "8"])
def test_model_length_out_of_range(wanted: Any) -> None:
    with pytest.raises(ConfigError, match=f"max_model_len={wanted}|max_model_len='8'"):
        model_length(LlamaConfig(max_position_embeddings=64), wanted, "toy")


def test_model_that_does_not_say_how_long_it_is() -> None:
    config = SimpleNamespace(get_text_config=SimpleNamespace)
    assert model_length(config, 7, "toy") == 7
    with pytest.raises(ModelError, match="set max_model_len"):
        model_length(config, None, "toy")


def test_draft_without_a_context_length_takes_the_targets() -> None:
    config: Any = SimpleNamespace(get_text_config=SimpleNamespace)
    assert model_length(config, None, "toy", longest=48) == 48
    assert model_length(LlamaConfig(max_position_embeddings=64), None, "toy", longest=48) == 48


@pytest.mark.parametrize("limit", ["x", -3, 0, float("nan"), True])
def test_context_length_that_is_none(limit: Any) -> None:
    config: Any = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=limit))
    with pytest.raises(ModelError, match=r"toy: max_position_embeddings=.* is no context length"):
        model_length(config, None, "toy")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_parameters", {"rope_theta": "x"}),
        ("rope_parameters", {"rope_type": "default"}),
        ("rope_parameters", None),
        ("num_attention_heads", 0),
        ("rms_norm_eps", "x"),
    ],
)
def test_configuration_of_wrong_types_is_one_line(field: str, value: Any) -> None:
    config = LlamaConfig(head_dim=None)
    vars(config)[field] = value
    vars(config)["head_dim"] = None
    with pytest.raises(ModelError, match=r"^toy: its configuration has an unusable value \([^\n]+$"):
        load._decoder_config(config, "toy")


class Recorder:
    """Stands in for both runner modules and for the files, and records what it was loaded with."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.loaded: dict[str, dict[str, Any]] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Recorder:
        decoder: Any = ModuleType("outrider.models.decoder")
        decoder.supports = lambda config: config.model_type == "llama"
        decoder.DecoderConfig = SimpleNamespace(from_hf=lambda config: config)
        decoder.DecoderRunner = SimpleNamespace(load=self._loader("decoder"))
        hf: Any = ModuleType("outrider.models.hf")
        hf.HFRunner = SimpleNamespace(load=self._loader("hf"))
        for module in (decoder, hf):
            monkeypatch.setitem(sys.modules, module.__name__, module)
            monkeypatch.setattr(f"outrider.models.{module.__name__.rpartition('.')[2]}", module, raising=False)
        files = resolve.ModelFiles("toy", Path("/toy"))
        monkeypatch.setattr(load, "resolve", lambda ref, trust_remote_code: files)
        monkeypatch.setattr(checkpoint, "read_config", lambda files, trust_remote_code: self.config)
        monkeypatch.setattr(checkpoint, "read_tensors", lambda files, dtype: iter(()))
        monkeypatch.setattr(tokenizer, "load_tokenizer", lambda files, trust_remote_code: "tokenizer")
        return self

    def _loader(self, name: str) -> Any:
        def load(*args: Any, **options: Any) -> str:
            self.loaded[name] = options
            return name

        return load


def test_known_family_gets_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(LlamaConfig(max_position_embeddings=64)).install(monkeypatch)
    loaded = load_runner("toy", dtype="float32", max_num_seqs=3)
    assert str(loaded.runner) == "decoder"
    assert str(loaded.tokenizer) == "tokenizer"
    assert recorder.loaded == {
        "decoder": {
            "dtype": torch.float32,
            "quantization": None,
            "max_num_seqs": 3,
            "max_model_len": 64,
            "name": "toy",
        }
    }


@pytest.mark.parametrize(
    "config", [GPT2Config(n_positions=64), LlamaConfig(max_position_embeddings=64, quantization_config={"bits": 4})]
)
def test_anything_else_goes_through_transformers(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    recorder = Recorder(config).install(monkeypatch)
    load_runner("toy", max_num_seqs=2, max_model_len=16, trust_remote_code=True)
    assert recorder.loaded == {
        "hf": {
            "dtype": torch.bfloat16,
            "max_num_seqs": 2,
            "max_model_len": 16,
            "trust_remote_code": True,
            "name": "toy",
        }
    }


def test_settings_are_checked_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(LlamaConfig(max_position_embeddings=64)).install(monkeypatch)
    with pytest.raises(ConfigError, match="use 64 or less"):
        load_runner("toy", max_model_len=65)
    with pytest.raises(ConfigError, match="dtype='float16' is not supported"):
        load_runner("toy", dtype="float16")
    assert recorder.loaded == {}


class Readers:
    """Stands in for both ways to read weights, and records how they were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, torch.dtype]] = []
        for way in ("read_tensors", "read_packed_tensors"):
            monkeypatch.setattr(checkpoint, way, partial(self._read, way))

    def _read(self, way: str, files: resolve.ModelFiles, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        self.asked.append((way, dtype))
        return iter(())


@pytest.mark.parametrize(
    ("quantization", "asked"),
    [
        (None, ("read_tensors", torch.bfloat16)),
        ("int8", ("read_tensors", torch.float32)),
        ("int8-dynamic", ("read_tensors", torch.float32)),
        ("gguf", ("read_packed_tensors", torch.bfloat16)),
    ],
)
def test_weights_are_read_as_what_they_are_packed_from(
    monkeypatch: pytest.MonkeyPatch, quantization: Quantization | None, asked: tuple[str, torch.dtype]
) -> None:
    readers = Readers(monkeypatch)
    files = resolve.ModelFiles("toy", Path("/toy"), Path("/toy/m.gguf"))
    assert list(load._tensors(files, torch.bfloat16, quantization)) == []
    assert readers.asked == [asked]


@pytest.mark.parametrize(
    ("quantization", "config", "error", "message"),
    [
        ("int3", LlamaConfig(), ConfigError, "^quantization='int3' is unknown; use 'int8', 'int8-dynamic', 'gguf' or"),
        ("gguf", LlamaConfig(), ConfigError, "^quantization='gguf': toy is no GGUF file; use a GGUF file, or"),
        ("int8", GPT2Config(), CapabilityError, "^quantization='int8': toy runs on Transformers, and only"),
    ],
)
def test_quantizations_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, quantization: str, config: Any, error: type[Exception], message: str
) -> None:
    recorder = Recorder(config).install(monkeypatch)
    monkeypatch.setattr(kernels, "require", lambda what: None)
    with pytest.raises(error, match=message):
        load_runner("toy", quantization=quantization, max_model_len=16)
    assert recorder.loaded == {}


def test_without_native_kernels_a_quantization_is_refused_before_a_model_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUTRIDER_KERNELS", "torch")
    monkeypatch.setattr(load, "resolve", lambda *_, **__: pytest.fail("fetched"))
    message = "quantization='int8' needs the native kernels: turned off by OUTRIDER_KERNELS=torch"
    with pytest.raises(CapabilityError, match=message):
        load_runner("toy", quantization="int8")


def test_an_unknown_level_is_refused_before_a_model_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_KERNELS", "avx9")
    monkeypatch.setattr(load, "resolve", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(ConfigError, match="OUTRIDER_KERNELS='avx9' is not available here"):
        load_runner("toy")
