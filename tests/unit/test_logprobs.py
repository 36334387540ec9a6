"""Log-probabilities of emitted tokens: the target's own, one per token, the same with and without speculation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from outrider.draft.model import ModelDrafter
from outrider.engine.logprobs import logprob_rows
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import RandomDrafter
from tests.support import GREEDY, MODEL, VOCAB, LetterTokenizer, make_engine, oracle, run_one

if TYPE_CHECKING:
    from outrider.draft.base import Drafter

PROMPT = [3, 5]
DRAFTERS: dict[str, Drafter] = {
    "oracle": oracle([*PROMPT, *MODEL.greedy(PROMPT, 40)]),
    "model": ModelDrafter(ToyRunner(ToyModel(VOCAB, 2, seed=1, scale=1.0), 2, 64), VOCAB),
    "random": RandomDrafter(VOCAB),
}


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=5, temperature=0.7, top_k=5)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("top", [0, 3, 20])
def test_equal_to_plain_one_per_emitted_token(drafter: Drafter, params: SamplingParams, top: int) -> None:
    params = replace(params, logprobs=top, max_tokens=13)
    answer = run_one(make_engine(drafter, 5), PROMPT, params).outputs[0]
    assert answer == run_one(make_engine(), PROMPT, params).outputs[0]
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids) == 13


def test_values_are_the_raw_log_softmax_of_the_target() -> None:
    params = SamplingParams(seed=5, temperature=3.0, logprobs=2, stop_token_ids=[4], max_tokens=12)
    answer = run_one(make_engine(RandomDrafter(VOCAB), 4), PROMPT, params).outputs[0]
    assert answer.logprobs is not None
    tokens, total = list(PROMPT), 0.0
    for token, row in zip(answer.token_ids, answer.logprobs, strict=True):
        logp_V = torch.log_softmax(MODEL.logits(tokens), -1)
        order = logp_V.argsort(descending=True).tolist()
        assert set(row) == {token, *order[:2]}
        for other, entry in row.items():
            assert entry.logprob == pytest.approx(float(logp_V[other]), abs=1e-6)
            assert entry.rank == order.index(other) + 1
            assert entry.decoded_token == LetterTokenizer().token_text(other)
        total += row[token].logprob
        tokens.append(token)
    assert answer.cumulative_logprob == pytest.approx(total)


def test_none_asked_for_none_given() -> None:
    answer = run_one(make_engine(RandomDrafter(VOCAB), 4), PROMPT, GREEDY).outputs[0]
    assert answer.logprobs is None
    assert answer.cumulative_logprob is None


def test_rows_of_a_cut_round_and_ties() -> None:
    logits_TV = torch.tensor([[0.0, 0.0, -1.0], [1.0, 2.0, 3.0], [9.0, 0.0, 0.0]])
    rows = logprob_rows(logits_TV, [1, 2], top=9, text_of=str)
    assert [list(row) for row in rows] == [[1, 0, 2], [2, 1, 0]], "one row a token, the token itself first"
    assert rows[0][1].rank == 1, "equals share the better rank"
    assert sum(math.exp(entry.logprob) for entry in rows[1].values()) == pytest.approx(1.0)
