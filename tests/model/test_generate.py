"""The real path, from text to text, on real weights."""

from __future__ import annotations

import pytest

from outrider import LLM, SamplingParams

pytestmark = pytest.mark.weights

LINE = "The colours are red, green, blue.\n"
COPYING = LINE * 6


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", max_model_len=512)


def test_text_is_sensible_and_drafts_are_kept(llm: LLM) -> None:
    output = llm.generate(COPYING, SamplingParams(temperature=0.0, max_tokens=24))[0]
    assert output.outputs[0].text.startswith(LINE * 2)
    assert output.metrics.drafter == "ngram+spire"
    assert output.metrics.tau > 2.0


def test_stream_equals_generate(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24)
    chunks = list(llm.stream("Once upon a time", params))
    output = llm.generate("Once upon a time", params)[0]
    assert "".join(chunk.text for chunk in chunks) == output.outputs[0].text
    assert tuple(t for chunk in chunks for t in chunk.token_ids) == output.outputs[0].token_ids


def test_logprobs_are_the_plain_ones(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, logprobs=2)
    speculative = llm.generate(COPYING, params)[0].outputs[0]
    plain = llm.with_speculation(None).generate(COPYING, params)[0].outputs[0]
    assert speculative.token_ids == plain.token_ids
    assert speculative.logprobs == plain.logprobs
    assert speculative.logprobs is not None
    assert len(speculative.logprobs) == 16


def test_chat_ends_by_itself(llm: LLM) -> None:
    # Every token of this answer leads by 0.8 or more in log-probability: no machine's rounding changes it.
    params = SamplingParams(temperature=0.0, max_tokens=60)
    answer = llm.chat([{"role": "user", "content": "Name the capital of Italy."}], params)
    assert "Rome" in answer[0].outputs[0].text
    assert answer[0].outputs[0].finish_reason == "stop"


def test_an_unseeded_request_is_served_by_block_verification(llm: LLM) -> None:
    output = llm.generate(COPYING, SamplingParams(temperature=0.7, top_p=0.9, max_tokens=24, n=2, ignore_eos=True))[0]
    assert [len(answer.token_ids) for answer in output.outputs] == [24, 24]
    assert output.metrics.accepted > 0
