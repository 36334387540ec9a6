"""The decode loop as its callers see it: admission, mixed batches, cancelling, and what a step refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.config import EngineConfig
from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.errors import RequestError
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import RandomDrafter, audit
from outrider.types import FinishReason
from tests.support import GREEDY, MODEL, VOCAB, LetterTokenizer, make_engine, run_all, run_one

if TYPE_CHECKING:
    from outrider.engine.engine import Engine
    from outrider.models.base import Feed, Scores

LIMIT = 64


def draft_model(scale: float = 1.0, slots: int = 4) -> ModelDrafter:
    return ModelDrafter(ToyRunner(ToyModel(VOCAB, 2, seed=1, scale=scale), slots, LIMIT), VOCAB)


def test_a_one_token_prompt() -> None:
    for k in (0, 1, 5):
        answer = run_one(make_engine(draft_model(), k), [4], replace(GREEDY, max_tokens=9)).outputs[0]
        assert answer.token_ids == tuple(MODEL.greedy([4], 9))


def test_prompts_around_the_length_limit() -> None:
    prompt = [i % VOCAB for i in range(LIMIT + 1)]
    for k in (0, 4):
        engine = make_engine(draft_model(), k)
        answer = run_one(engine, prompt[: LIMIT - 1], GREEDY).outputs[0]
        assert answer.token_ids == tuple(MODEL.greedy(prompt[: LIMIT - 1], 1)), "room for exactly one"
        assert answer.finish_reason is FinishReason.LENGTH
    for length in (LIMIT, LIMIT + 1):
        with pytest.raises(RequestError, match=f"the prompt has {length} tokens but max_model_len is {LIMIT}"):
            engine.add(prompt[:length], GREEDY)
    assert not engine.has_work


@pytest.mark.parametrize("k", [0, 3, 8])
def test_without_max_tokens_the_slot_is_filled_to_the_last_token(k: int) -> None:
    answer = run_one(make_engine(draft_model(), k), [1, 2], replace(GREEDY, max_tokens=None)).outputs[0]
    assert answer.token_ids == tuple(MODEL.greedy([1, 2], LIMIT - 2))


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], GREEDY, "the prompt is empty"),
        ([1, VOCAB], GREEDY, f"token id {VOCAB} is outside the vocabulary of {VOCAB} tokens"),
        ([1, -1], GREEDY, "token id -1 is outside"),
        ([1], replace(GREEDY, stop_token_ids=[99]), "token id 99 is outside"),
        ([1], replace(GREEDY, min_tokens=1, stop_token_ids=range(1, VOCAB)), "min_tokens=1 leaves nothing to generate"),
    ],
)
def test_a_request_that_cannot_be_served_changes_nothing(
    prompt: list[int], params: SamplingParams, message: str
) -> None:
    engine = make_engine(tokenizer=LetterTokenizer(0))
    for _ in range(2):
        with pytest.raises(RequestError, match=message):
            engine.add(prompt, params)
    assert not engine.has_work
    assert engine.collect() == []


def test_a_cache_that_cannot_be_rolled_back_decodes_plainly() -> None:
    runner = ToyRunner(MODEL, rollback="none", name="recurrent")
    assert run_one(make_engine(runner=runner), [1], GREEDY).outputs[0].token_ids == tuple(MODEL.greedy([1], 16))


MIXED = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=3, temperature=0.7, top_k=4),
    "hot": SamplingParams(seed=9, temperature=2.0),
    "long": replace(GREEDY, max_tokens=30, stop=["ab"]),
}


def test_rows_of_a_mixed_batch_equal_their_solo_runs() -> None:
    engine = make_engine(draft_model(), 3)
    unseeded = engine.add([2], SamplingParams())
    ids = {name: engine.add([i + 1] * (3 * i + 1), params) for i, (name, params) in enumerate(MIXED.items())}
    outputs = run_all(engine)
    assert len(outputs[unseeded].outputs[0].token_ids) == 16
    for i, (name, params) in enumerate(MIXED.items()):
        alone = run_one(make_engine(draft_model(), 3), [i + 1] * (3 * i + 1), params)
        assert outputs[ids[name]].outputs == alone.outputs


def test_unseeded_requests_differ_from_one_another() -> None:
    engine = make_engine()
    ids = [engine.add([1], SamplingParams(temperature=2.0)) for _ in range(4)]
    outputs = run_all(engine)
    assert len({outputs[i].outputs[0].token_ids for i in ids}) > 1


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_answer_i_of_n_is_the_answer_to_seed_plus_i(slots: int) -> None:
    config = EngineConfig(max_num_seqs=slots, max_num_batched_tokens=3)
    output = run_one(make_engine(draft_model(), 2, config=config), [1, 2], SamplingParams(n=4, seed=2**64 - 2))
    assert [answer.index for answer in output.outputs] == [0, 1, 2, 3]
    assert len({answer.token_ids for answer in output.outputs}) == 4
    for answer, seed in zip(output.outputs, (2**64 - 2, 2**64 - 1, 0, 1), strict=True):
        alone = run_one(make_engine(), [1, 2], SamplingParams(seed=seed))
        assert answer.token_ids == alone.outputs[0].token_ids
    assert output.metrics.emitted == 4 * 16


def test_a_short_request_after_a_long_one_is_as_on_a_fresh_engine() -> None:
    for make in (lambda: NgramDrafter(1, 3), draft_model, lambda: draft_model(slots=1)):
        used = make_engine(make(), 4)
        run_one(used, [i % VOCAB for i in range(50)], replace(GREEDY, max_tokens=None))
        again, fresh = (run_one(engine, [1, 2, 1], GREEDY) for engine in (used, make_engine(make(), 4)))
        assert again.outputs == fresh.outputs
        assert again.metrics.survival == fresh.metrics.survival, "acceptance does not depend on history"


def test_cancel_at_every_step_frees_its_slot_at_once_and_no_other() -> None:
    undisturbed = run_one(make_engine(draft_model(), 2), [3, 4], GREEDY).outputs
    for step in range(12):
        engine = make_engine(draft_model(), 2, config=EngineConfig(max_num_seqs=2, max_num_batched_tokens=3))
        doomed, kept = engine.add([1, 2] * 4, GREEDY), engine.add([3, 4], GREEDY)
        for _ in range(step):
            engine.step()
        engine.cancel(doomed)
        audit(engine)
        assert all(seq.request_id != doomed for seq in engine.running)
        outputs = {output.request_id: output for output in engine.collect()} | run_all(engine)
        assert outputs[kept].outputs == undisturbed
        if outputs[doomed].outputs[0].finish_reason is FinishReason.ABORT:
            assert outputs[doomed].finished
            assert len(outputs[doomed].outputs[0].token_ids) < 16


def test_cancel_all_ends_what_runs_and_what_waits() -> None:
    engine = make_engine(draft_model(), 3, config=EngineConfig(max_num_seqs=2))
    ids = [engine.add([1, 2], replace(GREEDY, max_tokens=20)) for _ in range(4)]
    engine.step()
    engine.cancel_all()
    audit(engine)
    assert not engine.has_work
    outputs = engine.collect()
    assert [output.request_id for output in outputs] == ids
    assert {output.outputs[0].finish_reason for output in outputs} == {FinishReason.ABORT}


def test_cancelling_unknown_and_finished_ids_is_ignored() -> None:
    engine = make_engine()
    done = run_one(engine, [1], GREEDY)
    for request_id in (done.request_id, "req-99", ""):
        engine.cancel(request_id)
    waiting = engine.add([1], GREEDY)
    engine.cancel(waiting)
    engine.cancel(waiting)
    assert [output.request_id for output in engine.collect()] == [waiting]
    assert engine.request(waiting) is None


def test_a_step_without_work_does_nothing() -> None:
    trace = make_engine().step()
    assert trace.rounds == ()


class _Interrupting(ToyRunner):
    """Ctrl-C that falls right after a forward pass: the KV has grown and nobody was told."""

    interrupt_on = 0

    def score(self, feeds: list[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:  # type: ignore[override]
        scores = super().score(feeds, hidden, layers)
        if len(self.calls) == self.interrupt_on:
            raise KeyboardInterrupt
        return scores


@pytest.mark.parametrize("call", range(1, 7))
def test_an_interrupt_after_the_forward_pass_is_undone(call: int) -> None:
    def engine() -> tuple[Engine, _Interrupting]:
        runner = _Interrupting(MODEL, 4, LIMIT)
        config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=4)
        return make_engine(RandomDrafter(VOCAB), 3, runner=runner, config=config, rule="block"), runner

    params = SamplingParams(seed=1)
    prompts = ([1, 2, 3, 4, 5, 6, 7], [8, 9])
    calm, _ = engine()
    expected = [calm.add(prompt, params) for prompt in prompts]
    wanted = run_all(calm)
    broken, runner = engine()
    runner.interrupt_on = call
    ids = [broken.add(prompt, params) for prompt in prompts]
    with pytest.raises(KeyboardInterrupt):
        run_all(broken)
    outputs = run_all(broken)
    assert [outputs[i].outputs for i in ids] == [wanted[i].outputs for i in expected]
