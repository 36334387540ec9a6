"""Drafting starts no threads of torch's: they would spin on the cores that the next target pass needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from outrider.draft.spire.drafter import SpireDrafter
from outrider.sampling.params import SamplingParams
from outrider.testing import StubSequence
from outrider.types import CommittedStates
from tests.unit.spires import TINY
from tests.unit.wide_operations import WIDE, WideOperations

KNOWN = WIDE + 7


class Scripted:
    """A draft's step with logits of its own, for a vocabulary that threads would share."""

    def close(self, slot: int) -> None: ...

    def remember(self, slot: int, positions: Sequence[int], states_LND: torch.Tensor) -> None: ...

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        return self.logits_BV[: len(tokens)]

    logits_BV = torch.randn(1, KNOWN, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shared_noise", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.001),
    ],
)
def test_a_draft_starts_no_threads(params: SamplingParams, shared_noise: bool) -> None:
    """Neither asking whether to go on, nor drawing, nor handing over the laws."""
    config = replace(TINY, vocab_size=2 * WIDE, draft_vocab_size=KNOWN)
    ids = torch.arange(KNOWN)
    drafter = SpireDrafter(config, Scripted(), ids, max_num_seqs=1, max_model_len=64, most=4, floor=1e-30)
    sequence = StubSequence(0, [3, 1], params, seed=1, shared_noise=shared_noise)
    drafter.open(sequence)
    drafter.remember([CommittedStates(0, 0, torch.zeros(len(config.reads), 1, config.hidden_size))])
    with WideOperations() as seen:
        (draft,) = drafter.propose([sequence], [4])
    assert len(draft.tokens) == 4
    assert (draft.logq_KV is None) == (params.greedy or shared_noise)
    # These keep one row on one thread, and only one row.
    assert seen.names <= {("_log_softmax", 1), ("topk", 1)}
