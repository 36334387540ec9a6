"""Survival from a record of `outrider bench`: the right configuration, pooled, or one line of refusal."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from outrider.bench.record import SCHEMA, Acceptance, Answer, Arrival, Run, Sample, Settings, Task
from outrider.bench.record_json import run_to_json
from outrider.errors import ConfigError
from outrider.plan.acceptance import BENCH_SCHEMA, Estimate, assumed, choose, read_measured

NGRAM = {"method": "ngram", "num_speculative_tokens": 2}
DRAFT = {"method": "draft_model", "model": "small", "num_speculative_tokens": 3}


def sample(configuration: str, task: int, rounds: tuple[tuple[int, int], ...], temperature: float = 0.0) -> Sample:
    """One answer whose rounds drafted and kept as given."""
    acceptance = Acceptance.total(Acceptance.of_round(drafted, kept, kept + 1) for drafted, kept in rounds)
    arrivals = (Arrival(0.1, 1), Arrival(1.0, max(1, acceptance.emitted - 1)))
    answer = Answer("", None, 3, arrivals, "length", acceptance)
    return Sample(Task(f"t{task}", "chat", "p"), configuration, Settings(temperature), 0, 1, answer)


def record(*samples: Sample, **configs: dict[str, Any]) -> dict[str, Any]:
    names = tuple(dict.fromkeys(each.configuration for each in samples))
    details = {name: {"speculative_config": configs.get(name)} for name in names}
    return run_to_json(Run(samples, names, names[0], details, {}))


PLAIN = sample("plain", 0, ((0, 0), (0, 0)))
FEW = sample("ngram", 0, ((2, 2), (2, 1), (2, 0), (2, 0)))
MORE = sample("ngram", 0, ((2, 2),) * 4, temperature=1.0)


def test_the_schema_is_the_bench_s() -> None:
    assert BENCH_SCHEMA == SCHEMA


def test_survival_of_a_real_record() -> None:
    (measured,) = read_measured(record(PLAIN, FEW, ngram=NGRAM), "r.json")
    assert (measured.configuration, measured.method, measured.model, measured.rounds) == ("ngram", "ngram", None, 4)
    assert measured.estimate.survival == (0.5, 0.25)
    assert measured.estimate.source == "measured, ngram, 4 rounds"
    # One prompt has no interval.
    assert (measured.estimate.low, measured.estimate.high) == (1.0, 1.0)


def test_rounds_without_a_draft_are_counted() -> None:
    half = sample("ngram", 0, ((2, 2), (0, 0), (2, 1), (0, 0)))
    (measured,) = read_measured(record(PLAIN, half, ngram=NGRAM), "r.json")
    assert measured.estimate.drafting == 0.5
    assert measured.estimate.survival == (0.5, 0.25)
    (always,) = read_measured(record(PLAIN, FEW, ngram=NGRAM), "r.json")
    assert always.estimate.drafting == 1.0


def test_lengths_that_the_engine_chose_say_nothing_of_the_drafter() -> None:
    chosen = sample("auto", 0, ((2, 2), (1, 0), (0, 0)))
    (measured,) = read_measured(record(PLAIN, chosen, FEW, auto={"method": "auto"}, ngram=NGRAM), "r.json")
    assert measured.configuration == "ngram"
    with pytest.raises(ConfigError, match=r"the engine chose its draft lengths here.*--k 4"):
        read_measured(record(PLAIN, chosen, auto={"method": "auto", "num_speculative_tokens": None}), "r.json")


def test_settings_are_pooled_by_rounds() -> None:
    (measured,) = read_measured(record(PLAIN, FEW, MORE, ngram=NGRAM), "r.json")
    assert measured.rounds == 8
    assert measured.estimate.survival == (0.75, 0.625)


def test_the_interval_of_tau_goes_along() -> None:
    document = record(PLAIN, FEW, sample("ngram", 1, ((2, 2),) * 4), ngram=NGRAM)
    (row,) = (row for row in document["summary"]["rows"] if row["configuration"] == "ngram")
    (measured,) = read_measured(document, "r.json")
    estimate, tau = measured.estimate, row["tau"]
    assert tau["low"] < tau["mean"] < tau["high"]
    assert (estimate.low, estimate.high) == (tau["low"] / tau["mean"], tau["high"] / tau["mean"])


def test_a_record_without_samples_is_enough() -> None:
    brief = {name: each for name, each in record(PLAIN, FEW, ngram=NGRAM).items() if name not in ("samples", "tasks")}
    assert read_measured(brief, "r.json") == read_measured(record(PLAIN, FEW, ngram=NGRAM), "r.json")


def chosen(document: dict[str, Any], method: str, *models: str) -> str:
    return choose(read_measured(document, "r.json"), method, models, "r.json").source.split(",")[1].strip()


def test_the_drafter_asked_for_is_chosen() -> None:
    document = record(PLAIN, FEW, sample("small", 0, ((3, 3),)), ngram=NGRAM, small=DRAFT)
    assert chosen(document, "ngram") == "ngram"
    assert chosen(document, "draft_model", "DRAFT", "small") == "small"
    assert chosen(document, "draft_model") == "small"
    with pytest.raises(ConfigError, match=r"r.json has no 'draft_model other', only 'ngram', 'small'; measure it"):
        chosen(document, "draft_model", "other")


def test_the_longest_drafts_are_chosen_then_the_most_rounds() -> None:
    short, long = sample("short", 0, ((1, 1),) * 9), sample("long", 0, ((2, 2),) * 2)
    more = sample("more", 0, ((2, 1),) * 3)
    configs = {"short": NGRAM, "long": NGRAM, "more": NGRAM}
    assert chosen(record(PLAIN, short, long, **configs), "ngram") == "long"
    assert chosen(record(PLAIN, long, more, **configs), "ngram") == "more"


def test_a_server_that_does_not_say_how_it_drafts_may_be_meant() -> None:
    server = sample("server", 0, ((5, 5),))
    assert chosen(record(PLAIN, server), "spire") == "server"
    # But what says that it is the one asked for goes first.
    assert chosen(record(PLAIN, server, FEW, ngram=NGRAM), "ngram") == "ngram"


def test_assumed() -> None:
    assert assumed(0.5, 2) == Estimate((0.5, 0.25), "assumed 0.5")
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="must be a probability from 0 to 1"):
            assumed(alpha, 2)


def damaged(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document: Any = copy.deepcopy(record(PLAIN, FEW, ngram=NGRAM))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return dict(document)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "schema 'None' is not 'outrider.bench/1'"),
        ({"schema": "outrider.bench/0"}, "schema 'outrider.bench/0' is not"),
        ({"schema": SCHEMA}, "the record is damaged"),
        (record(PLAIN), "nothing drafted in this record"),
        (damaged(("summary", "rows", 1, "acceptance"), {"drafted": 1}), "the record is damaged"),
        (damaged(("summary", "rows", 1, "acceptance", "rounds"), 0), "the record is damaged"),
        (damaged(("summary", "rows", 1, "acceptance", "survival"), [0.3, 0.4]), "rises or is no share"),
        (damaged(("summary", "rows", 1, "acceptance", "survival"), [1.5]), "rises or is no share"),
        (damaged(("summary", "rows", 1, "tau", "low"), "x"), "the record is damaged"),
        (damaged(("details", "ngram"), None), "the record is damaged"),
    ],
)
def test_refused(document: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_measured(document, "r.json")
    assert str(caught.value).startswith("r.json: ")
