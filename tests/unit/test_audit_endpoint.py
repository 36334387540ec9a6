"""Two servers audited from outside: equal laws pass, a biased one does not, and a near-tie is told from a fault."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from outrider.audit.endpoint import Endpoint, audit_endpoints, read_logprobs
from outrider.audit.samples import Job, Question
from outrider.audit.text import paragraph, table
from outrider.cli.main import run
from outrider.errors import RequestError
from outrider.sampling.params import SamplingParams
from tests.unit.openai_server import DONE, Reply, Script, delta, models, page, serving

Captured = pytest.CaptureFixture[str]
QUESTIONS = [Question("p0", "one"), Question("p1", "two")]
SAMPLED = SamplingParams(max_tokens=6, seed=1)
Greedy = Sequence[tuple[str, Mapping[str, float]]]
LAW = {"x": 0.5, "y": 0.3, "z": 0.2}
SURE = {"x": -0.1, "y": -2.5}


def told(token: str, likeliest: Mapping[str, float]) -> dict[str, Any]:
    return {"tokens": [token], "token_logprobs": [likeliest.get(token, -9.0)], "top_logprobs": [dict(likeliest)]}


def says(law: Mapping[str, float], greedy: Greedy) -> Callable[[dict[str, Any]], Reply]:
    """A server's reply: ``greedy`` at temperature 0, else tokens drawn from ``law``, by the request's seed."""

    def reply(body: dict[str, Any]) -> Reply:
        tokens: Greedy = greedy
        if body["temperature"] > 0:
            draw = random.Random(body["seed"])
            tokens = [(token, {}) for token in draw.choices(list(law), list(law.values()), k=body["max_tokens"])]
        pieces = [delta(token, chat=False, logprobs=told(token, likeliest)) for token, likeliest in tokens]
        return Reply([*pieces, delta("", "length", chat=False), DONE])

    return reply


@contextmanager
def two_servers(plain: Callable[[dict[str, Any]], Reply], other: Callable[[dict[str, Any]], Reply]) -> Iterator[Any]:
    with serving(owned_by="someone") as a, serving(owned_by="someone") as b:
        a.reply, b.reply = plain, other
        yield a, b


def audit(a: Script, b: Script, params: SamplingParams = SAMPLED, samples: int = 100) -> Any:
    return audit_endpoints(Endpoint.find(a.url), Endpoint.find(b.url), QUESTIONS, params, samples)


def test_equal_servers_pass() -> None:
    answer = says(LAW, [("x", SURE), ("y", SURE)])
    with two_servers(answer, answer) as (a, b):
        report = audit(a, b)
    assert report.failed == ()
    assert (report.rule, report.seeded, report.control) == (None, None, None)
    assert report.greedy.tokens == 4
    assert report.greedy.noise.largest == 0.0
    assert len(report.distribution.tests) == 4
    assert not report.distribution.judged.told
    assert "No deliberate mistake could be planted" in paragraph(report)
    assert "greedy tokens" in table(report)
    assert {path for path, _ in a.asked} == {"/v1/completions"}
    seeds = [body["seed"] for body in (*a.bodies, *b.bodies) if body["temperature"] > 0]
    assert len(seeds) == len(set(seeds)) == 400, "no sample is taken twice"
    assert not {"top_k", "min_p", "ignore_eos"} & set(b.bodies[-1])


def test_a_biased_server_is_caught_end_to_end() -> None:
    greedy = [("x", SURE)]
    with two_servers(says(LAW, greedy), says({"x": 0.95, "y": 0.05}, greedy)) as (a, b):
        assert audit(a, b).failed == ("distribution",)


def test_near_ties_are_told_from_faults_by_the_servers_own_logprobs() -> None:
    """The servers' log-probabilities differ by up to 0.1, so a gap of 0.15 is a near-tie and one of 2.4 is not."""
    near, near_too = {"x": -0.70, "y": -0.85}, {"x": -0.80, "y": -0.78}
    for plain, other, faults in (
        ([("x", near)], [("y", near_too)], 0),
        ([("x", SURE)], [("y", {"x": -0.2, "y": -2.4})], 2),
        ([("x", {"x": -0.1})], [("y", near)], 2),
    ):
        with two_servers(says(LAW, plain), says(LAW, other)) as (a, b):
            report = audit(a, b, SamplingParams(temperature=0.0, max_tokens=4))
        assert len(report.greedy.divergences) == 2
        assert len(report.greedy.faults) == faults
        assert (report.failed == ("greedy",)) == bool(faults)


