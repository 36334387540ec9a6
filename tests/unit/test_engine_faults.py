"""What fails, fails alone: after an error anywhere in a step, everything else goes on as if it had not been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from outrider.engine.sequence import Sequence as EngineSequence
from outrider.models.base import Feed, Scores
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import RandomDrafter, ScheduledController, audit
from outrider.types import FinishReason, RequestState, StepTrace
from tests.support import GREEDY, MODEL, VOCAB, make_engine, run_all, run_one

SEEDED = SamplingParams(seed=5, max_tokens=12, logprobs=1)


class CtrlCError(Exception):
    """Stands for Ctrl-C at a chosen place."""


def test_a_slot_that_cannot_be_opened_leaves_the_request_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(RandomDrafter(VOCAB))
    first = engine.add([1, 2], GREEDY)
    opened = engine.runner.open

    def fail(sequence_id: int) -> None:
        opened(sequence_id)
        raise MemoryError("no slot")

    monkeypatch.setattr(engine.runner, "open", fail)
    with pytest.raises(MemoryError):
        engine.step()
    audit(engine)
    assert engine.running == ()
    monkeypatch.undo()
    assert run_all(engine)[first].outputs[0].token_ids == tuple(MODEL.greedy([1, 2], 16))


def test_a_drafter_that_cannot_take_a_sequence_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(RandomDrafter(VOCAB))
    engine.add([1, 2], GREEDY)

    def fail(sequence: RequestState) -> None:
        raise CtrlCError

    monkeypatch.setattr(engine.drafter, "open", fail)
    with pytest.raises(CtrlCError):
        engine.step()
    monkeypatch.undo()
    audit(engine)
    assert len(run_all(engine)) == 1


@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_cache_that_cannot_be_cut_is_filled_again(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ToyRunner(MODEL, max_num_seqs=4, max_model_len=64, rollback="none")
    engine = make_engine(runner=runner, k=0)
    request = engine.add([1, 2, 3], SEEDED)
    for _ in range(call):
        engine.step()

    def fail(*_: object) -> None:
        raise CtrlCError

    monkeypatch.setattr("outrider.engine.engine.judge", fail)
    with pytest.raises(CtrlCError):
        engine.step()
    monkeypatch.undo()
    got = run_all(engine)[request].outputs[0]
    assert got == run_one(make_engine(k=0), [1, 2, 3], SEEDED).outputs[0]


@pytest.mark.parametrize("after", range(1, 9))
def test_an_interrupted_commit_loses_no_token_and_no_count(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(RandomDrafter(VOCAB), k=3)
    requests = [engine.add([1, 2, i], SEEDED) for i in range(3)]
    calls = 0
    append = EngineSequence.append

    def interrupted(self: EngineSequence, *args: object) -> int:
        nonlocal calls
        calls += 1
        if calls == after:
            raise CtrlCError
        return append(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineSequence, "append", interrupted)
    with pytest.raises(CtrlCError):
        while engine.has_work:
            engine.step()
    outputs = run_all(engine)
    for i, request in enumerate(requests):
        solo = run_one(make_engine(k=0), [1, 2, i], SEEDED)
        assert outputs[request].outputs == solo.outputs
        assert outputs[request].metrics.emitted == len(solo.outputs[0].token_ids)


def test_an_interrupt_after_the_append_ends_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(RandomDrafter(VOCAB), k=3)
    requests = [engine.add([1, 2, i], SEEDED) for i in range(3)]
    commit = engine.runner.commit

    def interrupted(sequence_id: int, length: int) -> None:
        if any(sequence.finished for sequence in engine.running):
            raise CtrlCError
        commit(sequence_id, length)

    monkeypatch.setattr(engine.runner, "commit", interrupted)
    with pytest.raises(CtrlCError):
        while engine.has_work:
            engine.step()
    monkeypatch.undo()
    # One more request keeps the engine at work even if the interrupt came with the last sequence's end.
    engine.add([3], GREEDY)
    outputs = {output.request_id: output for output in engine.collect()} | run_all(engine)
    for i, request in enumerate(requests):
        solo = run_one(make_engine(k=0), [1, 2, i], SEEDED)
        assert outputs[request].outputs == solo.outputs
        assert outputs[request].metrics.emitted == len(solo.outputs[0].token_ids)


class _Poisoned(ToyRunner):
    """Gives NaN for the sequence of id 1 from its third answer token on."""

    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        scores = super().score(feeds, hidden, layers)
        rows = [
            torch.full_like(logits, torch.nan) if feed.sequence_id == 1 and self.length(1) > 4 else logits
            for feed, logits in zip(feeds, scores.logits, strict=True)
        ]
        return Scores(tuple(rows))


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("rollback", ["truncate", "none"])
def test_nan_ends_its_own_request_only(params: SamplingParams, rollback: str) -> None:
    runner = _Poisoned(MODEL, max_num_seqs=4, max_model_len=64, rollback=rollback)  # type: ignore[arg-type]
    engine = make_engine(runner=runner, k=0)
    requests = [engine.add([1, 2], params) for _ in range(3)]
    outputs = run_all(engine)
    poisoned = outputs[requests[1]].outputs[0]
    assert (poisoned.finish_reason, poisoned.stop_reason) == (FinishReason.ABORT, "the model gave NaN logits")
    solo = run_one(make_engine(k=0), [1, 2], params).outputs[0]
    assert outputs[requests[0]].outputs[0] == outputs[requests[2]].outputs[0] == solo
    assert poisoned.token_ids == solo.token_ids[: len(poisoned.token_ids)]
    assert len(poisoned.token_ids) == 3


def test_collect_leaves_what_was_not_asked_for() -> None:
    engine = make_engine()
    mine, other = engine.add([1], GREEDY), engine.add([2], GREEDY)
    while engine.has_work:
        engine.step()
    assert [output.request_id for output in engine.collect([mine])] == [mine]
    assert [output.request_id for output in engine.collect()] == [other]
    assert engine.collect() == []


def test_prompt_chunks_are_part_of_a_requests_time() -> None:
    from outrider.config import EngineConfig

    engine = make_engine(config=EngineConfig(max_num_seqs=2, max_num_batched_tokens=4))
    request = engine.add([1] * 20, GREEDY)
    spent = 0.0
    while engine.has_work:
        spent += engine.step().seconds.total
    assert engine.collect([request])[0].metrics.seconds.total == pytest.approx(spent)


SHORT = 3
"""Tokens of the request that ends first."""


class Forgetful(RandomDrafter):
    """Reads states, and is interrupted when it is handed those of a round in which a sequence ended."""

    layers = (0,)
    fails = False

    def close(self, sequence_id: int) -> None:
        self.fails = True

    def remember(self, committed: object) -> None:
        if self.fails:
            self.fails = False
            raise CtrlCError


class Unlucky(ScheduledController):
    """Is interrupted while it learns from the step in which the first sequence ended."""

    fails = True

    def observe(self, trace: StepTrace) -> None:
        super().observe(trace)
        emitted = sum(each.emitted for step in self.traces for each in step.rounds if each.sequence_id == 0)
        if self.fails and emitted == SHORT:
            self.fails = False
            raise CtrlCError


@pytest.mark.parametrize("where", ["remember", "observe"])
def test_an_interrupt_after_the_commit_keeps_what_has_ended(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request still gets its output, those that ended in that very step among them."""
    drafter: Any = Forgetful(VOCAB) if where == "remember" else RandomDrafter(VOCAB)
    engine = make_engine(drafter, Unlucky([3]) if where == "observe" else 3)
    score = engine.runner.score

    def with_states(feeds: Any, hidden: bool = False, layers: Any = ()) -> Scores:
        # Toy models have no states; what is handed on does not matter here.
        return replace(score(feeds, hidden), states=tuple(torch.zeros(1, len(feed.tokens), 1) for feed in feeds))

    monkeypatch.setattr(engine.runner, "score", with_states)
    params = [replace(SEEDED, max_tokens=n, ignore_eos=True) for n in (SHORT, 9)]
    requests = [engine.add([1, 2, i], each) for i, each in enumerate(params)]
    outputs: dict[str, Any] = {}
    interrupts = 0
    for _ in range(60):
        try:
            engine.step()
        except CtrlCError:
            interrupts += 1
        outputs |= {output.request_id: output for output in engine.collect()}
    assert interrupts
    assert engine._requests == {}
    for i, (request, each) in enumerate(zip(requests, params, strict=True)):
        assert outputs[request].outputs == run_one(make_engine(k=0), [1, 2, i], each).outputs
