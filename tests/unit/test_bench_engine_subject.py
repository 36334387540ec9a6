"""An LLM as something to measure: when its tokens came, on a clock that only the script moves, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from outrider.bench.engine_subject import EngineSubject
from outrider.bench.record import Acceptance, Answer, Settings, Task
from outrider.bench.subject import Interrupted, Request
from outrider.llm import LLM
from outrider.models.base import Scores
from outrider.models.decoder_native import NativeForward
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import audit
from outrider.types import PhaseSeconds
from tests.fake_model import LIMIT, FakeModels, fake_models
from tests.unit.decoders import families, load, on, random_weights
from tests.unit.scripted_bench import GREEDY, PER_PROMPT_TOKEN, PLAIN, WIDE, FakeClock, completions, toy_llm

if TYPE_CHECKING:
    from outrider.models.base import Feed

DRAFT_MODEL = {"method": "draft_model", "model": "toy-draft", "num_speculative_tokens": 3}
TASK = Task("t/0", "c", "0 of task 000", chat=False)
READING = PER_PROMPT_TOKEN * (len(TASK.prompt) - 1)


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    return fake_models(monkeypatch)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def subject(llm: LLM, clock: FakeClock) -> EngineSubject:
    return EngineSubject("s", llm, clock=clock, sleep=clock.sleep)


def assert_idle(llm: LLM) -> None:
    audit(llm.engine)
    assert not llm.engine.has_work
    assert llm.engine.collect() == []
    assert isinstance(llm.loaded.runner, ToyRunner)
    assert llm.loaded.runner.open_slots == 0


def seconds(answer: Answer) -> list[float]:
    return [arrival.seconds for arrival in answer.arrivals]


# Of fixed draft length: what a controller chooses depends on the clock, and figures could not be compared.
@pytest.mark.parametrize("speculation", [None, {"method": "ngram", "num_speculative_tokens": 5}, DRAFT_MODEL])
@pytest.mark.parametrize("settings", [Settings(max_tokens=20), Settings(temperature=1.0, max_tokens=20)])
def test_answers_are_what_generate_says(speculation: Any, settings: Settings) -> None:
    llm = LLM("toy", speculative_config=speculation)
    tasks = [Task("a", "c", "once upon"), Task("b", "c", "a", chat=False, max_tokens=3)]
    answers = EngineSubject("s", llm).serve([Request(task, seed=5) for task in tasks], settings)
    params = [SamplingParams(temperature=settings.temperature, max_tokens=n, seed=5) for n in (20, 3)]
    prompts = [llm.chat_tokens([{"role": "user", "content": "once upon"}]), [*b"a"]]
    for answer, output in zip(answers, llm.generate(prompts, params), strict=True):
        (wanted,) = output.outputs
        assert (answer.text, answer.token_ids, answer.finish_reason) == (
            wanted.text,
            wanted.token_ids,
            wanted.finish_reason,
        )
        assert answer.tokens == len(wanted.token_ids)
        assert answer.prompt_tokens == len(output.prompt_token_ids)
        metrics, acceptance = output.metrics, answer.acceptance
        assert acceptance is not None
        assert (acceptance.rounds, acceptance.drafted, acceptance.accepted, acceptance.survival) == (
            metrics.rounds,
            metrics.drafted,
            metrics.accepted,
            metrics.survival,
        )
    assert_idle(llm)


def test_a_rounds_tokens_arrive_together_when_its_step_ends(models: FakeModels, clock: FakeClock) -> None:
    (task,) = completions(2)
    settings = Settings(max_tokens=7, ignore_eos=True)
    (answer,) = subject(toy_llm(models, clock, k=4), clock).serve([Request(task)], settings)
    # Rounds of 2 kept + 1; the last has room for one token and drafts nothing.
    assert [arrival.tokens for arrival in answer.arrivals] == [3, 3, 1]
    assert seconds(answer) == pytest.approx([READING + WIDE, READING + 2 * WIDE, READING + 2 * WIDE + PLAIN])
    rounds = (Acceptance.of_round(4, 2, 3), Acceptance.of_round(3, 2, 3), Acceptance.of_round(0, 0, 1))
    assert answer.acceptance == Acceptance.total(rounds)


def test_phases_are_those_of_the_requests_steps(
    models: FakeModels, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ScriptedPhases:
        """Lap after lap: 1, 2, 3, 4, 5 seconds in every step."""

        def __init__(self) -> None:
            self.laps = iter((1.0, 2.0, 3.0, 4.0, 5.0))

        def lap(self) -> float:
            return next(self.laps)

    monkeypatch.setattr("outrider.engine.engine.PhaseClock", ScriptedPhases)
    llm = toy_llm(models, clock)
    (answer,) = subject(llm, clock).serve([Request(TASK)], Settings(max_tokens=3, ignore_eos=True))
    assert answer.phases == PhaseSeconds(3.0, 6.0, 9.0, 12.0, 15.0)
    assert answer.decode_phases == PhaseSeconds(2.0, 4.0, 6.0, 8.0, 10.0), "the step that read the prompt is left out"


def test_a_batch_shares_its_steps(models: FakeModels, clock: FakeClock) -> None:
    llm = toy_llm(models, clock)
    tasks = completions(0, 0, 0)
    answers = subject(llm, clock).serve([Request(task) for task in tasks], Settings(max_tokens=2, ignore_eos=True))
    for answer in answers:
        assert seconds(answer) == pytest.approx([3 * READING + PLAIN, 3 * READING + 2 * PLAIN])
    assert_idle(llm)


# --- open loop ------------------------------------------------------------------------------------------------


def test_an_idle_engine_sleeps_until_the_next_request(models: FakeModels, clock: FakeClock) -> None:
    requests = [Request(TASK, at=5.0), Request(completions(0)[0], at=1.0)]
    answers = subject(toy_llm(models, clock), clock).serve(requests, Settings(max_tokens=2, ignore_eos=True))
    alone = [READING + PLAIN, READING + 2 * PLAIN]
    assert [seconds(answer) for answer in answers] == [pytest.approx(alone), pytest.approx(alone)]
    assert clock.slept == pytest.approx([1.0, 4.0 - alone[-1]])


def test_waiting_for_a_busy_engine_counts(models: FakeModels, clock: FakeClock) -> None:
    """Sent in the middle of the first request's third step, it joins the fourth: half a step of waiting is its own."""
    requests = [Request(TASK), Request(completions(0)[0], at=READING + 2.5 * PLAIN)]
    first, second = subject(toy_llm(models, clock), clock).serve(requests, Settings(max_tokens=6, ignore_eos=True))
    assert seconds(second)[0] == pytest.approx(0.5 * PLAIN + READING + PLAIN)
    assert seconds(first)[3] == pytest.approx(2 * READING + 4 * PLAIN), "whose prompt the first one waits for in turn"
    assert clock.slept == []


