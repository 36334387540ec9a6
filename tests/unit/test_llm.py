"""LLM over a fake model: answers in order, mistakes named before any work, nothing left after an interrupt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from outrider.errors import CapabilityError, ConfigError, ModelError, RequestError
from outrider.llm import LLM
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import ByteTokenizer, audit
from outrider.types import FinishReason
from tests.fake_model import LIMIT, FakeModels, fake_models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.models.base import Feed, Scores

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
DRAFT_MODEL = {"method": "draft_model", "model": "toy-draft", "num_speculative_tokens": 3}


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    return fake_models(monkeypatch)


def plain_text(llm: LLM, prompt: str) -> str:
    runner = llm.loaded.runner
    assert isinstance(runner, ToyRunner)
    tokens = runner.model.greedy([*prompt.encode()], 20)
    end = tokens.index(ByteTokenizer.eos_id) if ByteTokenizer.eos_id in tokens else 20
    return bytes(tokens[:end]).decode()


def assert_idle(llm: LLM) -> None:
    audit(llm.engine)
    assert not llm.engine.has_work
    assert not llm.engine.running
    assert llm.engine.collect() == []


@pytest.mark.parametrize("speculation", ["auto", None, {"method": "ngram"}, DRAFT_MODEL])
def test_generate_answers_every_prompt_in_order(speculation: Any) -> None:
    llm = LLM("toy", speculative_config=speculation, max_num_seqs=2)
    prompts = ["a", "once upon a time", "zz top", "b"]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    assert [output.outputs[0].text for output in outputs] == [plain_text(llm, prompt) for prompt in prompts]
    assert all(output.finished for output in outputs)
    assert_idle(llm)


@pytest.mark.parametrize("quantization", [None, "int8", "gguf"])
def test_a_draft_model_has_a_quantization_of_its_own(models: FakeModels, quantization: str | None) -> None:
    LLM("toy", quantization=quantization, speculative_config=DRAFT_MODEL)
    assert models.quantizations == [quantization, None], "not inherited, as in vLLM"


def test_an_unknown_quantization_is_named_before_anything_is_read(models: FakeModels) -> None:
    draft: Any = {"speculative_config": {**DRAFT_MODEL, "quantization": "int3"}}
    for settings in ({"quantization": "int3"}, draft):
        with pytest.raises(ConfigError, match="quantization='int3' is unknown"):
            LLM("toy", **settings)
    assert models.runners == []


def test_a_prompt_may_be_text_or_ids_alone_or_in_a_list() -> None:
    llm = LLM("toy")
    for prompts in ("hey", ["hey"], [*b"hey"], [[*b"hey"]], (*b"hey",)):
        (output,) = llm.generate(prompts, GREEDY)
        assert output.prompt_token_ids == (*b"hey",)
        assert output.outputs[0].text == plain_text(llm, "hey")
    assert llm.generate([], GREEDY) == []


def test_parameters_one_for_all_or_one_each() -> None:
    llm = LLM("toy")
    both = llm.generate(["a", "b"], [GREEDY, SamplingParams(max_tokens=3, ignore_eos=True)])
    assert len(both[1].outputs[0].token_ids) == 3
    with pytest.raises(RequestError, match="2 sampling_params for 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])
    default = llm.generate("a")[0].outputs[0]
    assert 1 <= len(default.token_ids) <= 16, "SamplingParams() as in vLLM"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ("x" * LIMIT, f"has {LIMIT} tokens but max_model_len is {LIMIT}"),
        ([1, 999], "token id 999 is outside"),
        ([1.5], "a prompt is text or a list of token ids"),
        (7, "a prompt is text or a list of token ids"),
        ([True], "a prompt is text or a list of token ids"),
    ],
)
def test_a_bad_prompt_is_named_before_any_work(models: FakeModels, bad: Any, message: str) -> None:
    llm = LLM("toy")
    before = len(models.runners[0].calls)
    with pytest.raises(RequestError, match=f"^prompt 1: .*{message}"):
        llm.generate(["fine", bad], GREEDY)
    with pytest.raises(RequestError, match=message):
        llm.stream(bad, GREEDY)
    assert len(models.runners[0].calls) == before
    assert_idle(llm)


def test_stream_is_the_answer_in_pieces() -> None:
    llm = LLM("toy", speculative_config=DRAFT_MODEL)
    chunks = list(llm.stream("once", GREEDY))
    assert "".join(chunk.text for chunk in chunks) == plain_text(llm, "once")
    assert chunks[-1].output is not None
    assert chunks[-1].output.outputs == llm.generate("once", GREEDY)[0].outputs
    assert_idle(llm)


def test_stream_refuses_at_once_not_at_the_first_chunk() -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        LLM("toy").stream("", GREEDY)


def test_closing_a_stream_cancels() -> None:
    llm = LLM("toy")
    stream = llm.stream("once", SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))
    next(stream)
    assert len(llm.engine.running) == 1
    stream.close()  # type: ignore[attr-defined]
    assert_idle(llm)
    llm.stream("never started", GREEDY)
    assert_idle(llm)


def test_two_streams_on_one_llm() -> None:
    llm = LLM("toy", speculative_config=None)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    alone = [[c.text for c in llm.stream(prompt, params)] for prompt in ("first", "second")]
    first, second = llm.stream("first", params), llm.stream("second", params)
    texts: list[str] = ["", ""]
    for one, other in zip(first, second, strict=False):
        texts[0] += one.text
        texts[1] += other.text
    for i, rest in enumerate((first, second)):
        for chunk in rest:
            texts[i] += chunk.text
    assert texts[0] == "".join(alone[0])
    assert texts[1] == "".join(alone[1])
    assert_idle(llm)


def test_a_stream_gets_its_last_chunk_even_if_another_call_finished_it() -> None:
    llm = LLM("toy")
    expected = llm.generate("first", GREEDY)[0].outputs
    stream = llm.stream("first", GREEDY)
    chunks = [next(stream)]
    longer = llm.generate("second", SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    chunks += stream
    assert len(longer[0].outputs[0].token_ids) == 60
    assert "".join(chunk.text for chunk in chunks) == expected[0].text
    assert chunks[-1].output is not None
    assert chunks[-1].output.outputs == expected
    assert_idle(llm)


class _Interrupted(ToyRunner):
    interrupt_on = 0

    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        scores = super().score(feeds, hidden, layers)
        if len(self.calls) == self.interrupt_on:
            raise KeyboardInterrupt
        return scores


def test_an_interrupt_leaves_the_llm_usable(models: FakeModels) -> None:
    models.runner_class = _Interrupted
    llm = LLM("toy")
    models.runners[0].interrupt_on = len(models.runners[0].calls) + 3  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b", "c"], GREEDY)
    assert_idle(llm)
    assert llm.generate("a", GREEDY)[0].outputs[0].text == plain_text(llm, "a")
    models.runners[0].interrupt_on = len(models.runners[0].calls) + 2  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        list(llm.stream("a", GREEDY))
    assert_idle(llm)


def test_chat_uses_the_template() -> None:
    llm = LLM("toy")
    conversation = [{"role": "user", "content": "hi"}]
    prompt = "user: hi\nassistant:"
    (one,) = llm.chat(conversation, GREEDY)
    assert bytes(one.prompt_token_ids).decode() == prompt
    assert one.outputs == llm.generate(prompt, GREEDY)[0].outputs
    assert len(llm.chat([conversation, conversation], GREEDY)) == 2
    with pytest.raises(RequestError, match="exactly 'role' and 'content'"):
        llm.chat([{"role": "user"}], GREEDY)
    with pytest.raises(RequestError, match="the conversation is empty"):
        llm.chat_tokens([])


def test_with_speculation_shares_the_weights(models: FakeModels) -> None:
    llm = LLM("toy", speculative_config={"method": "ngram"})
    plain, drafted = llm.with_speculation(None), llm.with_speculation(DRAFT_MODEL)
    names = [each.engine.drafter.name for each in (llm, plain, drafted)]
    assert names == ["ngram", "none", "draft_model"]
    assert len(models.runners) == 2, "one target, one draft model"
    outputs = [each.generate("abcabcabc", GREEDY)[0] for each in (llm, plain, drafted)]
    assert outputs[0].outputs == outputs[1].outputs == outputs[2].outputs
    assert [output.metrics.drafter for output in outputs] == names
    assert outputs[2].metrics.accepted > 0


def test_sampled_text_with_a_seed_is_the_same_whatever_drafts() -> None:
    llm = LLM("toy")
    params = SamplingParams(seed=11, max_tokens=40)
    texts = {llm.with_speculation(c).generate("ab", params)[0].outputs[0].text for c in ("auto", None, DRAFT_MODEL)}
    assert len(texts) == 1


def test_auto_is_plain_where_the_cache_cannot_be_rolled_back() -> None:
    llm = LLM("toy-recurrent")
    assert llm.engine.drafter.name == "none"
    assert llm.generate("a", GREEDY)[0].metrics.drafter == "none"
    with pytest.raises(CapabilityError, match="cannot be rolled back"):
        LLM("toy-recurrent", speculative_config={"method": "ngram"})


def test_what_cannot_work_is_refused_at_construction(models: FakeModels) -> None:
    with pytest.raises(CapabilityError, match="tokenizer is not the target model's"):
        LLM("toy-other-tokenizer", speculative_config=DRAFT_MODEL)
    with pytest.raises(ModelError, match="unknown model 'nonsense'"):
        LLM("nonsense")
    made = len(models.runners)
    with pytest.raises(ConfigError, match="max_num_seqs=0"):
        LLM("toy", max_num_seqs=0)
    with pytest.raises(ConfigError, match="dtype='float8'"):
        LLM("toy", dtype="float8")
    with pytest.raises(ConfigError, match="unknown key 'k'"):
        LLM("toy", speculative_config={"k": 3})
    assert len(models.runners) == made, "settings are checked before anything is loaded"


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_finish_reasons_are_plain_words(reason: FinishReason) -> None:
    stop = [*"abcde"] if reason is FinishReason.STOP else []
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, stop=stop)
    answer = LLM("toy").generate("once", params)[0].outputs[0]
    assert answer.finish_reason == str(reason)


def test_siblings_do_not_take_each_others_slots() -> None:
    llm = LLM("toy")
    plain = llm.with_speculation(None)
    expected = plain.generate("ab", GREEDY)[0].outputs
    stream = llm.stream("ab", GREEDY)
    next(stream)
    with pytest.raises(RequestError, match="over the same weights has a request under way"):
        plain.generate("ab", GREEDY)
    rest = [chunk.output for chunk in stream]
    assert rest[-1] is not None
    assert rest[-1].outputs == expected
    assert plain.generate("ab", GREEDY)[0].outputs == expected


def test_a_stream_closed_in_the_middle_of_generate_takes_nothing_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("toy")
    expected = llm.generate("ab", GREEDY)[0].outputs
    stream = llm.stream("xyz", GREEDY)
    next(stream)
    step = llm.engine.step

    def step_then_close() -> object:
        trace = step()
        stream.close()  # type: ignore[attr-defined]
        return trace

    monkeypatch.setattr(llm.engine, "step", step_then_close)
    assert llm.generate("ab", GREEDY)[0].outputs == expected


@pytest.mark.parametrize("bad", [{"temperature": 0}, [{"temperature": 0}], "hot"])
def test_parameters_of_another_type_are_refused(bad: Any) -> None:
    with pytest.raises(RequestError, match="sampling_params must be"):
        LLM("toy").generate("a", bad)


def test_a_draft_model_plans_no_longer_slots_than_its_target(models: FakeModels) -> None:
    LLM("toy", max_model_len=32, speculative_config=DRAFT_MODEL)
    assert [runner.max_model_len for runner in models.runners] == [32, 32]


def test_a_stream_started_late_does_not_take_a_siblings_slot() -> None:
    llm = LLM("toy", max_num_seqs=1)
    mine, other = llm.stream("ab", GREEDY), llm.with_speculation(None).stream("ab", GREEDY)
    next(mine)
    with pytest.raises(RequestError, match="over the same weights has a request under way"):
        next(other)
    assert list(mine)[-1].output is not None


def test_discarded_siblings_are_let_go() -> None:
    import gc
    import weakref

    llm = LLM("toy")
    engine = weakref.ref(llm.with_speculation(DRAFT_MODEL).engine)
    gc.collect()
    assert engine() is None


def test_threads_share_an_llm() -> None:
    from concurrent.futures import ThreadPoolExecutor

    llm = LLM("toy", max_num_seqs=2)
    prompts = ["ab", "once upon", "xyz", "hello there"] * 5
    expected = [output.outputs for output in llm.generate(prompts, GREEDY)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda prompt: llm.generate(prompt, GREEDY)[0].outputs, prompts))
    assert got == expected
    assert_idle(llm)


@pytest.mark.parametrize("bad", [b"abc", bytearray(b"abc"), {}, {"prompt": "x"}, set(), None, 5])
def test_what_is_no_prompt_is_refused(bad: Any) -> None:
    llm = LLM("toy")
    with pytest.raises(RequestError, match=r"must be text|is text or a list"):
        llm.generate(bad, GREEDY)
    with pytest.raises(RequestError, match="is text or a list"):
        llm.stream(bad, GREEDY)


@pytest.mark.parametrize(
    "bad", [[{"role": "user", "content": None}], [{"role": 5, "content": "x"}], [[{"role": "user"}], 5], ["hi"], "hi"]
)
def test_what_is_no_conversation_is_refused(bad: Any) -> None:
    with pytest.raises(RequestError, match=r"message|conversation"):
        LLM("toy").chat(bad, GREEDY)
