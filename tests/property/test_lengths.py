"""Invariants 1 and 2: after every step target and draft model hold the KV of the committed tokens but the last."""

from __future__ import annotations

import pytest
from hypothesis import given

from outrider.draft.model import ModelDrafter
from outrider.models.toy import ToyRunner
from outrider.testing import ScheduledController, audit
from tests.property.schedules import DRAFTERS, Schedule, play, schedules
from tests.support import GREEDY, MODEL, VOCAB, make_engine


@given(schedules())
def test_invariant_1_runner_length_is_committed_tokens_minus_one(schedule: Schedule) -> None:
    played = play(schedule)
    assert set(played.outputs) == set(range(len(schedule.jobs))), "every request ends"


@given(schedules(drafters=tuple(name for name in DRAFTERS if "model" in name)))
def test_invariant_2_a_draft_model_is_never_more_than_a_round_behind(schedule: Schedule) -> None:
    play(schedule)


def test_invariant_2_holds_at_budget_zero_for_many_rounds() -> None:
    draft_runner = ToyRunner(MODEL, 2, 64)
    engine = make_engine(ModelDrafter(draft_runner, VOCAB), ScheduledController([0] * 12 + [3]))
    engine.add([1, 2, 3], GREEDY)
    for _ in range(12):
        engine.step()
        (seq,) = engine.running
        assert draft_runner.length(seq.id) == len(seq.tokens) - 2, "the last round's token comes with the next sync"
    fed = len(draft_runner.calls)
    engine.step()
    assert len(draft_runner.calls[fed][0].tokens) == 2, "twelve idle rounds leave no backlog: one token and the pending"


def test_the_audit_notices_a_wrong_length() -> None:
    engine = make_engine(ModelDrafter(ToyRunner(MODEL, 2, 64), VOCAB))
    engine.add([1, 2, 3], GREEDY)
    engine.step()
    audit(engine, sync=True)
    (seq,) = engine.running
    engine.runner.commit(seq.id, len(seq.tokens) - 2)
    with pytest.raises(AssertionError, match="KV of"):
        audit(engine)


def test_the_audit_notices_leftovers() -> None:
    engine = make_engine(ModelDrafter(ToyRunner(MODEL, 2, 64), VOCAB))
    request_id = engine.add([1, 2, 3], GREEDY)
    engine.step()
    (seq,) = engine.running
    engine.drafter.close(seq.id)
    engine.drafter.open(seq)
    with pytest.raises(AssertionError, match="drafter at 0"):
        audit(engine)
    engine.cancel(request_id)
    audit(engine)
    engine.drafter.open(seq)
    with pytest.raises(AssertionError, match="still knows"):
        audit(engine)
    engine.drafter.close(seq.id)
    engine.runner.open(seq.id)
    with pytest.raises(AssertionError, match="slots open"):
        audit(engine)
