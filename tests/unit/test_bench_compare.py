"""Two scripted runs against each other: the true ratio comes out, on common prompts only."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from outrider.bench.compare import Compared, Place, compare_runs, comparison_json, comparison_text, verdicts, warnings
from outrider.bench.record import Answer, Arrival, Run
from outrider.bench.record_json import run_to_json
from outrider.cli.main import run as command
from outrider.errors import ConfigError
from tests.unit.bench_runs import GREEDY, SAMPLED, TASKS, answer, broken, run_of, usual

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Captured = pytest.CaptureFixture[str]


def timed(seconds: float, tokens: int = 10) -> Answer:
    return replace(answer(), arrivals=(Arrival(seconds, tokens),))


def compared(a: Run, b: Run) -> Compared:
    (row,) = compare_runs(a, b)
    return row


def runs(a: Sequence[float], b: Sequence[float], **fields: Any) -> tuple[Run, Run]:
    """Runs of one configuration that took so many seconds a prompt."""
    one, other = (run_of({"x": [timed(each) for each in seconds]}, **fields) for seconds in (a, b))
    return one, other


def test_the_ratio_is_the_geometric_mean_over_prompts() -> None:
    # B takes half of the time, the same, and twice it: no speedup at all.
    row = compared(*runs([1, 1, 1], [0.5, 1, 2]))
    assert row.mean == pytest.approx(1.0)
    assert row.prompts == 3
    assert row.low is not None
    assert row.high is not None
    assert row.low < 1 < row.high


def test_it_is_b_over_a() -> None:
    assert compared(*runs([1, 2, 3, 4], [0.5, 1, 1.5, 2])).mean == pytest.approx(2.0)
    assert compared(*runs([0.5, 1, 1.5, 2], [1, 2, 3, 4])).mean == pytest.approx(0.5)


@pytest.mark.parametrize(("true", "covered"), [(1.25, True), (1.0, False)])
def test_the_interval_covers_the_true_ratio_under_noise(true: float, covered: bool) -> None:
    """200 prompts with 20 % noise: sigma of the mean is 0.02, so 1.0 lies ten of them away from a ratio of 1.25."""
    noise = random.Random(5)
    tasks = [replace(TASKS[0], id=f"n/{i}") for i in range(200)]
    a = [1 * noise.lognormvariate(0, 0.2) for _ in tasks]
    b = [1 / 1.25 * noise.lognormvariate(0, 0.2) for _ in tasks]
    row = compared(*runs(a, b, tasks=tasks))
    assert row.low is not None
    assert row.high is not None
    assert (row.low <= true <= row.high) == covered
    assert row.high - row.low < 0.15


def test_only_common_prompts_count() -> None:
    a = run_of({"x": [timed(1), timed(1)]}, tasks=TASKS[:2])
    b = run_of({"x": [timed(0.5), timed(0.1)]}, tasks=TASKS[1:3])
    row = compared(a, b)
    assert row.mean == pytest.approx(2.0)
    assert (row.prompts, row.low) == (1, None)


def test_the_same_id_with_another_text_is_another_prompt() -> None:
    other = [replace(task, prompt="something else") for task in TASKS]
    with pytest.raises(ConfigError, match="nothing in common"):
        compare_runs(usual(), usual(tasks=other))


def test_failed_answers_are_no_speed() -> None:
    a = run_of({"x": [timed(1), timed(1), broken()]})
    b = run_of({"x": [timed(0.5), replace(timed(0.1), error="broken off"), timed(1)]})
    assert compared(a, b).prompts == 1


def test_repeats_are_one_prompt() -> None:
    a = run_of({"x": [timed(1), timed(1)]}, tasks=TASKS[:2])
    again = tuple(replace(s, repeat=1, answer=timed(3)) for s in a.samples)
    b = run_of({"x": [timed(2), timed(2)]}, tasks=TASKS[:2])
    row = compared(replace(a, samples=a.samples + again), b)
    # 20 tokens in 4 s against 10 in 2 s.
    assert row.mean == pytest.approx(1.0)
    assert row.prompts == 2


def test_prompts_of_a_batch_are_one_unit_of_evidence() -> None:
    together = compared(*runs([1, 1, 1, 1], [0.5, 0.5, 1, 1], group="t/0", batch=4))
    assert (together.prompts, together.low) == (4, None)


def test_settings_and_company_must_be_the_same() -> None:
    for fields in ({"settings": SAMPLED}, {"batch": 2}, {"rate": 1.0, "batch": 0}):
        with pytest.raises(ConfigError, match="nothing in common"):
            compare_runs(usual(), usual(**fields))
    named = r"A: plain at T=0, batch 1, max_tokens 21; ngram k=2 at T=0, .*; B: other at T=0, batch 1, max_tokens 21\)"
    with pytest.raises(ConfigError, match=named):
        compare_runs(usual(), run_of({"other": [answer()] * 4}))


def test_a_greedy_answer_has_no_seed() -> None:
    assert len(compare_runs(usual(), usual(settings=replace(GREEDY, seed=5)))) == 2
    with pytest.raises(ConfigError):
        compare_runs(usual(settings=SAMPLED), usual(settings=replace(SAMPLED, seed=5)))


def test_another_machine_or_setup_is_warned_of() -> None:
    assert warnings(usual(), usual()) == []
    b = usual(provenance={"threads": 4, "time": "later"}, details={"plain": {"model": "toy", "dtype": "float32"}})
    assert warnings(usual(), b) == [
        "threads differs: 2 in A, 4 in B",
        'plain: dtype differs: null in A, "float32" in B',
    ]


def test_what_is_in_no_ratio_is_warned_of() -> None:
    a = run_of({"x": [timed(1)] * 4, "y": [timed(1)] * 4})
    b = run_of({"x": [timed(1), broken(), timed(1), timed(1)], "y": [broken()] * 4, "z": [timed(1)] * 2})
    where = "at T=0, batch 1, max_tokens 21: prompts answered in"
    assert warnings(a, b) == [f"x {where} A only: 1 of 4", f"y {where} A only: 4 of 4", f"z {where} B only: 2 of 2"]


def test_rows_as_text_and_json() -> None:
    rows = compare_runs(usual(), usual())
    assert comparison_text(rows).splitlines()[-1] == "ngram k=2      0      1        4  1.00 [1.00, 1.00]"
    row = comparison_json(rows)[1]
    assert row == {
        "configuration": "ngram k=2",
        "temperature": 0.0,
        "batch": 1,
        "rate": None,
        "prompts": 4,
        "ratio": 1.0,
        "low": 1.0,
        "high": 1.0,
    }


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.80, 0.94, "and the whole interval is below"),
        (0.80, 0.97, "but the interval covers 0.95: it may be chance"),
        (None, None, "one prompt gives no interval"),
    ],
)
def test_a_verdict_says_how_sure_it_is(low: float | None, high: float | None, words: str) -> None:
    place = Place("x", GREEDY, 1, None)
    (said,) = verdicts([Compared(place, 4, 0.9, low, high), Compared(place, 4, 0.95, low, high)], 0.95)
    assert said == f"x at T=0, batch 1, max_tokens 21, seed 0: ratio 0.900 is below 0.95, {words}"


# --- the command --------------------------------------------------------------------------------------------


def written(folder: Path, *both: Run) -> list[str]:
    paths = [folder / f"{name}.json" for name in "ab"]
    for path, each in zip(paths, both, strict=True):
        path.write_text(json.dumps(run_to_json(each)))
    return ["bench", "compare", *map(str, paths)]


def test_the_command_prints_the_ratio(tmp_path: Path, capsys: Captured) -> None:
    arguments = written(tmp_path, *runs([1, 1], [0.8, 0.8]))
    assert command(arguments) == 0
    out, err = capsys.readouterr()
    assert "1.25 [1.25, 1.25]" in out
    assert err == ""
    assert command([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["ratio"] == pytest.approx(1.25)


@pytest.mark.parametrize(("limit", "code"), [("0.75", 0), ("0.85", 1)])
def test_fail_below_is_an_exit_code(tmp_path: Path, capsys: Captured, limit: str, code: int) -> None:
    arguments = written(tmp_path, *runs([0.8, 0.8], [1, 1]))
    assert command([*arguments, "--fail-below", limit]) == code
    out, err = capsys.readouterr()
    assert "0.80" in out
    assert err.count("ratio 0.800 is below 0.85, and the whole interval is below") == code


def test_differences_are_warned_of_on_stderr(tmp_path: Path, capsys: Captured) -> None:
    assert command(written(tmp_path, usual(), usual(provenance={"threads": 1}))) == 0
    assert capsys.readouterr().err == "outrider: warning: threads differs: 2 in A, 1 in B\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff", "not JSON"),
        (b"{}", "schema"),
        (b"[" * 100_000, "not JSON"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(
    tmp_path: Path, capsys: Captured, content: bytes | None, message: str
) -> None:
    arguments = written(tmp_path, usual(), usual())
    (tmp_path / "b.json").unlink() if content is None else (tmp_path / "b.json").write_bytes(content)
    assert command(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("outrider: ")
    assert err.count("\n") == 1
    assert message in err
    assert "b.json" in err


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_limit_is_a_ratio(tmp_path: Path, capsys: Captured, limit: str) -> None:
    assert command([*written(tmp_path, usual(), usual()), "--fail-below", limit]) == 2
    assert "must be a ratio above 0" in capsys.readouterr().err
