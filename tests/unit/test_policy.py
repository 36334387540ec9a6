from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import RequestError
from outrider.sampling import policy as policy_module
from outrider.sampling.arrays import Floats
from outrider.sampling.params import SamplingParams
from outrider.sampling.policy import PolicyRows, policy, target_logprobs

NO_STOPS: frozenset[int] = frozenset()


def naive(logits: list[float], params: SamplingParams) -> np.ndarray:
    """One row by the definitions, in float64 and with full sorts: probabilities."""
    x = np.array(logits, dtype=np.float64)
    weights = np.exp((x - x.max()) / params.temperature)
    weights[weights < params.min_p * weights.max()] = 0.0
    if 0 < params.top_k < len(weights):
        weights[weights < np.sort(weights)[-params.top_k]] = 0.0
    weights /= weights.sum()
    if params.top_p < 1:
        descending = np.sort(weights)[::-1]
        last = min(int((descending.cumsum() < params.top_p).sum()), len(weights) - 1)
        weights[weights < descending[last]] = 0.0
    return np.asarray(weights / weights.sum())


def random_logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1.7, min_p=0.05),
    SamplingParams(top_k=5),
    SamplingParams(top_k=-1, top_p=0.9),
    SamplingParams(top_p=0.999),
    SamplingParams(top_p=1e-6),
    SamplingParams(temperature=0.8, min_p=0.01, top_k=20, top_p=0.7),
]


@pytest.mark.parametrize("params", FILTERS)
@pytest.mark.parametrize(("vocab_size", "scale"), [(3, 1.0), (40, 3.0), (3000, 3.0), (3000, 0.01)])
def test_equals_the_definitions(params: SamplingParams, vocab_size: int, scale: float) -> None:
    logits_TV = random_logits(3, vocab_size, scale=scale)
    p_TV = policy(logits_TV, params, 0, NO_STOPS).double().exp().numpy()
    for p_V, logits_V in zip(p_TV, logits_TV.tolist(), strict=True):
        np.testing.assert_allclose(p_V, naive(logits_V, params), rtol=2e-5, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    vocab_size=st.integers(2, 700),
    seed=st.integers(0, 2**31),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1e-3, 0.7, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 40]),
        top_p=st.sampled_from([0.3, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05]),
        min_tokens=st.integers(0, 5),
    ),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_row_has_the_same_bits_alone_and_among_others(
    rows: int, vocab_size: int, seed: int, params: SamplingParams, dtype: torch.dtype
) -> None:
    logits_TV = random_logits(rows, vocab_size, seed).to(dtype)
    stops = frozenset({0})
    for form_TV in (logits_TV, logits_TV.T.contiguous().T):
        together_TV = policy(form_TV, params, 2, stops)
        reported_TV = target_logprobs(form_TV)
        for i in range(rows):
            assert torch.equal(together_TV[i], policy(logits_TV[i : i + 1], params, 2 + i, stops)[0])
            assert torch.equal(reported_TV[i], target_logprobs(logits_TV[i : i + 1].clone())[0])


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.7, top_k=50, top_p=0.9)])
def test_rows_of_a_real_vocabulary_have_the_same_bits_too(params: SamplingParams) -> None:
    logits_TV = random_logits(6, 49152)
    together_TV = policy(logits_TV, params, 0, NO_STOPS)
    for i in range(6):
        assert torch.equal(together_TV[i : i + 1], policy(logits_TV[i : i + 1], params, 0, NO_STOPS))


def test_a_row_is_made_when_it_is_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []

    def noted(logits_V: Floats, params: SamplingParams) -> Floats:
        made.append(logits_V[0])
        return log_weights(logits_V, params)

    log_weights = policy_module._log_weights
    monkeypatch.setattr(policy_module, "_log_weights", noted)
    logits_TV = random_logits(4, 30)
    rows = PolicyRows(logits_TV.numpy(), FILTERS[-1], 0, NO_STOPS)
    assert len(rows) == 4
    assert made == []
    asked = [rows[2], rows[0], rows[2]]
    assert made == [logits_TV[2, 0], logits_TV[0, 0]]
    assert torch.equal(torch.stack(asked), policy(logits_TV, FILTERS[-1], 0, NO_STOPS)[[2, 0, 2]])


@pytest.mark.parametrize("params", FILTERS)
def test_rows_that_are_not_normalised_have_the_same_law(params: SamplingParams) -> None:
    logits_TV = random_logits(5, 3000)
    rows = PolicyRows(logits_TV.numpy(), params, 0, NO_STOPS, normalised=False)
    for row, logp_V in enumerate(policy(logits_TV, params, 0, NO_STOPS)):
        torch.testing.assert_close(torch.softmax(rows[row].double(), -1), logp_V.double().exp(), rtol=1e-5, atol=0)


