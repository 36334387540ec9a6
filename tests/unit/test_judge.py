"""A round's judgement: which rows are looked at, and by which operations."""

from __future__ import annotations

import pytest
import torch

from outrider.engine.judge import judge
from outrider.engine.sequence import Limits, Sequence
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import KeyedRandomness
from outrider.testing import ByteTokenizer
from outrider.types import Draft, Verdict
from outrider.verify import verifier_named
from tests.unit.wide_operations import WIDE, WideOperations

RULES = ["greedy", "standard", "block", "coupled"]


def sequence(rule: str, params: SamplingParams) -> Sequence:
    verifier = verifier_named(rule)
    randomness = KeyedRandomness(1, verifier.shared_noise)
    return Sequence(0, "r", 0, (65,), params, verifier, randomness, Limits(frozenset(), 100), ByteTokenizer())


class WatchedRows:
    """Rows that note which of them were asked for."""

    def __init__(self, logp_TV: torch.Tensor) -> None:
        self.logp_TV = logp_TV
        self.asked: set[int] = set()

    def __len__(self) -> int:
        return len(self.logp_TV)

    def __getitem__(self, i: int) -> torch.Tensor:
        self.asked.add(i)
        return self.logp_TV[i]


@pytest.mark.parametrize("rule", RULES)
def test_no_row_after_a_refused_token_is_looked_at(rule: str) -> None:
    certain_TV = torch.eye(3)[[0, 1, 0, 0, 0]].log()
    rows = WatchedRows(certain_TV)
    verdict = verifier_named(rule).judge(Draft((0, 0, 0, 0)), rows, KeyedRandomness(1, False).round(0))
    assert verdict == Verdict(1, 1)
    assert rows.asked == {0, 1}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.001),
        SamplingParams(min_tokens=2, stop_token_ids=[1], logprobs=3),
    ],
)
@pytest.mark.parametrize("with_q", [False, True])
def test_a_round_starts_no_threads(rule: str, params: SamplingParams, with_q: bool) -> None:
    """Threads of an operation spin after it, and would take the next forward pass's cores."""
    logits_TV = torch.randn(4, WIDE, generator=torch.Generator().manual_seed(0))
    tokens = tuple(logits_TV[:3].argmax(-1).tolist())
    draft = Draft(tokens, torch.log_softmax(logits_TV[:3] * 1.2, -1) if with_q else None)
    with WideOperations() as seen:
        assert judge(sequence(rule, params), draft, logits_TV, str) is not None
    # These keep one row on one thread, and only one row.
    assert seen.names <= {("_log_softmax", 1), ("topk", 1)}


def test_a_rule_that_only_draws_pays_for_no_softmax() -> None:
    logits_TV = torch.randn(1, WIDE, generator=torch.Generator().manual_seed(0))
    with WideOperations() as seen:
        assert judge(sequence("coupled", SamplingParams(temperature=0.8)), Draft(), logits_TV, str) is not None
    assert seen.names == set()


def test_a_nan_in_any_row_is_no_judgement() -> None:
    logits_TV = torch.zeros(3, 256)
    seq = sequence("greedy", SamplingParams(temperature=0.0))
    assert judge(seq, Draft((0, 0)), logits_TV, str) is not None
    for row in range(3):
        broken_TV = logits_TV.clone()
        broken_TV[row] = torch.nan
        assert judge(seq, Draft((0, 0)), broken_TV, str) is None