def test_servers_without_logprobs_are_compared_by_characters() -> None:
    def silent(words: str) -> Callable[[dict[str, Any]], Reply]:
        return lambda _: Reply([delta(words, "length", chat=False), DONE])

    greedy = SamplingParams(temperature=0.0, max_tokens=4)
    with two_servers(silent("hello"), silent("help")) as (a, b):
        report = audit(a, b, greedy)
        assert [each.split.position for each in report.greedy.divergences] == [3, 3]
        assert report.failed == ("greedy",), "what is not known explains nothing"
        b.reply = says(LAW, [("x", SURE)])
        with pytest.raises(RequestError, match="one server reports logprobs and the other does not"):
            audit(a, b, greedy)


def test_kept_drafts_that_are_told_without_logprobs_are_tokens_all_the_same() -> None:
    """As llama-server tells them: a chunk each, whose logprobs are null."""
    greedy = [("x", SURE), ("yy", SURE), ("z", SURE)]

    def kept(words: Sequence[str]) -> Callable[[dict[str, Any]], Reply]:
        pieces = [delta(words[0], chat=False, logprobs=told(words[0], SURE))]
        pieces += [delta(word, chat=False, logprobs=None) for word in words[1:]]
        return lambda _: Reply([*pieces, delta("", "length", chat=False), DONE])

    params = SamplingParams(temperature=0.0, max_tokens=4)
    with two_servers(says(LAW, greedy), kept(["x", "yy", "z"])) as (a, b):
        report = audit(a, b, params)
        assert report.failed == ()
        assert (report.greedy.tokens, report.greedy.noise.positions) == (6, 2)
        b.reply = kept(["x", "w", "z"])
        assert [each.split.position for each in audit(a, b, params).greedy.faults] == [1, 1]


def test_a_server_that_filters_of_its_own_accord_is_told_not_to() -> None:
    answer = says(LAW, [("x", SURE)])
    with two_servers(answer, answer) as (a, b):
        b.pages["/v1/models"] = models("tiny", owned_by="llamacpp")
        audit(a, b, SamplingParams(max_tokens=4, seed=1, min_p=0.1))
    assert {(body["top_k"], body["min_p"], body["repetition_penalty"]) for body in b.bodies[2:]} == {(0, 0.1, 1.0)}
    assert "repetition_penalty" not in a.bodies[-1]


def test_one_of_several_models_can_be_named(capsys: Captured) -> None:
    answer = says(LAW, [("x", SURE)])
    with two_servers(answer, answer) as (a, b):
        b.pages["/v1/models"] = a.pages["/v1/models"] = models("tiny", "small", owned_by="someone")
        command = ["audit", "--endpoint", b.url, "--plain-endpoint", a.url, "--temperature", "0", "--limit", "1"]
        assert run(command) == 2
        assert run([*command, "--endpoint-model", "large"]) == 2
        assert run([*command, "--endpoint-model", "small"]) == 0
    assert [body["model"] for body in (*a.bodies, *b.bodies)] == ["small", "small"]
    assert run(["audit", "--endpoint-model", "small"]) == 2
    several, unknown, alone = (line for line in capsys.readouterr().err.splitlines())
    assert "has 2 models (tiny, small)" in several
    assert "has no model 'large'" in unknown
    assert "means nothing without --endpoint" in alone


def counters(drafts: int) -> str:
    return "\n".join(
        f"vllm:spec_decode_num_{what}_total {drafts}" for what in ("drafts", "draft_tokens", "accepted_tokens")
    )


def counting(*readings: int) -> Callable[[], Reply]:
    """A page of counters that moves on with every reading."""
    rest = iter(readings)
    return lambda: page(counters(next(rest)))


