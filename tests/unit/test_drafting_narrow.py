"""Drafts over some of the target's tokens: drawn among those few, told in the target's ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.draft.drafting import Drafting, begin
from outrider.draft.spire.drafter import SpireDrafter
from outrider.sampling.params import SamplingParams
from outrider.sampling.policy import policy
from outrider.testing import StubSequence
from outrider.types import CommittedStates
from tests.unit.spires import TINY

VOCAB = 96
IDS_W = np.flatnonzero(np.random.default_rng(3).random(VOCAB) < 0.3)
LOGITS_W = torch.randn(len(IDS_W), generator=torch.Generator().manual_seed(1)) * 1.2
EOS = frozenset({int(IDS_W[4])})
POLICIES = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.8),
    SamplingParams(temperature=1.3, top_k=5, min_p=0.01),
]


def wide(logits_W: torch.Tensor) -> torch.Tensor:
    logits_V = torch.full((VOCAB,), -torch.inf)
    logits_V[torch.from_numpy(IDS_W)] = logits_W
    return logits_V


def drafting(params: SamplingParams, round_: int, *, shared_noise: bool, narrow: bool = True) -> Drafting:
    """The first draft of a round whose committed tokens are so many."""
    sequence = StubSequence(0, [1] * (round_ + 1), params, seed=7, shared_noise=shared_noise)
    return begin(sequence, 3, EOS, VOCAB, ids_W=IDS_W if narrow else None)


@pytest.mark.parametrize("params", POLICIES)
def test_with_shared_noise_the_few_draw_what_all_would(params: SamplingParams) -> None:
    """Noise belongs to the target's ids: the target, were it sure of the same, would say the same."""
    few = [drafting(params, i, shared_noise=True).draw(LOGITS_W) for i in range(300)]
    every = [drafting(params, i, shared_noise=True, narrow=False).draw(wide(LOGITS_W)) for i in range(300)]
    assert few == every
    assert len(set(few)) > 2


@pytest.mark.parametrize("params", POLICIES)
def test_tokens_are_drawn_from_the_law_that_is_told(params: SamplingParams) -> None:
    """Pearson's statistic over 4,000 rounds: with free seeds a right drafter exceeds its bound once in 10,000 runs."""
    rounds = 4000
    rows = [drafting(params, i, shared_noise=False) for i in range(rounds)]
    drawn = [row.draw(LOGITS_W) for row in rows]
    counts_V = np.bincount([token for token in drawn if token is not None], minlength=VOCAB)
    assert counts_V.sum() == rounds
    told = rows[0].draft().logq_KV
    assert told is not None
    law_V = policy(wide(LOGITS_W)[None], params, 0, frozenset())[0]
    torch.testing.assert_close(told[0], law_V)
    expected_V = rounds * told[0].exp().numpy()
    often = expected_V >= 5
    rest = max(1e-9, expected_V[~often].sum())
    statistic = (((counts_V - expected_V) ** 2)[often] / expected_V[often]).sum()
    statistic += (counts_V[~often].sum() - rest) ** 2 / rest
    # Wilson and Hilferty's approximation of the chi-square quantile at 1 - 1e-4.
    freedom = int(often.sum())
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
    # A law that is off by a place would be noticed.
    moved_V = np.roll(expected_V, 1)[often]
    assert (((counts_V[often] - moved_V) ** 2) / np.maximum(moved_V, 1)).sum() > 10 * freedom


@pytest.mark.parametrize("shared_noise", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_holds_back_ids_and_not_places(temperature: float, shared_noise: bool) -> None:
    peak_W = torch.where(torch.from_numpy(np.isin(IDS_W, list(EOS))), 20.0, 0.0)
    free = SamplingParams(temperature=temperature, max_tokens=9)
    held = SamplingParams(temperature=temperature, max_tokens=9, min_tokens=9)
    assert {drafting(free, 3, shared_noise=shared_noise).draw(peak_W)} == EOS
    drawn = drafting(held, 0, shared_noise=shared_noise).draw(peak_W)
    assert drawn in set(IDS_W.tolist()) - EOS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["nothing allowed", "nothing possible", "not a number", "infinite"])
def test_a_row_that_leaves_nothing_ends_the_draft(kind: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits_W = LOGITS_W.clone()
    if kind == "nothing allowed":
        stops = tuple(IDS_W.tolist())
        params = SamplingParams(temperature=temperature, max_tokens=9, min_tokens=9, stop_token_ids=stops)
    elif kind == "nothing possible":
        logits_W[:] = -torch.inf
    else:
        logits_W[2] = torch.nan if kind == "not a number" else torch.inf
    row = drafting(params, 0, shared_noise=False)
    assert row.draw(logits_W) is None
    assert not row.wants_more
    assert row.draft().tokens == ()


class Sure:
    """A draft's step that gives its first token three of four parts."""

    def close(self, slot: int) -> None: ...

    def remember(self, slot: int, positions: Sequence[int], states_LND: torch.Tensor) -> None: ...

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        logits_W = torch.full((len(IDS_W),), -torch.inf)
        logits_W[:2] = torch.tensor([0.75, 0.25]).log()
        return logits_W[None].expand(len(tokens), -1)


@pytest.mark.parametrize(("floor", "drafted"), [(0.0, 4), (0.5, 2), (0.8, 0)])
def test_a_greedy_draft_ends_at_its_floor(floor: float, drafted: int) -> None:
    """Before the token with which all of it would be less likely: 0.75, 0.56, 0.42, ..."""
    config = replace(TINY, vocab_size=VOCAB, draft_vocab_size=len(IDS_W))
    drafter = SpireDrafter(
        config, Sure(), torch.from_numpy(IDS_W), max_num_seqs=1, max_model_len=64, most=4, floor=floor
    )
    sequence = StubSequence(0, [3, 1], SamplingParams(temperature=0.0))
    drafter.open(sequence)
    drafter.remember([CommittedStates(0, 0, torch.zeros(len(config.reads), 1, config.hidden_size))])
    (draft,) = drafter.propose([sequence], [4])
    assert draft.tokens == (int(IDS_W[0]),) * drafted
