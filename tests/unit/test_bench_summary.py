"""Figures of a run written by hand, so that every one of them is known; and the record as JSON and back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from outrider.bench.load import Limits
from outrider.bench.record import Acceptance, Answer, Arrival, Run, Sample, Settings, Task
from outrider.bench.record_json import run_from_json, run_to_json
from outrider.bench.summary import summarise
from outrider.errors import ConfigError
from outrider.types import PhaseSeconds

COLD, HOT = Settings(temperature=0.0), Settings(temperature=1.0)
STORY, CODE = Task("w/0", "story", "Once"), Task("w/1", "code", "def", chat=False, max_tokens=4)


def answer(*arrivals: tuple[float, int], rounds: Acceptance | None = None, ids: tuple[int, ...] | None = ()) -> Answer:
    """Arrivals as (seconds, tokens); token ids 0, 1, 2 ... unless given."""
    count = sum(tokens for _, tokens in arrivals)
    token_ids = tuple(range(count)) if ids == () else ids
    steps = tuple(Arrival(*each) for each in arrivals)
    return Answer("text", token_ids, 5, steps, "length", rounds, PhaseSeconds(target=0.5, verify=0.25))


def sample(task: Task, configuration: str, reply: Answer, **given: Any) -> Sample:
    return replace(Sample(task, configuration, COLD, 0, 1, reply), **given)


def run(*samples: Sample, **given: Any) -> Run:
    return Run(samples, ("plain", "fast"), "plain", given.get("details", {}), given.get("provenance", {}))


PLAIN_STORY = answer((1.0, 1), (1.5, 1), (2.0, 1), (2.5, 1), rounds=Acceptance(4, emitted=4))
FAST_STORY = answer((1.0, 2), (1.25, 2), rounds=Acceptance.of_round(2, 1, 2) + Acceptance.of_round(2, 2, 2))
PLAIN_CODE = answer((1.0, 1), (2.0, 1), rounds=Acceptance(2, emitted=2))
FAST_CODE = answer((1.0, 1), (1.25, 1), rounds=Acceptance.of_round(1, 0, 1) + Acceptance.of_round(0, 0, 1))
BOTH = run(
    sample(STORY, "plain", PLAIN_STORY),
    sample(STORY, "fast", FAST_STORY),
    sample(CODE, "plain", PLAIN_CODE),
    sample(CODE, "fast", FAST_CODE),
)


def rows(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = summarise(run)["rows"]
    return found


def test_speeds_and_their_paired_ratio() -> None:
    plain, fast = rows(BOTH)
    assert (plain["configuration"], fast["configuration"]) == ("plain", "fast")
    assert (plain["requests"], plain["errors"], plain["prompts"], plain["tokens"]) == (2, 0, 2, 6)
    assert plain["tokens_per_second"] == plain["request_tokens_per_second"] == pytest.approx(6 / 4.5)
    assert plain["decode_tokens_per_second"] == pytest.approx((3 + 1) / (1.5 + 1.0))
    assert fast["tokens_per_second"] == pytest.approx(6 / 2.5)
    # 4 tokens in 2.5 s against 1.25 s, 2 tokens in 2 s against 1.25 s: every prompt counts the same.
    assert fast["ratio"]["mean"] == pytest.approx(math.sqrt(2.0 * 1.6))
    assert (fast["ratio"]["low"], fast["ratio"]["high"]) == pytest.approx((1.6, 2.0))
    assert fast["ratio"]["prompts"] == 2
    assert fast["decode_ratio"]["mean"] == pytest.approx(math.sqrt((2 / 0.25) / 2 * (1 / 0.25) / 1))
    assert plain["ratio"] is plain["decode_ratio"] is plain["identical"] is None


def test_a_round_is_one_gap_and_tpot_is_per_token() -> None:
    _, fast = rows(BOTH)
    assert fast["itl"] == pytest.approx({"p50": 0.25, "p90": 0.25, "p99": 0.25}), "two tokens came, one wait"
    assert fast["tpot"]["p50"] == pytest.approx((0.25 / 2 + 0.25) / 2)
    assert fast["ttft"]["p99"] == pytest.approx(1.0)
    one_shot = rows(run(sample(STORY, "plain", answer((1.0, 3)))))[0]
    assert one_shot["itl"] is one_shot["tpot"] is one_shot["decode_tokens_per_second"] is None


def test_acceptance_adds_up_by_position() -> None:
    plain, fast = rows(BOTH)
    assert fast["acceptance"] == {
        "rounds": 4,
        "drafted": 5,
        "accepted": 3,
        "emitted": 6,
        "conditional": [pytest.approx(2 / 3), pytest.approx(1 / 2)],
        "survival": [pytest.approx(2 / 4), pytest.approx(1 / 4)],
    }
    assert fast["acceptance_rate"] == pytest.approx(3 / 5)
    assert fast["tau"] == {"mean": 1.5, "low": 1.0, "high": 2.0}
    assert plain["tau"]["mean"] == 1.0
    assert plain["acceptance_rate"] is None
    silent = rows(run(sample(STORY, "plain", answer((1.0, 1), (2.0, 1)))))[0]
    assert silent["tau"] is silent["acceptance"] is None


def test_answers_without_a_round_are_no_evidence_of_tau() -> None:
    """Three in four resamples would hold nothing but them, and nothing over nothing is no number."""
    empty = [sample(replace(CODE, id=f"e/{i}"), "plain", answer(rounds=Acceptance())) for i in range(3)]
    (row,) = rows(run(sample(STORY, "plain", PLAIN_STORY), *empty))
    assert row["tau"] == {"mean": 1.0, "low": None, "high": None}


def test_a_position_that_never_survived_is_listed_as_zero() -> None:
    (row,) = rows(run(sample(STORY, "plain", answer((1.0, 1), rounds=Acceptance.of_round(3, 0, 1)))))
    assert (row["acceptance"]["conditional"], row["acceptance"]["survival"]) == ([0.0], [0.0])


def test_categories_are_rows_of_their_own() -> None:
    _, fast = rows(BOTH)
    assert list(fast["categories"]) == ["story", "code"]
    code = fast["categories"]["code"]
    assert code["ratio"] == {"mean": pytest.approx(1.6), "low": None, "high": None, "prompts": 1}
    assert code["tokens_per_second"] == pytest.approx(2 / 1.25)


def test_repeats_of_a_prompt_are_one_prompt() -> None:
    again = [replace(each, repeat=repeat) for repeat in range(4) for each in BOTH.samples]
    fast, once = rows(run(*again))[1], rows(BOTH)[1]
    assert fast["ratio"] == once["ratio"], "no narrower for measuring the same prompts again"
    assert fast["tau"] == once["tau"]
    assert (fast["requests"], fast["prompts"]) == (8, 2)


def test_settings_and_batches_are_compared_with_their_own_baseline() -> None:
    hot = [replace(each, settings=HOT) for each in BOTH.samples]
    slow = [replace(each, batch=2, answer=PLAIN_CODE) for each in BOTH.samples]
    found = rows(run(*BOTH.samples, *hot, *slow))
    keys = [(row["configuration"], row["settings"]["temperature"], row["batch"]) for row in found]
    assert keys == [(name, *rest) for name in ("plain", "fast") for rest in ((0.0, 1), (0.0, 2), (1.0, 1))]
    assert [row["ratio"] and round(row["ratio"]["mean"], 3) for row in found[3:]] == [1.789, 1.0, 1.789]


def test_a_failed_request_is_counted_and_nothing_else() -> None:
    broken = replace(FAST_CODE, error="the connection was lost")
    _, fast = rows(run(*BOTH.samples[:3], sample(CODE, "fast", broken)))
    assert (fast["requests"], fast["errors"], fast["tokens"], fast["ratio"]["prompts"]) == (1, 1, 4, 1)
    assert fast["identical"] == {"same": 1, "of": 1}
    unpaired = rows(run(sample(CODE, "plain", broken), sample(CODE, "fast", FAST_CODE)))[1]
    assert unpaired["ratio"] is unpaired["identical"] is None, "nor is it compared with"
    empty = rows(run(sample(CODE, "fast", broken)))[0]
    assert (empty["tokens_per_second"], empty["ttft"], empty["phases"]) == (None, None, None)


@pytest.mark.parametrize(
    ("ours", "theirs", "settings", "expected"),
    [
        ((0, 1), (0, 1), COLD, {"same": 1, "of": 1}),
        ((0, 1), (0, 2), COLD, {"same": 0, "of": 1}),
        ((0, 1), (0, 1), HOT, {"same": 1, "of": 1}),
        ((0, 1), None, COLD, {"same": 1, "of": 1}),
        ((0, 1), (0, 2), replace(HOT, seed=None), None),
        ((0, 1), (0, 1), replace(COLD, seed=None), {"same": 1, "of": 1}),
    ],
)
def test_identical_is_by_token_ids_where_there_are_any(
    ours: tuple[int, ...], theirs: tuple[int, ...] | None, settings: Settings, expected: dict[str, int] | None
) -> None:
    one, other = (answer((1.0, 2), ids=ids) for ids in (ours, theirs))
    found = rows(run(sample(CODE, "plain", other, settings=settings), sample(CODE, "fast", one, settings=settings)))
    assert found[1]["identical"] == expected


def test_a_batch_takes_as_long_as_its_slowest_request() -> None:
    together: dict[str, Any] = {"batch": 2, "group": STORY.id}
    found = run(
        *(replace(each, **together) for each in BOTH.samples[::2]),
        *(replace(each, **together) for each in BOTH.samples[1::2]),
    )
    plain, fast = rows(found)
    assert plain["tokens_per_second"] == pytest.approx(6 / 2.5)
    assert plain["request_tokens_per_second"] == pytest.approx(6 / 4.5)
    assert plain["phases"]["target"] == 0.5, "its steps are counted once"
    assert plain["categories"]["story"]["tokens_per_second"] is None, "no wall time is a part's own"
    assert fast["ratio"]["mean"] == pytest.approx(math.sqrt(2.0 * 1.6))
    assert fast["ratio"]["low"] is None, "its prompts shared their steps: one unit says nothing about others"


def test_phases_of_single_requests_add_up() -> None:
    assert rows(BOTH)[0]["phases"] == {"schedule": 0.0, "draft": 0.0, "target": 1.0, "verify": 0.5, "commit": 0.0}


def test_distance_to_the_bandwidth_limit() -> None:
    timed = replace(PLAIN_STORY, decode_phases=PhaseSeconds(target=0.03))
    details, machine = {"plain": {"weight_bytes": 80}}, {"machine": {"read_bandwidth": 10_000.0}}
    found = run(sample(STORY, "plain", timed), details=details, provenance=machine)
    assert summarise(found)["bandwidth"] == {
        "configuration": "plain",
        "weight_bytes": 80,
        "read_bandwidth": 10_000.0,
        "limit_seconds": pytest.approx(0.008),
        "target_seconds": pytest.approx(0.01),  # 4 rounds, of which one read the prompt
        "ratio": pytest.approx(1.25),
    }
    for missing in (
        replace(found, details={"plain": {"weight_bytes": None}}),
        replace(found, provenance={}),
        run(sample(STORY, "plain", timed, batch=2), details=details, provenance=machine),
        run(sample(STORY, "plain", PLAIN_STORY), details=details, provenance=machine),
    ):
        assert summarise(missing)["bandwidth"] is None


# --- JSON ---------------------------------------------------------------------------------------------------


def full_run() -> Run:
    hot = sample(CODE, "fast", replace(FAST_CODE, token_ids=None, phases=None, error="late\nand broken"), settings=HOT)
    opened = sample(STORY, "fast", FAST_STORY, batch=0, rate=2.5, at=0.75, group=STORY.id)
    return run(*BOTH.samples, hot, opened, details={"plain": {"k": 0}}, provenance={"argv": ["x"]})


def test_a_record_survives_json() -> None:
    document = json.loads(json.dumps(run_to_json(full_run(), Limits(ttft=1.0))))
    assert run_from_json(document) == full_run()
    assert document["summary"] == summarise(full_run(), Limits(ttft=1.0))
    assert document["samples"][0]["answer"]["arrivals"] == [[1.0, 1], [1.5, 1], [2.0, 1], [2.5, 1]]
    assert len(document["tasks"]) == 2


def test_a_record_holds_no_number_that_json_has_not() -> None:
    told = {"plain": {"figures": [math.nan, {"x": math.inf}], "n": 1.5}}
    document = run_to_json(replace(full_run(), details=told, provenance={"load": -math.inf}))
    assert document["details"] == {"plain": {"figures": [None, {"x": None}], "n": 1.5}}
    assert document["provenance"] == {"load": None}
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("arrivals", [None, [[1.0]], [["1", 1]], [[1.0, 0]], [[math.nan, 1]], [[math.inf, 1]], [5]])
def test_arrivals_are_numbers(arrivals: object) -> None:
    document = json.loads(json.dumps(run_to_json(full_run())))
    document["samples"][0]["answer"]["arrivals"] = arrivals
    with pytest.raises(ConfigError, match="damaged"):
        run_from_json(document)


@pytest.mark.parametrize("schema", [None, "outrider.bench/0", 1, ["x"]])
def test_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(ConfigError, match=r"is not .outrider\.bench/1"):
        run_from_json(run_to_json(full_run()) | {"schema": schema})


def test_what_is_no_record_is_refused() -> None:
    document = run_to_json(full_run())
    with pytest.raises(ConfigError, match="is not"):
        run_from_json([])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no samples"):
        run_from_json({key: value for key, value in document.items() if key != "samples"})
    for key, value in (
        ("tasks", []),
        ("settings", [{"heat": 1}]),
        ("configurations", ["plain"]),
        ("baseline", "none"),
        ("samples", [{"task": 0}]),
        ("details", 7),
        ("provenance", None),
        ("tasks", [{"id": "t", "category": "c", "prompt": ["p"]}] * 2),
        ("settings", [{"temperature": "0"}]),
    ):
        with pytest.raises(ConfigError, match="damaged"):
            run_from_json(document | {key: value})
