"""Sizes of models: counted as Transformers counts them, and refused where they cannot be counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.errors import ModelError
from outrider.models.quiet import quiet_transformers
from outrider.plan.architecture import FAMILIES, Architecture, Storage, read_architecture

SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_model(family: str, tied: bool) -> None:
    """Exact but for biases and the extra norms of some families: below half a percent even at this size."""
    config = AutoConfig.for_model(
        family, **SIZES, head_dim=64, tie_word_embeddings=tied, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    with quiet_transformers(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    held = sum(parameter.numel() for parameter in model.parameters())
    found = read_architecture(config.to_dict(), family)
    assert found.parameters == pytest.approx(held, rel=0.005)
    if family in ("llama", "mistral", "phi3", "granite"):
        assert found.parameters == held


def test_a_pass_reads_an_untied_embedding_table_no_more_than_a_tied_one() -> None:
    untied, tied = (read_architecture({**SIZES, "tie_word_embeddings": tied}, "m") for tied in (False, True))
    assert untied.pass_parameters == tied.pass_parameters == tied.parameters
    assert untied.parameters - untied.pass_parameters == 1000 * 512


def test_cache_counts_shared_heads_once() -> None:
    model = read_architecture(SIZES, "m")
    assert model.values_per_key == 2 * 2 * 64
    footprint = model.footprint(Storage())
    assert footprint.kv_bytes(10) == 10 * 4 * 256 * 2
    assert footprint.flops_per_kv_byte == 2 * 4 / 2
    all_heads = read_architecture({**SIZES, "num_key_value_heads": None}, "m")
    assert all_heads.kv_heads == 8


@pytest.mark.parametrize(
    ("storage", "weight", "value", "arithmetic"),
    [
        (Storage(), 2, 2, ("bfloat16",)),
        (Storage("float32"), 4, 4, ("float32",)),
        (Storage(quantization="int8"), 1, 2, ("bfloat16",)),
        (Storage(quantization="int8-dynamic"), 1, 2, ("int8", "bfloat16")),
        (Storage(quantization="fp8"), 1, 2, ("fp8", "bfloat16")),
        (Storage(quantization="int4"), 0.5625, 2, ("bfloat16",)),
    ],
)
def test_storage(storage: Storage, weight: float, value: int, arithmetic: tuple[str, ...]) -> None:
    assert (storage.weight_bytes, storage.value_bytes, storage.arithmetic) == (weight, value, arithmetic)
    model = read_architecture(SIZES, "m")
    assert model.held_bytes(storage) == model.parameters * weight
    assert model.footprint(storage).weight_bytes == model.pass_parameters * weight


def test_windows() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    some = read_architecture({**SIZES, "sliding_window": 100, "layer_types": kinds}, "m")
    assert (some.local_layers, some.window) == (3, 100)
    assert some.footprint(Storage()).kv_bytes(1000) == (1000 + 3 * 100) * 256 * 2
    every = read_architecture({**SIZES, "sliding_window": 100}, "m")
    assert every.footprint(Storage()).kv_bytes(1000) == 4 * 100 * 256 * 2
    unused = read_architecture({**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 4}, "m")
    assert unused.local_layers == 0


def test_a_trunk_has_the_same_width_and_windows_in_proportion() -> None:
    whole = Architecture(8, 512, 8, 2, 64, 1024, 1000, local_layers=6, window=10)
    trunk = whole.trunk(4)
    assert (trunk.layers, trunk.local_layers, trunk.hidden) == (4, 3, 512)
    assert trunk.body_parameters * 2 == whole.body_parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not counted"),
        ({"num_kv_heads": 2}, "unknown size 'num_kv_heads'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size=0 must be a whole number"),
        ({"hidden_size": "512"}, "hidden_size=512 must be a whole number"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers=1000"),
        ({"num_key_value_heads": 3}, "num_attention_heads=8 must be a multiple of num_key_value_heads=3"),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, "for each of 4 layers"),
        ({"sliding_window": 8, "layer_types": ["chunked_attention"] * 4}, "layer_types must list"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_architecture({**SIZES, **change}, "some/model")