def test_more_requests_than_slots_wait_in_line(models: FakeModels, clock: FakeClock) -> None:
    llm = toy_llm(models, clock)
    requests = [Request(task) for task in completions(*[0] * 12)]
    answers = subject(llm, clock).serve(requests, Settings(max_tokens=2, ignore_eos=True))
    assert [answer.tokens for answer in answers] == [2] * 12
    ttfts = [seconds(answer)[0] for answer in answers]
    assert max(ttfts[:8]) < min(ttfts[8:]), "eight slots"
    assert_idle(llm)


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_a_request_that_cannot_be_served_costs_only_itself(models: FakeModels, clock: FakeClock) -> None:
    llm = toy_llm(models, clock)
    bad = [Task("long", "c", "x" * LIMIT, chat=False), Task("surrogate", "c", "\ud800", chat=False)]
    tasks = [bad[0], TASK, bad[1]]
    long, good, surrogate = subject(llm, clock).serve([Request(task) for task in tasks], GREEDY)
    assert (long.tokens, long.prompt_tokens, long.token_ids) == (0, LIMIT, None)
    assert "max_model_len is 128" in str(long.error)
    assert "surrogate" in str(surrogate.error)
    assert (good.error, good.tokens) == (None, 24)
    assert_idle(llm)


def test_nothing_is_left_after_an_interrupt(models: FakeModels, clock: FakeClock) -> None:
    steps = 0

    def interrupted(feeds: Sequence[Feed]) -> float:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return 0.01

    llm = toy_llm(models, clock, interrupted)
    requests = [Request(task) for task in completions(*[0] * 12)]
    with pytest.raises(KeyboardInterrupt):
        subject(llm, clock).serve(requests, GREEDY)
    assert_idle(llm)
    (again,) = subject(llm, clock).serve([Request(TASK)], GREEDY)
    assert again.tokens == 24


