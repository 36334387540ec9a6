"""The demo models read as Transformers itself reads them: configuration, every weight, the tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.models.checkpoint import read_config, read_tensors
from outrider.models.pull import is_pulled
from outrider.models.quiet import quiet_transformers
from outrider.models.registry import DEMO_MODELS
from outrider.models.resolve import ModelFiles, resolve
from outrider.models.tokenizer import load_tokenizer

# What Transformers records of the file and of how it was loaded, and a token that no model code reads.
NOT_COMPARED = {
    "_name_or_path",
    "_model_name_or_path",
    "architectures",
    "dtype",
    "quantization_config",
    "unk_token_id",
}


@pytest.fixture(scope="module", params=sorted(DEMO_MODELS))
def files(request: pytest.FixtureRequest) -> ModelFiles:
    if not is_pulled(DEMO_MODELS[request.param]):
        pytest.skip(f"run `outrider pull {request.param}` first")
    return resolve(request.param)


@pytest.fixture(scope="module")
def reference(files: ModelFiles) -> Any:
    """Transformers' model of the same file, unpacked to float32."""
    from transformers import AutoModelForCausalLM, GgufConfig

    assert files.gguf is not None
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(
            files.folder,
            gguf_file=files.gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )


@pytest.mark.weights
def test_every_weight_equals_transformers_own(files: ModelFiles, reference: Any) -> None:
    expected = reference.state_dict()
    # tied to the embedding, so it is no tensor of the file
    assert expected.pop("lm_head.weight").data_ptr() == expected["model.embed_tokens.weight"].data_ptr()
    seen = set()
    for name, tensor in read_tensors(files, torch.float32):
        assert tensor.shape == expected[name].shape, name
        assert torch.equal(tensor, expected[name]), name
        seen.add(name)
    assert seen == set(expected)


@pytest.mark.weights
def test_bfloat16_is_the_rounded_float32(files: ModelFiles, reference: Any) -> None:
    exact = reference.state_dict()
    for name, tensor in read_tensors(files, torch.bfloat16):
        assert torch.equal(tensor, exact[name].to(torch.bfloat16)), name


@pytest.mark.weights
def test_configuration_equals_transformers_own(files: ModelFiles, reference: Any) -> None:
    ours, theirs = read_config(files), reference.config
    assert type(ours) is type(theirs)
    assert {k: v for k, v in ours.to_dict().items() if k not in NOT_COMPARED} == {
        k: v for k, v in theirs.to_dict().items() if k not in NOT_COMPARED
    }


@pytest.mark.weights
@pytest.mark.parametrize("text", ["def fib(n):", "  two  spaces\n\n\ttab", "it's 12345 km", "naïve 🙂 日本語", " "])
def test_text_survives_a_round_trip(files: ModelFiles, text: str) -> None:
    tokenizer = load_tokenizer(files)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.weights
def test_demo_tokenizers_differ_and_say_where(files: ModelFiles) -> None:
    tokenizer = load_tokenizer(files)
    other = load_tokenizer(resolve(next(name for name in sorted(DEMO_MODELS) if name != files.name)))
    assert tokenizer.same_vocabulary(tokenizer) is None
    message = tokenizer.same_vocabulary(other)
    assert message is not None
    assert message.startswith("id 0 is ")
