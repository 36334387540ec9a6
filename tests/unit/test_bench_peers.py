"""The table of other engines: what is compared with what, and that one engine's failure is one row."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import peers
import peers_contenders
import pytest
from peers_contenders import Contender, Place
from peers_openvino_export import check_size
from peers_servers import PeerError, free_port, server
from peers_table import PLAIN, Row, all_figures, speed, table

from outrider.bench.figures import same_answer
from outrider.bench.record import Answer, Arrival, Settings, Task
from outrider.bench.subject import Request, Subject
from outrider.errors import ConfigError

TASKS = [Task("1", "qa", "one", chat=False), Task("2", "qa", "two", chat=False), Task("3", "math", "three", chat=False)]
LENGTHS = {"1": 3, "2": 3, "3": 5}
SETTINGS = Settings(max_tokens=4, seed=None)


def said(text: str, seconds: float, tokens: int = 10, ids: Sequence[int] | None = None, **more: Any) -> Answer:
    known = None if ids is None else tuple(ids)
    return Answer(text, known, 3, (Arrival(seconds, tokens),), "length", **more)


class Scripted:
    """Answers from a table, by prompt; the warm-up too."""

    name = "scripted"

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
        self.asked += [request.task.prompt for request in requests]
        return [self._answers.get(request.task.prompt, said("warm", 1.0)) for request in requests]

    def details(self) -> Mapping[str, Any]:
        return {"version": 1}


@contextmanager
def starting(subject: Subject | Exception, closed: list[str]) -> Iterator[Subject]:
    if isinstance(subject, Exception):
        raise subject
    try:
        yield subject
    finally:
        closed.append("closed")


def contender(subject: Subject | Exception, closed: list[str] | None = None) -> Contender:
    return Contender("E", "bf16", PLAIN, partial(starting, subject, [] if closed is None else closed))


def row(mode: str, *seconds: float, text: str = "abc", engine: str = "E", **more: Any) -> Row:
    answers = {task.id: said(f"{text}{task.id}", each) for task, each in zip(TASKS, seconds, strict=False)}
    return Row(engine, "bf16", mode, answers, **more)


def test_every_prompt_is_asked_once_after_another_to_warm_up() -> None:
    subject, closed = Scripted({task.prompt: said(task.prompt, 2.0) for task in TASKS}), list[str]()
    measured = peers.measure(contender(subject, closed), TASKS, SETTINGS)
    assert subject.asked[1:] == ["one", "two", "three"]
    assert subject.asked[0] not in ("one", "two", "three")
    assert [answer.text for answer in measured.answers.values()] == ["one", "two", "three"]
    assert (measured.details, closed) == ({"version": 1}, ["closed"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PeerError("ended with code 1"), "ended with code 1"),
        (ConfigError("no model"), "no model"),
        (RuntimeError("bad\nthings"), "RuntimeError: bad"),
    ],
)
def test_an_engine_that_fails_is_a_row_with_a_reason(error: Exception, message: str) -> None:
    measured = peers.measure(contender(error), TASKS, SETTINGS)
    assert (measured.error, measured.answers) == (message, {})
    (made,) = all_figures([measured], TASKS, LENGTHS)
    assert made["tokens_per_second"] is None
    assert not made["best"]
    assert f"not measured: {message}" in table([made], ["math", "qa"])


def test_an_engine_that_dies_while_it_is_measured() -> None:
    class Dying(Scripted):
        def serve(self, requests: Sequence[Request], settings: Settings) -> list[Answer]:
            if requests[0].task.prompt == "two":
                raise OSError("gone")
            return super().serve(requests, settings)

    closed: list[str] = []
    measured = peers.measure(contender(Dying({}), closed), TASKS, SETTINGS)
    assert measured.error == "OSError: gone"
    assert closed == ["closed"]


def test_figures_against_own_plain_output() -> None:
    plain, other = row(PLAIN, 1.0, 2.0, 4.0), row(PLAIN, 9.0, 9.0, 9.0, engine="F")
    fast = row("ngram", 0.5, 0.5, 4.0)
    fast = Row(**{**vars(fast), "answers": {**fast.answers, "3": said("else", 4.0)}})
    first, second, third = all_figures([plain, fast, other], TASKS, LENGTHS)
    assert first["tokens_per_second"] == pytest.approx(30 / 7)
    assert first["by_category"] == {"qa": pytest.approx(20 / 3), "math": pytest.approx(10 / 4)}
    assert (first["ratio"], first["identical"], first["best"]) == (None, None, False)
    assert second["ratio"]["mean"] == pytest.approx((2 * 4 * 1) ** (1 / 3))
    assert second["identical"] == {"same": 2, "of": 3}
    assert second["best"]
    assert third["best"]
    # The third prompt has five tokens, and the answers speak of three.
    assert second["other_prompts"] == 1
    json.dumps([first, second, third])


def test_a_failed_answer_counts_nowhere() -> None:
    plain, broken = row(PLAIN, 1.0, 1.0, 1.0), row("ngram", 0.5, 0.5, 0.5)
    answers = {**broken.answers, "2": said("ab", 100.0, error="broke off")}
    _, made = all_figures([plain, Row("E", "bf16", "ngram", answers)], TASKS, LENGTHS)
    assert (made["failed"], made["first_failure"]) == (1, "broke off")
    assert made["tokens_per_second"] == pytest.approx(20.0)
    assert made["identical"] == {"same": 2, "of": 2}
    assert "20 (1 failed)" in table([made], ["math", "qa"])


def test_a_plain_answer_that_failed_is_no_yardstick() -> None:
    plain = row(PLAIN, 1.0, 1.0, 1.0)
    broken = Row("E", "bf16", PLAIN, {**plain.answers, "2": said("a", 9.0, error="broke off")})
    _, made = all_figures([broken, row("ngram", 0.5, 0.5, 0.5)], TASKS, LENGTHS)
    assert made["identical"] == {"same": 2, "of": 2}
    assert made["ratio"]["mean"] == pytest.approx(2.0)


def test_a_plain_row_that_failed_leaves_nothing_to_compare_with() -> None:
    _, made = all_figures([Row("E", "bf16", PLAIN, error="x"), row("ngram", 1.0, 1.0, 1.0)], TASKS, LENGTHS)
    assert (made["ratio"], made["identical"], made["best"]) == (None, None, True)


def test_same_by_ids_where_both_have_them() -> None:
    assert same_answer(said("a", 1.0, ids=[1]), said("b", 1.0, ids=[1]))
    assert not same_answer(said("a", 1.0, ids=[1]), said("a", 1.0, ids=[2]))
    assert same_answer(said("a", 1.0, ids=[1]), said("a", 1.0))
    assert not same_answer(said("a", 1.0), said("b", 1.0))


def test_speed_is_tokens_over_time() -> None:
    assert speed([said("", 1.0, 30), said("", 3.0, 10)]) == 10.0
    assert speed([]) is None


def test_tau_is_tokens_that_arrive_together() -> None:
    twice = Answer("a", None, 3, (Arrival(1.0, 1), Arrival(2.0, 4)), "stop")
    (made,) = all_figures([Row("E", "a", "m", {"1": twice, "2": said("b", 1.0, 4)})], TASKS, LENGTHS)
    assert made["tau"] == 3.0


def test_the_table_marks_the_best_mode() -> None:
    made = all_figures([row(PLAIN, 1.0, 1.0, 1.0), row("a", 0.5, 0.5, 0.5), row("b", 0.6, 0.6, 0.6)], TASKS, LENGTHS)
    lines = table([{**each, "other_prompts": 0} for each in made], ["math", "qa"]).splitlines()
    assert lines[0] == "| engine | precision | mode | tok/s | x plain | identical to own plain | tau | math | qa |"
    assert lines[3] == "| E | bf16 | **a** | 20 | 2.00 | 3/3 | 10.00 | 20 | 20 |"
    assert [line.count("|") for line in lines] == [10] * 5


def test_contenders_start_with_their_plain_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers_contenders, "gguf_source", lambda place, kind: tmp_path / f"{kind}.gguf")
    seen: set[tuple[str, str]] = set()
    for each in peers_contenders.contenders(Place(tmp_path, "m", 2)):
        kind = each.engine, each.precision
        assert (each.mode == PLAIN) is (kind not in seen), each.name
        seen.add(kind)
    assert {engine for engine, _ in seen} == {"Outrider", "Transformers", "OpenVINO GenAI", "llama.cpp", "vLLM"}


SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "m"}]}).encode())
print("starting", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_awaited_and_ended(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "logs" / "server.log"
    with server("it", [sys.executable, "-c", SERVER, str(port)], port, log, {}) as subject:
        assert subject.model == "m"
    assert "starting" in log.read_text()
    with pytest.raises(ConfigError, match="cannot connect"):
        type(subject)("again", f"http://127.0.0.1:{port}")


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('x'); sys.exit('ImportError: no torch')"]
    with (
        pytest.raises(PeerError, match="code 1 before it answered: ImportError: no torch"),
        _started(command, tmp_path),
    ):
        pass


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(PeerError, match=r"did not answer within 0\.1 s"), _started(command, tmp_path, 0.1):
        pass


def test_a_server_that_is_not_installed(tmp_path: Path) -> None:
    with (
        pytest.raises(PeerError, match="cannot be started: No such file"),
        _started([str(tmp_path / "none")], tmp_path),
    ):
        pass


@contextmanager
def _started(command: list[str], folder: Path, patience: float = 30.0) -> Iterator[Subject]:
    with server("it", command, free_port(), folder / "log", {}, patience) as subject:
        yield subject


def test_a_model_of_another_size_than_its_precision_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\0" * 1040)
    check_size(path, "bf16", 1000)
    with pytest.raises(ValueError, match="weights in int8"):
        check_size(path, "int8", 1000)