def test_a_plain_server_that_drafts_is_none() -> None:
    answer = says(LAW, [("x", SURE)])
    with two_servers(answer, answer) as (a, b):
        for plain, failed in ((counting(3, 3), ()), (counting(3, 8), ("drafts",))):
            a.pages["/metrics"], b.pages["/metrics"] = plain, counting(0, 7)
            report = audit(a, b)
            assert report.failed == failed
    assert (report.drafts.drafted, report.drafts.plain) == (7, 5)
    assert "speculation was compared with itself" in paragraph(report)
    assert "BOTH SIDES  7 by its own count, 5 by the plain server's" in table(report)


def test_a_server_that_drafted_nothing_shows_nothing() -> None:
    answer = says(LAW, [("x", SURE)])
    with two_servers(answer, answer) as (a, b):
        b.pages["/metrics"] = page(counters(0))
        report = audit(a, b)
    assert report.failed == ("drafts",)
    assert "drafted nothing" in paragraph(report)


def test_a_failing_request_is_one_error_and_stops_the_others() -> None:
    with serving() as server:
        server.reply = lambda body: Reply([delta("x", chat=False), DONE])
        sampler = Endpoint.find(server.url).sampler("s", lambda *_: None)
        with pytest.raises(RequestError, match="p0: the stream ended before the answer did"):
            sampler.sample([Job(QUESTIONS[0], SAMPLED)] * 100)
        assert len(server.asked) < 100
        server.reply = lambda body: page("no", 500)
        with pytest.raises(RequestError, match="HTTP 500"):
            sampler.sample([Job(QUESTIONS[0], SAMPLED)])


def test_logprobs_in_both_shapes() -> None:
    chats = {"content": [{"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}]}]}
    assert read_logprobs(chats) == [("a", {"a": -1.0})]
    assert read_logprobs(told("a", {"a": -1, "b": -2})) == [("a", {"a": -1.0, "b": -2.0})]
    assert read_logprobs({"tokens": ["a"], "top_logprobs": None}) == [("a", {})]
    assert read_logprobs(None) == []
    ruled_out = told("a", {"a": -1, "b": -math.inf, "c": math.nan})
    assert read_logprobs(ruled_out) == [("a", {"a": -1.0})], "JSON has neither"
    bad: Any
    for bad in ({"tokens": 5}, "text", {"content": [{}]}, {"tokens": ["a", "b"], "top_logprobs": [{}]}):
        with pytest.raises(RequestError, match="cannot be read"):
            read_logprobs(bad)


def test_the_command_on_two_servers(capsys: Captured) -> None:
    answer = says(LAW, [("x", SURE), ("y", SURE)])
    with two_servers(answer, answer) as (a, b):
        arguments = ["--endpoint", b.url, "--plain-endpoint", a.url + "/v1/", "--samples", "100", "--limit", "1"]
        assert run(["audit", *arguments, "--seed", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["settings"]["endpoint"]["url"] == b.url
    assert report["settings"]["plain_endpoint"]["model"] == "tiny"
    assert (report["rule"], report["control"]) == (None, None)


def test_a_server_whose_logits_are_far_off_does_not_explain_itself() -> None:
    """A context that lacks something moves log-probabilities by whole units, and those would close any gap."""
    with two_servers(says(LAW, [("x", SURE)]), says(LAW, [("y", {"x": -3.5, "y": -0.1})])) as (a, b):
        report = audit(a, b, SamplingParams(temperature=0.0, max_tokens=4))
    assert [each.factor <= 2 for each in report.greedy.divergences] == [True, True]
    assert len(report.greedy.faults) == 2


def test_two_models_are_pointed_out(capsys: Captured) -> None:
    answer = says(LAW, [("x", SURE)])
    with two_servers(answer, answer) as (a, b):
        b.pages["/v1/models"] = models("small", owned_by="someone")
        assert run(["audit", "--endpoint", b.url, "--plain-endpoint", a.url, "--temperature", "0", "--limit", "1"]) == 0
    assert f"{b.url} answers as 'small' and {a.url} as 'tiny'" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line(capsys: Captured) -> None:
    with serving() as server:
        url = server.url
    assert run(["audit", "--endpoint", url, "--plain-endpoint", url]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot connect" in err
