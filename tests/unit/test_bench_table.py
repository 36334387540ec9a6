"""Tables of scripted runs: the figures, their places, and lines that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.bench.load import Limits
from outrider.bench.record import Acceptance, Run
from outrider.bench.summary import summarise
from outrider.bench.table import Table, interval, notes, render, tables, text
from tests.unit.bench_runs import SAMPLED, TASKS, answer, broken, run_of, usual

if TYPE_CHECKING:
    from collections.abc import Sequence


MANY = tuple(replace(TASKS[0], id=f"many/{i}") for i in range(100))


def named(run: Run, start: str, limits: Limits | None = None) -> list[dict[str, str]]:
    """The rows of the table whose title starts so, by column; none where there is no such table."""
    summary = summarise(run, limits or Limits())
    return [
        dict(zip(table.columns, row, strict=True))
        for table in tables(summary)
        if table.title.startswith(start)
        for row in table.rows
    ]


def test_one_row_a_configuration_with_every_figure() -> None:
    plain, drafted = named(usual(), "Speed")
    # 11 tokens in 0.1 + 10 * 0.01 s against 21 in the same time.
    assert plain["tok/s"] == "55.0"
    assert drafted["tok/s"] == "105.0"
    assert plain["ratio"] == "-"
    assert drafted["ratio"] == "1.91 [1.91, 1.91]"
    assert (plain["accept"], drafted["accept"]) == ("-", "50%")
    assert drafted["tau"] == "1.91"
    assert drafted["TTFT"] == "100 (100)"
    assert drafted["ITL"] == "10.0 (10.0)"
    assert drafted["TPOT"] == "5.00 (5.00)"
    assert (drafted["configuration"], drafted["T"], drafted["batch"]) == ("ngram k=2", "0", "1")


def test_latencies_are_p50_and_p99() -> None:
    run = run_of({"plain": [answer(ttft=1, gap=0.1)] * 99 + [answer(ttft=9)]}, tasks=MANY)
    (row,) = named(run, "Speed")
    # Linear between the 99th and the 100th of a hundred: 1 + 8 * 0.01.
    assert (row["TTFT"], row["ITL"]) == ("1000 (1080)", "100 (100)")


@pytest.mark.parametrize(("tokens", "shown"), [([7, 7, 7, 7], "4/4"), ([7, 7, 8, 7], "3/4")])
def test_identical_counts_answers(tokens: Sequence[int], shown: str) -> None:
    run = run_of({"plain": [answer()] * 4, "x": [answer(token=token) for token in tokens]})
    assert named(run, "Speed")[1]["identical"] == shown


def test_categories_are_shown_when_there_are_two() -> None:
    rows = named(usual(), "By category")
    assert [(row["category"], row["configuration"], row["prompts"]) for row in rows] == [
        ("prose", "plain", "2"),
        ("prose", "ngram k=2", "2"),
        ("code", "plain", "2"),
        ("code", "ngram k=2", "2"),
    ]
    assert rows[1]["ratio"] == "1.91 [1.91, 1.91]"
    assert rows[0]["request tok/s"] == "55.0"
    # Served four at a time, a category's requests have their own speed, and the batch four times as much.
    assert named(usual(group="t/0", batch=4), "By category")[0]["request tok/s"] == "55.0"
    assert named(usual(group="t/0", batch=4), "Speed")[0]["tok/s"] == "220.0"
    assert named(usual(tasks=[replace(task, category="one") for task in TASKS]), "By category") == []


def test_drafts_and_their_positions() -> None:
    (row,) = named(usual(), "Drafts")
    assert [row[name] for name in ("rounds", "drafted", "accepted", "emitted")] == ["44", "80", "40", "84"]
    assert row["tau"] == "1.91 [1.91, 1.91]"
    # Every drafting round keeps its first draft token and loses its second; prompts' own rounds draft nothing.
    (row,) = named(usual(), "Draft tokens kept")
    assert (row["conditional %"], row["survival %"]) == ("100 0", "91 0")


def test_a_server_that_tells_no_positions_has_no_row_for_them() -> None:
    told = replace(answer(), acceptance=Acceptance(10, 8, 4, 14))
    run = run_of({"plain": [answer()] * 4, "server": [told] * 4})
    assert [row["accept"] for row in named(run, "Drafts")] == ["50.0%"]
    assert named(run, "Draft tokens kept") == []


def test_time_by_phase() -> None:
    plain, _ = named(usual(), "Time by phase")
    assert (plain["s"], plain["draft"], plain["target"], plain["verify"]) == ("0.40", "25.0%", "75.0%", "0.0%")


def test_an_open_loop_has_goodput() -> None:
    run = run_of({"plain": [answer(), answer(ttft=0.9), answer(), broken()]}, batch=0, rate=2.0)
    (row,) = named(run, "Open loop", Limits(ttft=0.5))
    assert (row["sent/s"], row["requests"], row["errors"], row["met"]) == ("2", "4", "1", "2")
    assert row["goodput"] == "2.00/s"
    title = next(table.title for table in tables(summarise(run, Limits(ttft=0.5))))
    assert title == "Open loop, goodput: requests answered with TTFT <= 500 ms"


def test_notes_tell_how_tokens_count_the_physics_and_what_failed() -> None:
    run = run_of(
        {"plain": [answer()] * 4, "server": [broken("HTTP 500"), answer(), answer(), answer()]},
        details={"server": {"acceptance": {"drafted": 10, "accepted": 4, "tau": 1.4}}},
    )
    said = notes(run, summarise(run))
    assert "a round's tokens arrive together and count once" in said[0]
    assert said[1:] == [
        "bandwidth limit: 50 MB of weights at 10.0 GB/s take 5.00 ms; a target pass of plain takes 7.50 ms, "
        "1.50 x the limit.",
        "peak memory of this process: 500 MB.",
        "server: its server counted 4 of 10 draft tokens accepted, tau 1.40 over rounds with a draft.",
        "server: 1 of 4 requests failed; the first, t/0: HTTP 500",
    ]


def test_no_line_is_too_wide_and_nothing_is_lost() -> None:
    name = "draft_model k=3 a-long-name-of-a-model dtype=float32"
    run = run_of({"plain": [answer(ttft=1.23, gap=1.2)] * 4, name: [answer(2, 1.1)] * 4}, settings=SAMPLED, batch=32)
    lines = render(run, summarise(run)).splitlines()
    assert max(map(len, lines)) <= 120
    for word in name.split():
        assert any(part in "\n".join(lines) for part in (word, word[:12]))


def test_labels_are_folded_and_figures_are_not() -> None:
    table = Table("Title", ("name", "figure"), (("a word and another", "1.5"), ("short", "22.25")))
    assert text(table, 20) == "\n".join(
        [
            "Title",
            "name          figure",
            "------------  ------",
            "a word and       1.5",
            "another",
            "short          22.25",
        ]
    )


def test_names_steer_no_terminal() -> None:
    run = run_of({"plain\x1b[2J\n": [answer(), broken("bad\x07\x1b]0;title")]})
    assert not any(ord(letter) < 32 and letter != "\n" for letter in render(run, summarise(run)))


def test_a_run_in_which_everything_failed_is_still_shown() -> None:
    run = run_of({"plain": [broken()] * 4, "x": [broken()] * 4})
    assert named(run, "Speed")[1]["tok/s"] == "-"
    assert "4 of 4 requests failed" in render(run, summarise(run))


def test_one_prompt_has_a_ratio_and_no_interval() -> None:
    assert interval({"mean": 1.25, "low": None, "high": None}) == "1.25"
    assert named(usual(tasks=TASKS[:1]), "Speed")[1]["ratio"] == "1.91"
