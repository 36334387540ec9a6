from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.sampling.params import SamplingParams


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_k, params.top_p, params.min_p) == (1, 1.0, 0, 1.0, 0.0)
    assert (params.seed, params.max_tokens, params.min_tokens) == (None, 16, 0)
    assert (params.stop, params.stop_token_ids, params.ignore_eos, params.logprobs) == ((), (), False, None)


def test_stop_values_become_tuples_and_the_value_is_hashable() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[3, 4])
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (3, 4))
    assert SamplingParams.from_dict({"stop": None, "stop_token_ids": None}) == SamplingParams()
    assert hash(params) == hash(SamplingParams(stop=("a", "b"), stop_token_ids=(3, 4)))


def test_only_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-9).greedy


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": -1},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"min_p": 0},
        {"min_p": 1},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"max_tokens": None, "min_tokens": 10**6},
        {"max_tokens": 5, "min_tokens": 5},
        {"logprobs": 0},
        {"logprobs": 20},
        {"temperature": 2},
    ],
)
def test_values_at_the_limits_are_taken(values: dict[str, Any]) -> None:
    assert SamplingParams.from_dict(values) == SamplingParams(**values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("n", value) for value in (0, True, 1.0)],
        *[("temperature", value) for value in (-0.1, float("nan"), float("inf"), "1", True)],
        *[("top_k", value) for value in (-2, 1.5, False)],
        *[("top_p", value) for value in (0, 1.1, float("nan"), None)],
        *[("min_p", value) for value in (-0.1, 1.1, "0.5")],
        *[("seed", value) for value in (-1, 2**64, 1.0, True)],
        *[("max_tokens", value) for value in (0, -1, 2.5)],
        *[("min_tokens", value) for value in (-1, 17, None)],
        *[("stop", value) for value in ("", ["a", ""], [1], 3, b"end")],
        *[("stop_token_ids", value) for value in ([-1], ["1"], [True], 7)],
        *[("ignore_eos", value) for value in (1, "yes", None)],
        *[("logprobs", value) for value in (-1, 21, True)],
    ],
)
def test_values_that_cannot_work_are_refused_by_name_and_value(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams.from_dict({name: value})
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["repetition_penalty", "logit_bias", "structured_outputs", "prompt_logprobs"])
def test_parameters_to_come_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*not supported yet"):
        SamplingParams.from_dict({name: 1})
    with pytest.raises(ConfigError, match=f"{name}.*not supported yet"):
        SamplingParams(**{name: 1})  # type: ignore[arg-type]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'temprature'.*temperature, top_k"):
        SamplingParams.from_dict({"temprature": 1})
    with pytest.raises(ConfigError, match=r"'temprature'.*temperature, top_k"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]


def test_is_a_frozen_value_that_replace_checks_again() -> None:
    params = SamplingParams(seed=3)
    with pytest.raises(FrozenInstanceError):
        params.seed = 4  # type: ignore[misc]
    assert replace(params, seed=4).seed == 4
    with pytest.raises(ConfigError):
        replace(params, seed=-4)


def test_importing_it_leaves_torch_alone() -> None:
    code = "import sys, outrider.sampling.params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