def test_stop_tokens_are_impossible_in_the_rows_before_min_tokens() -> None:
    logits_TV = random_logits(4, 6)
    params = SamplingParams(min_tokens=5)
    logp_TV = policy(logits_TV, params, 3, frozenset({1, 4, 99}))
    assert logp_TV.isneginf().nonzero().tolist() == [[0, 1], [0, 4], [1, 1], [1, 4]]
    torch.testing.assert_close(logp_TV.exp().sum(-1), torch.ones(4))
    assert not policy(logits_TV, params, 5, frozenset({1, 4})).isneginf().any()


def test_min_tokens_comes_before_the_filters_and_holds_for_greedy() -> None:
    logits_TV = torch.tensor([[5.0, 1.0, 0.0]])
    held = SamplingParams(min_tokens=1, top_k=1)
    assert policy(logits_TV, held, 0, frozenset({0})).tolist() == [[-math.inf, 0.0, -math.inf]]
    greedy = SamplingParams(min_tokens=1, temperature=0)
    assert policy(logits_TV, greedy, 0, frozenset({0})).tolist() == [[-math.inf, 1.0, 0.0]]


def test_min_tokens_with_nothing_but_stop_tokens_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="all 3"):
        policy(torch.zeros(1, 3), SamplingParams(min_tokens=1), 0, frozenset({0, 1, 2}))


def test_greedy_keeps_the_logits_as_they_are_and_ignores_the_filters() -> None:
    logits_TV = random_logits(2, 9)
    params = SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=0.9)
    assert torch.equal(policy(logits_TV, params, 0, NO_STOPS), logits_TV)


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-40, 5e-324])
def test_tiny_temperatures_leave_the_maxima(temperature: float) -> None:
    logits_TV = torch.tensor([[1e4, 3.0, 1e4], [-1e30, -2e30, 0.0]])
    logp_TV = policy(logits_TV, SamplingParams(temperature=temperature, top_p=0.9), 0, NO_STOPS)
    torch.testing.assert_close(logp_TV.exp(), torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]]))


@pytest.mark.parametrize("params", [SamplingParams(top_k=2), SamplingParams(top_p=0.6), SamplingParams(min_p=0.4)])
def test_tokens_equal_to_the_last_kept_are_kept(params: SamplingParams) -> None:
    logits_TV = torch.tensor([[2.0, 1.0, 3.0, 2.0]]).mul(0.9)
    assert policy(logits_TV, params, 0, NO_STOPS).isneginf().tolist() == [[False, True, False, False]]


@pytest.mark.parametrize("params", [SamplingParams(top_p=1e-9), SamplingParams(min_p=1), SamplingParams(top_k=1)])
def test_at_least_one_token_is_kept(params: SamplingParams) -> None:
    logp_TV = policy(random_logits(5, 50), params, 0, NO_STOPS)
    assert logp_TV.isfinite().sum(-1).tolist() == [1] * 5


def test_top_k_beyond_the_vocabulary_keeps_all_of_it() -> None:
    logits_TV = random_logits(2, 7)
    all_TV = policy(logits_TV, SamplingParams(), 0, NO_STOPS)
    assert torch.equal(policy(logits_TV, SamplingParams(top_k=10**9), 0, NO_STOPS), all_TV)


def test_top_p_just_below_one_survives_rounding() -> None:
    logp_TV = policy(random_logits(2, 5000, scale=0.1), SamplingParams(top_p=1 - 1e-15), 0, NO_STOPS)
    assert logp_TV.isfinite().all()


def test_the_callers_logits_are_left_alone() -> None:
    logits_TV = random_logits(3, 20)
    before_TV = logits_TV.clone()
    for params in (*FILTERS, SamplingParams(temperature=0, min_tokens=3)):
        policy(logits_TV, params, 0, frozenset({2}))
    target_logprobs(logits_TV)
    assert torch.equal(logits_TV, before_TV)


def test_no_rows_is_fine() -> None:
    assert policy(torch.empty(0, 5), FILTERS[-1], 0, NO_STOPS).shape == (0, 5)


def test_target_logprobs_know_no_policy() -> None:
    logits_TV = random_logits(2, 30).bfloat16()
    logp_TV = target_logprobs(logits_TV)
    assert logp_TV.dtype == torch.float32
    torch.testing.assert_close(logp_TV.double(), torch.log_softmax(logits_TV.double(), -1), rtol=1e-5, atol=1e-5)
