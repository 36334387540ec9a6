"""Audits of engines that choose their draft lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from outrider.audit.run import EngineAudit
from outrider.audit.text import paragraph, table
from outrider.control.goodput import GoodputController
from outrider.draft.model import ModelDrafter
from outrider.models.base import Capabilities
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import RandomDrafter
from tests.support import MODEL, VOCAB, SteadyCost, make_engine
from tests.unit.audits import GREEDY, QUESTIONS, SAMPLED, K, WrongCommit, make_audit

if TYPE_CHECKING:
    from outrider.draft.base import Drafter
    from outrider.models.base import Feed

SAMPLES = 400


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.audit.run.ROUNDS", 6)


def choosing_audit(
    drafter: Drafter, runner: ToyRunner | None = None, *, row: float = 0.0003, most: int = K
) -> EngineAudit:
    """Of an engine to which a row more costs so much of a step: next to nothing, so that even random drafts pay."""
    engine = make_engine(
        drafter,
        GoodputController(SteadyCost({1: 1.0, 11: 1.0 + 10 * row}), most=most),
        runner=runner or ToyRunner(MODEL, 4, 64),
    )
    return replace(make_audit(drafter, runner=runner), speculative=engine, chooses=True)


def test_the_whole_audit_of_a_controller_that_chooses_passes() -> None:
    """Its choices come of what was kept before, and of how long it took."""
    audit = replace(choosing_audit(RandomDrafter(VOCAB)), chooses=False)
    # Without a seed the rule is that of blocks.
    report = audit.run(QUESTIONS, replace(SAMPLED, seed=None), SAMPLES)
    assert report.failed == ()
    assert report.distribution is not None
    assert report.distribution.judged.second > SAMPLES, "it chose to draft"
    assert report.control is not None
    assert report.control.caught, "a bias under the same choices is seen"
    assert report.draws is not None
    assert report.draws.tests["acceptances"].count > SAMPLES


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
def test_tokens_under_lengths_that_are_chosen(params: SamplingParams) -> None:
    found = choosing_audit(RandomDrafter(VOCAB)).chosen(QUESTIONS, params)
    assert found is not None
    assert found.passed
    assert found.judged
    assert (found.noise is None) == (params is SAMPLED), "sampled tokens have no near-ties to be explained"
    assert make_audit(RandomDrafter(VOCAB)).chosen(QUESTIONS, GREEDY) is None


def test_a_fault_that_only_chosen_lengths_meet_fails_the_audit() -> None:
    audit = choosing_audit(RandomDrafter(VOCAB), WrongCommit(1))
    # What drafts a fixed length keeps nothing of any draft, and so never rolls back.
    report = replace(audit, k=0).run(QUESTIONS, GREEDY, SAMPLES)
    assert "chosen" in report.failed
    assert "greedy" not in report.failed
    assert "lengths chosen" in paragraph(report)
    assert "of them as faults" in paragraph(report)
    assert "lengths chosen" in table(report)


class WideNoise(ToyRunner):
    """Another kernel for eight rows and more, which promises nothing."""

    def __init__(self) -> None:
        super().__init__(MODEL, 4, 64)
        self.capabilities = Capabilities(deterministic_shape=False)

    def _rows(self, feed: Feed) -> torch.Tensor:
        logits_TV = super()._rows(feed).clone()
        if feed.rows >= 8:
            logits_TV[:, ::2] += 0.5
        return logits_TV


def test_noise_is_measured_in_passes_as_wide_as_those_that_are_chosen() -> None:
    """They are wider than those of the fixed length; what they round differently is no fault."""
    drafter = ModelDrafter(ToyRunner(MODEL, 4, 64), VOCAB)
    audit = replace(choosing_audit(drafter, WideNoise(), most=12), plain=make_engine(runner=WideNoise()))
    found = audit.chosen(QUESTIONS, GREEDY)
    assert found is not None
    assert found.passed
    assert found.divergences
    assert found.noise is not None
    assert found.noise.largest == pytest.approx(0.5)


def test_an_engine_that_chooses_to_draft_nothing_is_said_to_show_nothing() -> None:
    """Not a fault: its drafts may not pay here. Nor a proof."""
    report = choosing_audit(RandomDrafter(VOCAB), row=90.0).run(QUESTIONS, GREEDY, SAMPLES)
    assert report.chosen is not None
    assert report.chosen.judged == 0
    assert "chosen" not in report.failed
    assert "the engine drafted nothing, so of these nothing was shown" in paragraph(report)
