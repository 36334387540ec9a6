"""Invariant 8: nothing of a request that ended, failed or was cancelled stays behind; a failed step can be repeated."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.draft.model import ModelDrafter
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import audit
from tests.property.schedules import LONGEST, OTHER, Job, Schedule, engine_for, play, schedules
from tests.support import GREEDY, VOCAB, make_engine, run_all

if TYPE_CHECKING:
    from outrider.config import VerifierName
    from outrider.engine.engine import Engine

ON = replace(GREEDY, ignore_eos=True)


def assert_empty(engine: Engine) -> None:
    """Back to where a fresh engine stands."""
    audit(engine)
    assert not engine.running
    assert not engine.has_work
    assert not engine._requests
    assert not engine._done
    assert isinstance(engine.runner, ToyRunner)
    assert engine.runner.open_slots == 0


@given(schedules())
def test_invariant_8_an_engine_ends_as_it_began(schedule: Schedule) -> None:
    assert_empty(play(schedule).engine)


@given(schedules(cancels=False), st.integers(1, 12))
def test_invariant_8_also_after_a_failure(schedule: Schedule, call: int) -> None:
    undisturbed = play(replace(schedule, rule="coupled"))
    failing = play(replace(schedule, rule="coupled", fail_on_call=call))
    assert_empty(failing.engine)
    for i, job in enumerate(schedule.jobs):
        if job.params.greedy or job.params.seed is not None:
            assert failing.tokens()[i] == undisturbed.tokens()[i]


@pytest.mark.parametrize("rule", ["standard", "block"])
@given(schedule=schedules("coupled", ("none", "ngram", "same model", "other model", "random"), cancels=False))
def test_a_repeated_step_draws_the_same_again(schedule: Schedule, rule: VerifierName) -> None:
    """Noise is keyed, not streamed: a failed step uses none of it up, under any rule."""
    undisturbed = play(replace(schedule, rule=rule))
    failing = play(replace(schedule, rule=rule, fail_on_call=2))
    assert failing.failures == (len(undisturbed.traces) > 1)
    assert failing.tokens() == undisturbed.tokens()


def test_a_failing_draft_model_costs_nothing_but_the_step() -> None:
    def tokens(fail_on_call: int | None) -> tuple[int, ...]:
        draft_runner = ToyRunner(OTHER, 2, LONGEST, fail_on_call=fail_on_call)
        engine = make_engine(ModelDrafter(draft_runner, VOCAB), 3)
        request_id = engine.add([1, 2, 3], SamplingParams(seed=4, max_tokens=14))
        if fail_on_call is not None:
            with pytest.raises(RuntimeError, match="injected"):
                run_all(engine)
        return run_all(engine)[request_id].outputs[0].token_ids

    undisturbed = tokens(None)
    for call in range(1, 9):
        assert tokens(call) == undisturbed


def test_a_cancel_right_after_a_failure() -> None:
    engine = engine_for(Schedule((), "other model", (3,), fail_on_call=2))
    doomed, kept = engine.add([1, 2], ON), engine.add([3, 4], ON)
    engine.step()
    with pytest.raises(RuntimeError, match="injected"):
        engine.step()
    engine.cancel(doomed)
    outputs = run_all(engine)
    assert outputs[kept].outputs[0].token_ids == play(Schedule((Job((3, 4), ON),))).tokens()[0][0]
    assert_empty(engine)


@pytest.mark.parametrize("drafter", ["ngram", "other model"])
def test_sequences_themselves_are_let_go(drafter: str) -> None:
    engine = engine_for(Schedule((), drafter, (3,), max_num_seqs=2))
    ids = [engine.add([1, 2, i], replace(GREEDY, max_tokens=3 + 9 * (i % 2))) for i in range(5)]
    requests = [engine.request(request_id) for request_id in ids]
    alive = [weakref.ref(seq) for request in requests if request for seq in request.sequences]
    del requests
    assert len(alive) == 5
    engine.step()
    engine.cancel(ids[1])
    engine.cancel(ids[4])
    run_all(engine)
    gc.collect()
    assert [ref() for ref in alive] == [None] * 5
    assert_empty(engine)
