"""Chunks of a stream put together again are the answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.stream import StreamCursor
from outrider.sampling.params import SamplingParams
from outrider.testing import RandomDrafter, ScheduledController
from outrider.types import FinishReason, StreamChunk
from tests.support import GREEDY, MODEL, VOCAB, LetterTokenizer, make_engine, oracle

LONG = MODEL.greedy([3], 40)
TEXT = LetterTokenizer().decode(LONG)
STOPS = st.lists(st.text("abcdefghijkl", min_size=1, max_size=3), max_size=3)


def stream(prompt: list[int], params: SamplingParams, budgets: list[int], right: bool = False) -> list[StreamChunk]:
    """All chunks of one request, read after every step."""
    drafter = oracle([3, *LONG]) if right else RandomDrafter(VOCAB)
    engine = make_engine(drafter, ScheduledController(budgets), tokenizer=LetterTokenizer(0))
    request = engine.request(engine.add(prompt, params))
    assert request is not None
    cursor, chunks = StreamCursor(request), list[StreamChunk]()
    while engine.has_work:
        engine.step()
        chunks += cursor.chunks()
    assert list(cursor.chunks()) == [], "nothing comes after the end"
    return chunks


@given(st.integers(0, VOCAB - 1), STOPS, st.lists(st.integers(0, 5), min_size=1, max_size=3), st.sampled_from([1, 3]))
def test_chunks_concatenated_are_the_answer(start: int, stops: list[str], budgets: list[int], n: int) -> None:
    chunks = stream([start], SamplingParams(seed=start, stop=stops, n=n, max_tokens=20), budgets)
    output = chunks[-1].output
    assert output is not None
    assert output.finished
    assert [chunk.output for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    for answer in output.outputs:
        mine = [chunk for chunk in chunks if chunk.index == answer.index]
        assert "".join(chunk.text for chunk in mine) == answer.text
        assert tuple(token for chunk in mine for token in chunk.token_ids) == answer.token_ids
        assert [chunk.finish_reason for chunk in mine] == [None] * (len(mine) - 1) + [answer.finish_reason]
        assert not any(stop in answer.text for stop in stops)


def test_one_chunk_a_round_with_all_its_tokens() -> None:
    chunks = stream([3], replace(GREEDY, ignore_eos=True), [3], right=True)
    assert [len(chunk.token_ids) for chunk in chunks] == [4, 4, 4, 4]
    assert "".join(chunk.text for chunk in chunks) == TEXT[:16]


def test_text_that_may_become_a_stop_string_waits_while_its_tokens_do_not() -> None:
    almost = TEXT[2:5] + "?"
    chunks = stream([3], replace(GREEDY, ignore_eos=True, max_tokens=8, stop=almost), [0])
    assert [len(chunk.token_ids) for chunk in chunks] == [1] * 8
    assert [chunk.text for chunk in chunks[2:6]] == ["", "", "", TEXT[2:6]]


def test_a_cancelled_stream_ends_with_what_it_has() -> None:
    engine = make_engine(tokenizer=LetterTokenizer())
    request_id = engine.add([3], replace(GREEDY, stop=TEXT[1:3] + "?"))
    request = engine.request(request_id)
    assert request is not None
    cursor = StreamCursor(request)
    for _ in range(3):
        engine.step()
    assert "".join(chunk.text for chunk in cursor.chunks()) == TEXT[:1]
    engine.cancel(request_id)
    (last,) = cursor.chunks()
    assert (last.text, last.finish_reason) == (TEXT[1:3], FinishReason.ABORT)
    assert last.output is not None
