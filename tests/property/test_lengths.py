"""Invariants 1 and 2: the target holds the KV of the committed tokens but the last, and a draft model once synced."""

from __future__ import annotations

import pytest
from hypothesis import given

from outrider.draft.model import ModelDrafter
from outrider.models.base import Feed
from outrider.models.toy import ToyRunner
from outrider.testing import ScheduledController, audit
from tests.property.schedules import DRAFTERS, Schedule, play, schedules
from tests.support import GREEDY, MODEL, VOCAB, make_engine


@given(schedules())
def test_invariant_1_runner_length_is_committed_tokens_minus_one(schedule: Schedule) -> None:
    played = play(schedule)
    assert set(played.outputs) == set(range(len(schedule.jobs))), "every request ends"


@given(schedules(drafters=tuple(name for name in DRAFTERS if "model" in name)))
def test_invariant_2_a_draft_model_knows_its_kv_and_catches_up(schedule: Schedule) -> None:
    play(schedule)


def test_budget_zero_for_many_rounds_costs_a_draft_model_nothing() -> None:
    draft_runner = ToyRunner(MODEL, 2, 64)
    engine = make_engine(ModelDrafter(draft_runner, VOCAB), ScheduledController([0] * 12 + [3]))
    engine.add([1, 2, 3], GREEDY)
    for _ in range(12):
        engine.step()
    assert draft_runner.calls == []
    engine.step()
    assert [len(feed.tokens) for (feed,) in draft_runner.calls] == [3 + 12, 1, 1], "all that lacks, in one pass"


def test_the_audit_notices_a_wrong_length() -> None:
    draft_runner = ToyRunner(MODEL, 2, 64)
    engine = make_engine(ModelDrafter(draft_runner, VOCAB))
    engine.add([1, 2, 3], GREEDY)
    engine.step()
    audit(engine, sync=True)
    (seq,) = engine.running
    engine.runner.commit(seq.id, len(seq.tokens) - 2)
    with pytest.raises(AssertionError, match="KV of"):
        audit(engine)
    engine.runner.score([Feed(seq.id, (seq.tokens[-2],), 0)])
    audit(engine)
    draft_runner.commit(seq.id, 1)
    with pytest.raises(AssertionError, match="draft KV of 1 tokens"):
        audit(engine)


def test_the_audit_notices_leftovers() -> None:
    engine = make_engine(ModelDrafter(ToyRunner(MODEL, 2, 64), VOCAB))
    request_id = engine.add([1, 2, 3], GREEDY)
    engine.step()
    (seq,) = engine.running
    engine.cancel(request_id)
    audit(engine)
    engine.drafter.open(seq)
    with pytest.raises(AssertionError, match="still knows"):
        audit(engine)
    engine.drafter.close(seq.id)
    engine.runner.open(seq.id)
    with pytest.raises(AssertionError, match="slots open"):
        audit(engine)
