"""An OpenAI-compatible server as a subject: what is sent, what is made of the stream, and every way it can fail."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.endpoint import EndpointSubject
from outrider.bench.record import Answer, Arrival, Settings, Task
from outrider.bench.server import Chunk
from outrider.bench.subject import Request, Subject
from outrider.bench.transcript import Transcript, spread
from outrider.errors import ConfigError
from tests.unit.openai_server import DONE, Reply, Script, answer, delta, event, models, page, serving, usage

GREEDY = Settings(max_tokens=8)


@pytest.fixture
def server() -> Iterator[Script]:
    with serving() as script:
        yield script


def request(prompt: str = "Hello", **more: Any) -> Request:
    return Request(Task("t", "c", prompt), **more)


def serve(script: Script, *pieces: bytes, settings: Settings = GREEDY, **more: Any) -> Answer:
    """The answer to one request whose stream is ``pieces``."""
    script.reply = lambda _: Reply(pieces)
    (result,) = EndpointSubject("it", script.url, **more).serve([request()], settings)
    return result


def tokens(result: Answer) -> list[int]:
    return [arrival.tokens for arrival in result.arrivals]


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_url_with_or_without_v1(server: Script, tail: str) -> None:
    subject: Subject = EndpointSubject("it", server.url + tail)
    assert subject.serve([request()], GREEDY)[0].error is None
    assert server.asked[0][0] == "/v1/chat/completions"
    assert subject.details()["url"] == server.url


def test_what_a_chat_request_says(server: Script) -> None:
    subject = EndpointSubject("it", server.url, api_key="sk-1", extra_body={"top_k": 5})
    subject.serve([request("Grüße", seed=7)], Settings(temperature=0.5, max_tokens=9))
    path, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Grüße"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 5,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": False,
        "return_token_ids": True,
    }
    assert all(headers["Authorization"] == "Bearer sk-1" for headers in server.headers)


def test_a_completion_request_and_its_own_limit(server: Script) -> None:
    server.reply = lambda _: Reply([delta("x", chat=False), delta("y", "stop", chat=False), usage(2), DONE])
    task = Task("t", "c", "def f(", chat=False, max_tokens=3)
    (result,) = EndpointSubject("it", server.url).serve([Request(task)], GREEDY)
    path, body = server.asked[0]
    assert (path, body["prompt"], body["max_tokens"]) == ("/v1/completions", "def f(", 3)
    assert "seed" not in body
    assert "messages" not in body
    assert (result.text, result.finish_reason, result.prompt_tokens) == ("xy", "stop", 5)


@pytest.mark.parametrize("chat", [True, False])
def test_chat_overrules_the_tasks(server: Script, chat: bool) -> None:
    EndpointSubject("it", server.url, chat=chat).serve([Request(Task("t", "c", "p", chat=not chat))], GREEDY)
    assert server.asked[0][0].endswith("/chat/completions") is chat


def test_an_unknown_server_gets_the_plain_protocol() -> None:
    with serving(owned_by="someone") as script:
        subject = EndpointSubject("it", script.url)
        subject.serve([request()], GREEDY)
        assert not {"ignore_eos", "top_k", "min_p", "return_token_ids"} & set(script.bodies[0])
        with pytest.raises(ConfigError, match="ignore_eos"):
            subject.serve([request()], Settings(ignore_eos=True))
        forced = EndpointSubject("it", script.url, extra_body={"ignore_eos": True})
        assert forced.serve([request()], Settings(ignore_eos=True))[0].error is None
        assert script.bodies[-1]["ignore_eos"] is True


def test_token_ids_count_where_the_server_gives_them(server: Script) -> None:
    result = serve(
        server,
        delta("", token_ids=None),
        delta("ab", token_ids=[1, 2]),
        delta("c", "stop", token_ids=[3, 0]),
        usage(4),
        DONE,
    )
    assert result.token_ids == (1, 2, 3, 0)
    assert result.tokens == 4


def test_ids_that_usage_contradicts_are_not_trusted(server: Script) -> None:
    result = serve(server, delta("ab", token_ids=[1]), delta("c", "length", token_ids=[3]), usage(4), DONE)
    assert result.token_ids is None
    assert result.tokens == 4


def test_usage_counts_when_there_are_no_ids(server: Script) -> None:
    subject = EndpointSubject("it", server.url)
    server.reply = lambda _: Reply([delta("a"), delta("bcdefgh"), delta("", "stop"), usage(6), DONE])
    (result,) = subject.serve([request()], GREEDY)
    assert result.tokens == 6
    assert result.token_ids is None
    assert subject.details()["token_counts"] == {"usage": 1}


def test_without_usage_a_chunk_is_a_token(server: Script) -> None:
    subject = EndpointSubject("it", server.url)
    server.reply = lambda _: Reply([delta("a"), delta("bcd"), delta("e", "length"), delta(""), DONE])
    (result,) = subject.serve([request()], GREEDY)
    assert result.tokens == 3
    assert result.error is None
    assert subject.details()["token_counts"] == {"chunks": 1}


def test_text_that_is_cut_anywhere_in_transit(server: Script) -> None:
    # Keep-alive comments, CRLF, events and characters split over chunks, two events in one chunk, no space after ":".
    text = ["né", "日本", "🙂", " \u2028x"]
    whole = (
        b": hello\r\n\r\n" + b"".join(delta(each) for each in text[:-1]).replace(b"\n", b"\r\n") + b": still here\n\n"
    )
    whole += delta(text[-1], "stop").replace(b"data: ", b"data:") + usage(4) + DONE
    raw = json.dumps("日本", ensure_ascii=False).encode()
    whole = whole.replace(json.dumps("日本").encode(), raw)
    for size in (1, 3, 7, len(whole)):
        result = serve(server, *(whole[i : i + size] for i in range(0, len(whole), size)))
        assert (result.text, result.error, result.tokens) == ("".join(text), None, 4)


def test_thoughts_arrive_too(server: Script) -> None:
    thought = event({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]})
    assert serve(server, thought, delta("yes", "stop"), usage(2), DONE).text == "hmyes"


def transcript(*chunks: tuple[float, str], total: int | None = None) -> Answer:
    """The answer of texts that came at these times."""
    made = Transcript()
    for seconds, text in chunks:
        made.add(Chunk(seconds, {"choices": [{"text": text}]}))
    made.add(Chunk(9.0, {"choices": [{"text": "", "finish_reason": "length"}]}))
    if total is not None:
        made.add(Chunk(9.0, {"choices": [], "usage": {"completion_tokens": total}}))
    return made.answer()


def test_a_round_that_is_sent_token_by_token_is_one_arrival() -> None:
    result = transcript((0.1, "a"), (0.1001, "b"), (0.1004, "c"), (0.2, "d"))
    assert result.arrivals == (Arrival(0.1004, 3), Arrival(0.2, 1))
    # From the first of them on: a fast stream is not one endless round.
    steady = transcript(*((i * 0.0003, "a") for i in range(6)))
    assert tokens(steady) == [2, 2, 2]


def test_usage_is_spread_by_length_and_late_tokens_stay_late() -> None:
    result = transcript((0.1, "a"), (0.2, "bcdefgh"), total=6)
    assert result.arrivals == (Arrival(0.1, 1), Arrival(0.2, 5))
    # A server that streams character by character: more chunks than tokens.
    thin = transcript((0.1, "a"), (0.2, "b"), (0.3, "c"), (0.4, "d"), total=2)
    assert thin.arrivals == (Arrival(0.2, 1), Arrival(0.4, 1))
    assert transcript(total=0).arrivals == ()


@given(st.integers(0, 300), st.lists(st.integers(0, 30), max_size=40))
def test_the_sum_of_what_is_spread_is_exact(total: int, lengths: list[int]) -> None:
    counts = spread(total, lengths)
    assert len(counts) == len(lengths)
    assert not lengths or sum(counts) == total
    assert all(count >= 0 for count in counts)
    if total >= sum(map(bool, lengths)):
        assert all(count for count, length in zip(counts, lengths, strict=True) if length)


BROKEN = {
    "broken": (Reply([delta("a")], broken=True), "broke off"),
    "empty": (Reply([]), "ended before the answer"),
    "unfinished": (Reply([delta("a"), DONE]), "ended before the answer"),
    "error object": (Reply([delta("a"), event({"error": {"message": "out of memory", "code": 500}})]), "out of memory"),
    "error text": (Reply([delta("a"), event({"error": "bad"})]), "reports an error: bad"),
    "error event": (Reply([delta("a"), b"event: error\ndata: gone\n\n"]), "gone"),
    "aborted": (Reply([delta("a", "abort"), DONE]), "gave up"),
    "no JSON": (Reply([delta("a"), b"data: {oops\n\n"]), "no JSON object: {oops"),
    "a list": (Reply([delta("a"), event([1])]), "no JSON object"),
    "strange": (Reply([delta("a"), event({"choices": [3]})]), "no completion's"),
    "status": (page('{"error": {"message": "max_tokens is too large"}}', 400), "HTTP 400: max_tokens is too large"),
    "detail": (page('{"detail": "nope"}', 422), "HTTP 422: nope"),
    "no words": (page("", 503), "HTTP 503: no reason given"),
    "no stream": (page('{"choices": []}', 200, "application/json"), "no event stream"),
    "page": (page("<html>\n" + "x" * 1000, 502, "text/html"), r"HTTP 502: <html> x+\.\.\.$"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_fails_is_an_answer_and_loses_no_neighbour(server: Script, case: str) -> None:
    broken, message = BROKEN[case]
    server.reply = lambda body: broken if body["messages"][0]["content"] == "bad" else Reply(answer("x", "y"))
    subject = EndpointSubject("it", server.url)
    good, bad, last = subject.serve([request(), request("bad"), request()], GREEDY)
    assert (good.text, good.error, last.text, last.error) == ("xy", None, "xy", None)
    assert bad.error is not None
    assert "\n" not in bad.error
    assert len(bad.error) < 320
    assert re.search(message, bad.error)
    if isinstance(broken.pieces, list) and broken.pieces[:1] == [delta("a")]:
        assert bad.text == "a"
    assert subject.details()["errors"] == 1


def test_a_silent_server(server: Script) -> None:
    never = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield delta("a")
        never.wait(5)

    server.reply = lambda _: Reply(pieces())
    (result,) = EndpointSubject("it", server.url, timeout=0.2).serve([request()], GREEDY)
    never.set()
    assert result.error is not None
    assert "silent for 0.2 s" in result.error
    assert result.text == "a"


def test_a_server_that_is_slow_to_start(server: Script) -> None:
    def pieces() -> Iterator[bytes]:
        yield b": queued\n\n"
        threading.Event().wait(0.05)
        yield from answer("a", "b")

    server.reply = lambda _: Reply(pieces())
    (result,) = EndpointSubject("it", server.url).serve([request()], GREEDY)
    assert (result.text, result.error) == ("ab", None)


def test_requests_do_not_wait_for_each_other(server: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each stream ends only when the other has begun: a client that waited would never be answered.
    begun = {"first": threading.Event(), "second": threading.Event()}
    other = {"first": "second", "second": "first"}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        # Until the time of the second has come, the first has been sent, however slow this machine is.
        assert seconds == 0 or begun["first"].wait(10)

    def reply(body: dict[str, Any]) -> Reply:
        me = body["messages"][0]["content"]

        def pieces() -> Iterator[bytes]:
            begun[me].set()
            yield delta(me)
            yield delta("!" if begun[other[me]].wait(10) else "?", "length")

        return Reply(pieces())

    server.reply = reply
    subject = EndpointSubject("it", server.url)
    monkeypatch.setattr("outrider.bench.endpoint.time", SimpleNamespace(perf_counter=time.perf_counter, sleep=sleep))
    answers = subject.serve([request("second", at=1000.0), request("first")], GREEDY)
    assert [each.text for each in answers] == ["second!", "first!"]
    assert slept[0] == 0
    assert 900 < slept[1] <= 1000


def test_a_prompt_that_is_no_unicode(server: Script) -> None:
    bad, good = EndpointSubject("it", server.url).serve([request("\ud800"), request()], GREEDY)
    assert bad.error is not None
    assert "Unicode" in bad.error
    assert good.error is None


def test_server_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=r"cannot connect to http://127\.0\.0\.1:\d+ .*is the server running"
        ) as caught:
            EndpointSubject("it", url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "no server's URL"),
        ("ftp://host/v1", "no server's URL"),
        ("http://", "no server's URL"),
        ("http://host/v1?key=1", "no server's URL"),
        ("http://[::1", "is no URL"),
        ("", "no server's URL"),
    ],
)
def test_what_is_no_url(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EndpointSubject("it", url)


def test_a_key_that_no_header_can_hold(server: Script) -> None:
    for key in ("sk-ü", "sk-1\n"):
        with pytest.raises(ConfigError, match="API key") as caught:
            EndpointSubject("it", server.url, api_key=key)
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "model", "message"),
    [
        (models("a", "b"), None, r"2 models \(a, b\); name the one"),
        (models("a", "b"), "c", "no model 'c'; it has a, b"),
        (models(), "c", "it has none"),
        (page("{}"), None, "lists no models"),
        (page("hello"), None, "no JSON: hello"),
        (page('{"error": {"message": "bad key"}}', 401), None, "HTTP 401: bad key.*API key"),
        (page('{"error": {"message": "Loading model"}}', 503), None, "HTTP 503: Loading model"),
    ],
)
def test_models_that_cannot_be_measured(server: Script, reply: Reply, model: str | None, message: str) -> None:
    server.pages["/v1/models"] = reply
    with pytest.raises(ConfigError, match=message):
        EndpointSubject("it", server.url, model=model)


def test_one_of_several_models(server: Script) -> None:
    server.pages["/v1/models"] = models("a", "b")
    subject = EndpointSubject("it", server.url, model="b")
    subject.serve([request()], GREEDY)
    assert (subject.model, server.bodies[0]["model"]) == ("b", "b")


def test_acceptance_of_one_request_from_llama_servers_timings(server: Script) -> None:
    timings = {"predicted_n": 10, "draft_n": 12, "draft_n_accepted": 6}
    result = serve(server, delta("abc", "length"), usage(10, timings=timings), DONE)
    assert result.acceptance is not None
    assert (result.acceptance.drafted, result.acceptance.accepted, result.acceptance.rounds) == (12, 6, 4)
    assert result.acceptance.tau == 2.5
    plain = serve(server, delta("abc", "length"), usage(10, timings={"predicted_n": 10, "predicted_ms": 1.5}), DONE)
    assert plain.acceptance is not None
    assert (plain.acceptance.drafted, plain.acceptance.tau) == (0, 1.0)
    assert serve(server, delta("abc", "length"), usage(10), DONE).acceptance is None


def test_acceptance_of_the_whole_run_from_metrics(server: Script) -> None:
    counts = {"drafts": 0.0, "draft_tokens": 0.0, "accepted_tokens": 0.0}
    server.pages["/metrics"] = lambda: page(
        "".join(f'vllm:spec_decode_num_{name}_total{{engine="0"}} {value}\n' for name, value in counts.items())
    )
    subject = EndpointSubject("it", server.url)
    counts |= {"drafts": 10.0, "draft_tokens": 30.0, "accepted_tokens": 15.0}
    acceptance = subject.details()["acceptance"]
    assert (acceptance["rounds"], acceptance["drafted"], acceptance["accepted"], acceptance["tau"]) == (10, 30, 15, 2.5)
    json.dumps(subject.details())
    del server.pages["/metrics"]
    assert subject.details()["acceptance"] is None