def test_an_interrupt_hands_over_what_was_complete(models: FakeModels, clock: FakeClock) -> None:
    steps = 0

    def interrupted(feeds: Sequence[Feed]) -> float:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise KeyboardInterrupt
        return 0.01

    llm = toy_llm(models, clock, interrupted)
    short = Task("short", "c", "a", chat=False, max_tokens=2)
    long = Task("long", "c", "x" * LIMIT, chat=False)
    requests = [Request(TASK), Request(short), Request(long), Request(short, at=1e3)]
    with pytest.raises(Interrupted) as caught:
        subject(llm, clock).serve(requests, GREEDY)
    unfinished, done, refused, unsent = caught.value.answers
    assert (unfinished, unsent) == (None, None)
    assert done is not None
    assert (done.tokens, done.finish_reason) == (2, "length")
    assert refused is not None
    assert refused.error is not None
    assert_idle(llm)


def test_a_request_that_the_interrupt_kept_from_our_notes_is_dropped_too(
    models: FakeModels, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = toy_llm(models, clock)
    add = llm.engine.add

    def interrupted(prompt_ids: Sequence[int], params: SamplingParams) -> str:
        add(prompt_ids, params)
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine, "add", interrupted)
    with pytest.raises(Interrupted):
        subject(llm, clock).serve([Request(TASK)], GREEDY)
    assert_idle(llm)


def test_an_answer_without_numbers_is_an_error(models: FakeModels, clock: FakeClock) -> None:
    class BrokenRunner(ToyRunner):
        def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
            scores = super().score(feeds, hidden, layers)
            broken = len(self.calls) == 3
            return Scores(tuple(torch.full_like(each, torch.nan) if broken else each for each in scores.logits))

    models.runner_class = BrokenRunner
    llm = LLM("toy", speculative_config=None)
    (answer,) = subject(llm, clock).serve([Request(TASK)], GREEDY)
    assert (answer.tokens, answer.finish_reason) == (2, "abort")
    assert answer.error == "the answer was broken off: the model gave NaN logits"
    assert_idle(llm)


# --- details ----------------------------------------------------------------------------------------------------


def test_details_say_what_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("toy", speculative_config="auto", max_num_seqs=3)
    details = EngineSubject("s", llm, setup={"dtype": "float32"}).details()
    assert details == {
        "engine": "outrider",
        "model": "toy",
        "drafter": "ngram",
        "max_model_len": LIMIT,
        "max_num_seqs": 3,
        "keeps_bytes": {"greedy": True, "seeded": True},
        "kernels": "torch",
        "threads": torch.get_num_threads(),
        "weight_bytes": None,
        "dtype": "float32",
    }


@pytest.mark.parametrize("family", ["llama-tied", "llama-untied-biased", "gemma3"])
def test_a_step_reads_every_weight_once_and_looks_rows_of_an_embedding_up(family: str) -> None:
    config = families()[family]
    with on("native"):
        llm = LLM("toy")
        tensors = list(random_weights(config))
        llm.engine.runner = runner = load(config, iter(tensors))
        details = EngineSubject("s", llm).details()
        assert isinstance(runner.forward, NativeForward)
        weights = runner.forward.weights
        # The extension's own count of its matrices, which does not hold the norms.
        matrices = runner.forward._decoder.nbytes - (0 if config.tie_word_embeddings else weights.embedding.nbytes)
        norms = sum(tensor.numel() * 4 for name, tensor in tensors if "norm" in name)
        assert details["weight_bytes"] == matrices + norms
        assert details["kernels"] == runner.forward.native.level


def test_bytes_are_promised_as_the_engine_promises_them() -> None:
    seeded = Settings(temperature=1.0, seed=0)
    block = LLM("toy", speculative_config={"method": "ngram", "rejection_sample_method": "block"})
    assert EngineSubject("s", block).keeps_bytes(Settings())
    assert not EngineSubject("s", block).keeps_bytes(seeded)
    assert EngineSubject("s", LLM("toy")).keeps_bytes(seeded)
    assert not EngineSubject("s", LLM("toy")).keeps_bytes(Settings(temperature=1.0, seed=None))


def test_tokens_of_a_prompt_are_counted_with_its_template() -> None:
    counted = EngineSubject("s", LLM("toy"))
    assert counted.count_tokens(Task("t", "c", "abc", chat=False)) == 3
    assert counted.count_tokens(Task("t", "c", "abc")) == len("user: abc\nassistant:")
