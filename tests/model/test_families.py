"""Our decoder computes what Transformers computes, family by family, however the tokens arrive."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from outrider.errors import CapabilityError, ConfigError, ModelError
from outrider.models.base import Feed, TargetRunner
from outrider.models.checkpoint import read_config, read_tensors
from outrider.models.decoder import DecoderConfig, DecoderRunner, supports
from outrider.models.decoder_native import NativeForward
from outrider.models.decoder_torch import TorchForward
from outrider.models.forward import Forward
from outrider.models.pull import is_pulled
from outrider.models.quiet import quiet_transformers
from outrider.models.registry import DEMO_MODELS
from outrider.models.resolve import resolve
from outrider.testing import RunnerContract
from tests.unit.decoders import SMALL, VOCAB, families, load, on, random_weights, reference

LENGTH = 40
TOLERANCE = 1e-4


def expected_logits(model: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def tokens_of(seed: int, count: int = LENGTH, vocab: int = VOCAB) -> tuple[int, ...]:
    return tuple(torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def fed(runner: DecoderRunner, sequence_id: int, tokens: tuple[int, ...], *counts: int) -> torch.Tensor:
    rows, at = [], 0
    for count in counts:
        rows.append(runner.score([Feed(sequence_id, tokens[at : at + count], count)]).logits[0])
        at += count
    return torch.cat(rows)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("family", families())
def test_logits_equal_transformers(family: str) -> None:
    config = families()[family]
    model = reference(config)
    runner = load(config, iter(model.state_dict().items()))
    tokens = tokens_of(1)
    expected = expected_logits(model, tokens)
    for sequence_id, counts in enumerate([(LENGTH,), (7, 13, 20), (1,) * LENGTH]):
        runner.open(sequence_id)
        torch.testing.assert_close(fed(runner, sequence_id, tokens, *counts), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("family", families())
def test_rollback_leaves_no_trace(family: str) -> None:
    config = families()[family]
    model = reference(config)
    runner = load(config, iter(model.state_dict().items()))
    runner.open(5)
    first, other = tokens_of(2), tokens_of(3)
    fed(runner, 5, first, LENGTH)
    for kept in (31, 17, 0):
        runner.commit(5, kept)
        tokens = first[:kept] + other[kept:]
        logits = fed(runner, 5, tokens[kept:], 5, LENGTH - kept - 5)
        torch.testing.assert_close(logits, expected_logits(model, tokens)[kept:], atol=TOLERANCE, rtol=0)
        first = tokens


@pytest.mark.usefixtures("backend")
def test_hidden_states_are_what_the_head_reads() -> None:
    config = families()["llama-untied-biased"]
    model = reference(config)
    runner = load(config, iter(model.state_dict().items()))
    runner.open(1)
    tokens = tokens_of(4)
    scores = runner.score([Feed(1, tokens, 3)], hidden=True)
    with torch.no_grad():
        states = model.model(torch.tensor([tokens])).last_hidden_state[0, -3:]
    assert scores.hidden is not None
    torch.testing.assert_close(scores.hidden[0], states, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_type='yarn'"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads=3"),
    ],
)
def test_what_it_cannot_run_it_says_at_once(settings: dict[str, Any], message: str) -> None:
    with quiet_transformers():
        config = LlamaConfig(**{**SMALL, **settings})
    assert not supports(config)
    with pytest.raises(CapabilityError, match=message):
        DecoderConfig.from_hf(config)


def test_other_families_are_left_to_other_runners() -> None:
    assert not supports(GPT2Config())
    assert all(supports(config) for config in families().values())


def test_softcapped_logits_are_refused() -> None:
    config = families()["gemma3"]
    config.final_logit_softcapping = 30.0
    with pytest.raises(CapabilityError, match="final_logit_softcapping=30"):
        DecoderConfig.from_hf(config)


@cache
def _gemma(backend: str) -> Forward:
    """The family with the most switches."""
    config = families()["gemma3"]
    with on(backend):
        return load(config, random_weights(config)).forward


SIZES = {"max_num_seqs": 3, "max_model_len": 40}


class TestTorchRunner(RunnerContract):
    """The contract of every runner; each test gets slots of its own over the same weights."""

    def make_runner(self) -> TargetRunner:
        made = _gemma("torch")
        assert isinstance(made, TorchForward)
        forward = TorchForward(made.config, made.weights, made.rule, deterministic=made.deterministic, **SIZES)
        return DecoderRunner(made.config, forward, name="gemma", **SIZES)


class TestNativeRunner(RunnerContract):
    def make_runner(self) -> TargetRunner:
        made = _gemma("native")
        assert isinstance(made, NativeForward)
        forward = NativeForward(made.config, made.weights, made.native, made.pool, dtype=torch.float32, **SIZES)
        return DecoderRunner(made.config, forward, name="gemma", **SIZES)


@pytest.fixture(scope="module")
def small() -> PretrainedConfig:
    return families()["llama-tied"]


@pytest.mark.usefixtures("backend")
def test_a_missing_tensor_is_named(small: PretrainedConfig) -> None:
    tensors = [(name, tensor) for name, tensor in random_weights(small) if name != "model.layers.2.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match=r"llama: tensor 'model\.layers\.2\.mlp\.up_proj\.weight' is missing"):
        load(small, iter(tensors))


@pytest.mark.usefixtures("backend")
def test_a_tensor_of_no_use_is_named(small: PretrainedConfig) -> None:
    tensors = [*random_weights(small), ("model.layers.0.mlp.extra.weight", torch.zeros(3))]
    with pytest.raises(ModelError, match=r"mlp\.extra\.weight' does not belong"):
        load(small, iter(tensors))


@pytest.mark.usefixtures("backend")
def test_a_tensor_of_the_wrong_shape_is_named(small: PretrainedConfig) -> None:
    tensors = [(n, torch.zeros(5, 5) if n.endswith("1.mlp.down_proj.weight") else t) for n, t in random_weights(small)]
    with pytest.raises(ModelError, match=r"model\.layers\.1\.down' do not fit"):
        load(small, iter(tensors))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("setting", ["max_num_seqs", "max_model_len"])
def test_sizes_must_be_positive(small: PretrainedConfig, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}=0"):
        load(small, random_weights(small), **{setting: 0})


@pytest.mark.weights
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", sorted(DEMO_MODELS))
def test_the_demo_models_equal_transformers(name: str) -> None:
    if not is_pulled(DEMO_MODELS[name]):
        pytest.skip(f"run `outrider pull {name}` first")
    from transformers import AutoModelForCausalLM, GgufConfig

    files = resolve(name)
    assert files.gguf is not None
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(
            files.folder,
            gguf_file=files.gguf.name,
            dtype=torch.float32,
            attn_implementation="eager",
            quantization_config=GgufConfig(dequantize=True),
        )
    config = read_config(files)
    # Longer than one key step, and than the window of a model that has one.
    tokens = tokens_of(6, 600 if config.model_type == "gemma3_text" else 220, config.vocab_size)
    expected = expected_logits(model, tokens)[-80:]
    del model
    runner = load(config, read_tensors(files, torch.float32), max_model_len=640)
    runner.open(1)
    runner.score([Feed(1, tokens[:-80], 0)])
    logits = fed(runner, 1, tokens[-80:], 70, 1, 9)
    # Relative to the largest logit: sums of some thousand terms carry fp32 noise in proportion to it.
    torch.testing.assert_close(logits, expected, atol=TOLERANCE * float(expected.abs().max()), rtol=0)
