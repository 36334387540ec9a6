"""Audits of engines that choose their draft lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.audit.text import paragraph, table
from outrider.control.goodput import GoodputController
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import RandomDrafter
from tests.support import MODEL, VOCAB, SteadyCost, make_engine
from tests.unit.audits import GREEDY, QUESTIONS, SAMPLED, K, WrongCommit, make_audit

SAMPLES = 400


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.audit.run.ROUNDS", 6)


def test_the_whole_audit_of_a_controller_that_chooses_passes() -> None:
    """Its choices come of what was kept before, and of how long it took."""
    # Rows that cost next to nothing, so that even random drafts pay.
    controller = GoodputController(SteadyCost({1: 1.0, 5: 1.001}), most=K)
    chooses = make_engine(RandomDrafter(VOCAB), controller, runner=ToyRunner(MODEL, 4, 64), rule="block")
    report = replace(make_audit(RandomDrafter(VOCAB), rule="block"), speculative=chooses).run(
        QUESTIONS, SAMPLED, SAMPLES
    )
    assert report.failed == ()
    assert report.distribution is not None
    assert report.distribution.judged.second > SAMPLES, "it chose to draft"
    assert report.control is not None
    assert report.control.caught, "a bias under the same choices is seen"
    assert report.draws is not None
    assert report.draws.tests["acceptances"].count > SAMPLES


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
def test_tokens_under_lengths_that_are_chosen(params: SamplingParams) -> None:
    choosing = make_engine(RandomDrafter(VOCAB), GoodputController(most=K), runner=ToyRunner(MODEL, 4, 64))
    audit = replace(make_audit(RandomDrafter(VOCAB)), choosing=choosing)
    found = audit.chosen(QUESTIONS, params)
    assert found is not None
    assert found.passed
    assert found.judged
    assert make_audit(RandomDrafter(VOCAB)).chosen(QUESTIONS, GREEDY) is None


def test_a_fault_that_only_chosen_lengths_meet_fails_the_audit() -> None:
    choosing = make_engine(RandomDrafter(VOCAB), GoodputController(most=K), runner=WrongCommit(1))
    report = replace(make_audit(RandomDrafter(VOCAB)), choosing=choosing).run(QUESTIONS, GREEDY, SAMPLES)
    assert report.failed == ("chosen",)
    assert "FAILED: lengths chosen." in paragraph(report)
    assert "With draft lengths of the engine's choice" in paragraph(report)
    assert "lengths chosen" in table(report)
    assert "fault" in table(report)
