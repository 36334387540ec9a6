"""Settings: vLLM's words are understood, and what cannot work is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.config import EngineConfig, SpeculativeConfig, check_dtype, check_quantization, parse_speculative_config
from outrider.errors import ConfigError, OutriderError


def test_the_public_argument() -> None:
    assert parse_speculative_config(None) is None
    assert parse_speculative_config("auto") == SpeculativeConfig("auto")
    assert parse_speculative_config("auto", can_roll_back=False) is None
    assert SpeculativeConfig("auto").num_speculative_tokens is None, "as many as pay"
    given = SpeculativeConfig("ngram", 2)
    assert parse_speculative_config(given) is given
    assert parse_speculative_config({"method": "ngram", "prompt_lookup_max": 4}) == SpeculativeConfig(
        "ngram", prompt_lookup_max=4
    )


def test_the_method_follows_from_the_model() -> None:
    assert SpeculativeConfig.from_dict({}).method == "ngram"
    assert SpeculativeConfig.from_dict({"model": "small"}).method == "draft_model"


def test_vllms_word_for_the_token_rule() -> None:
    assert SpeculativeConfig.from_dict({"rejection_sample_method": "standard"}).rejection_sample_method == "standard"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ngrams", "speculative_config='ngrams' is unknown; use 'auto', None "),
        (5, "speculative_config=5 is unknown"),
        ({"k": 5}, "unknown key 'k'; known keys: method, num_speculative_tokens"),
        ({"method": "eagle"}, "method='eagle' is unknown; use one of 'auto', 'ngram', 'draft_model'"),
        ({"method": ["ngram"]}, r"method=\['ngram'\] is unknown"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens=-1 must be a whole number, 0 or more"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens=True must be"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens=2.5 must be"),
        ({"num_speculative_tokens": "4"}, "num_speculative_tokens='4' must be"),
        ({"method": "auto", "model": "small"}, "model='small' means nothing with method='auto'"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_min=4 and prompt_lookup_max=3 must be"),
        ({"method": "draft_model", "model": "small", "prompt_lookup_max": 4}, "prompt_lookup_max=4 means nothing"),
        ({"dtype": "float32"}, "dtype='float32' means nothing with method='ngram'"),
        ({"quantization": "int8"}, "quantization='int8' means nothing with method='ngram'"),
        (
            {"model": "small", "quantization": "int4"},
            "speculative_config: quantization='int4' is unknown; use 'int8', ",
        ),
        ({"model": 5}, "model=5: method='draft_model' needs"),
        ({"model": {"name": "small"}}, "needs the draft's name"),
        ({"prompt_lookup_min": 0}, "1 <= min <= max"),
        ({"prompt_lookup_max": 10**9}, "1 <= min <= max <= 32"),
        ({"method": "draft_model"}, "method='draft_model' needs the draft's name"),
        ({"method": "ngram", "model": "small"}, "model='small' means nothing with method='ngram'"),
        ({"model": "small", "dtype": "int3"}, "speculative_config: dtype='int3' is not supported"),
        ({"rejection_sample_method": "typical"}, "rejection_sample_method='typical' is unknown"),
        ({"rejection_sample_method": 3}, "rejection_sample_method=3 is unknown"),
    ],
)
def test_what_cannot_work_is_named(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_speculative_config(value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, OutriderError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None])
def test_engine_sizes(name: str, value: Any) -> None:
    assert getattr(EngineConfig(**{name: 1}), name) == 1
    with pytest.raises(ConfigError, match=f"{name}={value!r} must be a whole number, 1 or more"):
        EngineConfig(**{name: value})


def test_dtypes() -> None:
    assert [check_dtype(name) for name in ("bfloat16", "float32")] == ["bfloat16", "float32"]
    with pytest.raises(ConfigError, match="dtype='float16' is not supported; use 'bfloat16' or 'float32'"):
        check_dtype("float16")


def test_quantizations() -> None:
    known = [None, "int8", "int8-dynamic", "gguf"]
    assert [check_quantization(word) for word in known] == known
    assert SpeculativeConfig.from_dict({"model": "small", "quantization": "gguf"}).quantization == "gguf"


@pytest.mark.parametrize("value", ["int4", "", True, 8, ["int8"]])
def test_what_is_no_quantization(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"quantization=.* is unknown; use 'int8', 'int8-dynamic', 'gguf' or None"):
        check_quantization(value)
