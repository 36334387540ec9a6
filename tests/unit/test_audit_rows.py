"""Rows that accept rules were shown, held against plain decoding's bits: every place, every draft position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from outrider.audit.engine_sampler import EngineSampler
from outrider.audit.rows import RowCheck, check_rows
from outrider.audit.samples import Job
from outrider.audit.watch import Watch, digest
from outrider.draft.base import Drafter
from outrider.draft.ngram import NgramDrafter
from outrider.engine import judge
from outrider.models.base import Feed, Scores
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.sampling.policy import PolicyRows
from outrider.testing import RandomDrafter
from tests.support import MODEL, make_engine
from tests.unit.audits import GREEDY, QUESTIONS, VOCAB, K, WrongCommit

FILTERED = SamplingParams(temperature=0.8, top_p=0.9, top_k=7, max_tokens=24)
Change = Callable[[torch.Tensor], torch.Tensor]


def checked(drafter: Drafter, params: SamplingParams = FILTERED, runner: ToyRunner | None = None) -> RowCheck:
    """The row check of one answer to each question; a ``runner`` with a fault serves the speculative engine alone."""
    engine = make_engine(drafter, K, runner=runner or ToyRunner(MODEL, 4, 64))
    watch = Watch(0)
    with pytest.MonkeyPatch.context() as patch:
        # Requests without a seed, and yet the same answers every time: how much of them a fault spoils depends on them.
        patch.setattr("outrider.engine.engine.fresh_seed", lambda: 5)
        EngineSampler(engine, "", verifier=watch).sample([Job(question, params) for question in QUESTIONS])
    return check_rows(watch.sequences, ToyRunner(MODEL, 4, 64))


@pytest.mark.parametrize("params", [GREEDY, FILTERED, SamplingParams(seed=3, max_tokens=24)])
def test_rows_of_a_faultless_engine_have_the_same_bits(params: SamplingParams) -> None:
    check = checked(RandomDrafter(VOCAB), params)
    assert check.passed
    assert check.rows == 72, "each token's row is shown once: rows behind a refused draft are about another text"


def test_bits_are_bits() -> None:
    row_V = torch.tensor([0.1, 0.2, 0.7])
    assert digest(row_V) == digest(row_V.clone())
    assert digest(row_V) != digest(torch.nextafter(row_V, row_V + 1))


def late(row_V: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(row_V / 0.8, -1)


CHANGES: dict[str, Change] = {
    "temperature once more": late,
    "the mass that top_p took is not given back": lambda row_V: row_V - 0.1,
    "filtered once more": lambda row_V: row_V.masked_fill(row_V < row_V.max() - 1, -torch.inf).log_softmax(-1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_policy_that_differs_behind_two_drafts_is_caught(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Sampled tokens after the second are beyond the histograms, and at temperature 0 nothing differs."""

    class Policy(PolicyRows):
        def _compute(self, i: int) -> torch.Tensor:
            return change(super()._compute(i)) if i >= 2 else super()._compute(i)

    monkeypatch.setattr(judge, "PolicyRows", Policy)
    check = checked(RandomDrafter(VOCAB))
    assert 0 < check.off < check.rows
    assert not check.passed


@pytest.mark.parametrize("off", [1, -1])
def test_a_cache_that_is_off_by_one_is_caught(off: int) -> None:
    assert checked(RandomDrafter(VOCAB), runner=WrongCommit(off)).off > 36


def test_rows_of_a_neighbour_are_caught() -> None:
    class Mixed(ToyRunner):
        def score(self, feeds: list[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:  # type: ignore[override]
            first, *others = super().score(feeds, hidden, layers).logits
            like_first = [first if rows.shape == first.shape and len(rows) > 1 else rows for rows in others]
            return Scores((first, *like_first))

    assert checked(RandomDrafter(VOCAB), runner=Mixed(MODEL, 4, 64)).off > 0


def test_a_round_that_a_stop_cut_short() -> None:
    """Rows behind the last token that counts are about no text at all."""
    check = checked(
        NgramDrafter(), SamplingParams(temperature=0.0, max_tokens=24, stop_token_ids=[MODEL.greedy((7,), 3)[2]])
    )
    assert check.passed
    assert 0 < check.rows < 72
