"""The harness: who is asked what, when and in which order, and that it finds a ratio that was planted."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.bench.engine_subject import EngineSubject
from outrider.bench.harness import count_samples, measure, task_seed
from outrider.bench.record import Run, Sample, Settings, Task
from outrider.bench.subject import Request
from outrider.bench.summary import summarise
from outrider.errors import ConfigError
from tests.fake_model import FakeModels, fake_models
from tests.unit.scripted_bench import (
    GREEDY,
    FakeClock,
    RecordingSubject,
    completions,
    pass_seconds,
    toy_llm,
    true_seconds,
)

if TYPE_CHECKING:
    from outrider.models.base import Feed

TASKS = [Task(f"t/{i}", "c", f"prompt {i}") for i in range(3)]
COLD, HOT = Settings(temperature=0.0), Settings(temperature=1.0)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    return fake_models(monkeypatch)


Calls = list[tuple[str, list[Request], Settings]]


def test_subjects_alternate_prompt_by_prompt_and_take_turns_in_going_first() -> None:
    calls: Calls = []
    subjects = [RecordingSubject(name, calls) for name in ("a", "b")]
    samples = list(measure(subjects, TASKS, [COLD, HOT], repeats=2))
    order = [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")]
    tasks = ["t/0", "t/1", "t/2"] * 2
    expected = [
        (name, task, temperature)
        for names, task in zip(order, tasks, strict=True)
        for temperature in (0.0, 1.0)
        for name in names
    ]
    assert [(name, r.task.id, s.temperature) for name, (r,), s in calls[4:]] == expected, "four warm-ups come first"
    assert [(s.configuration, s.task.id, s.settings.temperature) for s in samples] == expected
    assert [sample.repeat for sample in samples] == [0] * 12 + [1] * 12


def test_everybody_goes_first_equally_often_under_every_setting() -> None:
    calls: Calls = []
    subjects = [RecordingSubject(name, calls) for name in "abc"]
    samples = list(measure(subjects, [Task(f"{i}", "c", "p") for i in range(6)], [COLD, HOT]))
    firsts = Counter((samples[i].configuration, samples[i].settings) for i in range(0, len(samples), 3))
    assert set(firsts.values()) == {2}
    assert len(firsts) == 6


def test_warm_up_is_short_unknown_to_the_workload_and_left_out() -> None:
    calls: Calls = []
    samples = list(measure([RecordingSubject("a", calls)], TASKS, [COLD]))
    (name, (request,), _), *rest = calls
    assert (name, request.task.max_tokens) == ("a", 16)
    assert request.task.prompt not in [task.prompt for task in TASKS]
    assert request.seed == task_seed(0, request.task.id)
    assert [sample.task for sample in samples] == TASKS
    assert len(rest) == 3


def test_everybody_is_warm_under_every_setting_and_in_company() -> None:
    calls: Calls = []
    subjects = [RecordingSubject(name, calls) for name in "ab"]
    list(measure(subjects, TASKS, [COLD, HOT], batch=2))
    warmed = [(name, len(requests), s) for name, requests, s in calls[:4]]
    assert warmed == [(name, 2, settings) for name in "ab" for settings in (COLD, HOT)]
    asked = [request.task for request in calls[0][1]]
    assert len({task.prompt for task in asked}) == 2, "a server may keep a prompt that it has seen"
    assert all(task.id.startswith("warm-up/") for _, requests, _ in calls[:4] for task in (r.task for r in requests))
    assert not any(r.task.id.startswith("warm-up/") for _, requests, _ in calls[4:] for r in requests)


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3]), (8, [3])])
def test_a_batch_is_served_at_once(batch: int, sizes: list[int]) -> None:
    calls: Calls = []
    subjects = [RecordingSubject("a", calls), RecordingSubject("b", calls)]
    samples = list(measure(subjects, TASKS, [COLD], batch=batch))
    assert [len(requests) for name, requests, _ in calls[2:] if name == "a"] == sizes
    assert {sample.batch for sample in samples} == {batch}
    assert len(samples) == count_samples(subjects, TASKS, [COLD]) == 6
    assert all(sample.answer.text == sample.task.prompt for sample in samples), "each task has its own answer"
    groups = {sample.task.id: sample.group for sample in samples}
    assert groups == {f"t/{i}": f"t/{i // batch * batch}" for i in range(3)}


def test_seeds_belong_to_tasks_and_are_the_same_everywhere() -> None:
    calls: Calls = []
    subjects = [RecordingSubject("a", calls), RecordingSubject("b", calls)]
    list(measure(subjects, TASKS, [COLD], repeats=2))
    seeds = {(r.task.id, r.seed) for _, requests, _ in calls[2:] for r in requests}
    assert seeds == {(task.id, task_seed(0, task.id)) for task in TASKS}
    assert len({seed for _, seed in seeds}) == 3
    assert task_seed(0, "t/0") == 1654866995, "a record made elsewhere can be repeated here"
    assert task_seed(1, "t/0") != task_seed(0, "t/0")
    assert task_seed(None, "t/0") is None


def test_an_interrupt_leaves_what_was_measured() -> None:
    calls: Calls = []
    subjects = [RecordingSubject("a", calls), RecordingSubject("b", calls, fail_on=8)]
    samples: list[Sample] = []
    with pytest.raises(KeyboardInterrupt):
        for sample in measure(subjects, TASKS, [COLD]):
            samples.append(sample)
    measured = [(sample.configuration, sample.task.id) for sample in samples]
    assert measured == [("a", "t/0"), ("b", "t/0"), ("b", "t/1"), ("a", "t/1"), ("a", "t/2")]


@pytest.mark.parametrize(
    ("names", "tasks", "batch", "repeats", "message"),
    [
        ("ab", TASKS, 0, 1, "batch=0"),
        ("ab", TASKS, 1, 0, "repeats=0"),
        ("aa", TASKS, 1, 1, "configuration 'a' is there twice"),
        ("ab", [*TASKS, TASKS[1]], 1, 1, "task id 't/1' is there twice"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    names: str, tasks: list[Task], batch: int, repeats: int, message: str
) -> None:
    calls: Calls = []
    with pytest.raises(ConfigError, match=message):
        measure([RecordingSubject(name, calls) for name in names], tasks, [COLD], batch=batch, repeats=repeats)
    assert calls == []


# --- the proof: a planted ratio is found ---------------------------------------------------------------------

K = 4
MIXED = completions(*[1, 2, 3] * 8)
ALIKE = completions(*[2] * 30)


def planted(tasks: Sequence[Task]) -> float:
    """The geometric mean of the per-prompt ratios that the scripted times make."""
    logs = [
        math.log(true_seconds(t, GREEDY.max_tokens, 0, 0) / true_seconds(t, GREEDY.max_tokens, int(t.prompt[0]), K))
        for t in tasks
    ]
    return math.exp(math.fsum(logs) / len(logs))


def run(
    models: FakeModels,
    tasks: Sequence[Task],
    clock: FakeClock,
    seconds: Callable[[Sequence[Feed]], float] = pass_seconds,
    speed_of_clock: float = 1.0,
    in_turn: bool = True,
) -> Run:
    plain = EngineSubject("plain", toy_llm(models, clock, seconds), clock=clock, sleep=clock.sleep)
    speculative = EngineSubject(
        "scripted", toy_llm(models, clock, seconds, K), clock=lambda: clock() * speed_of_clock, sleep=clock.sleep
    )
    blocks = [[plain, speculative]] if in_turn else [[plain], [speculative]]
    samples = tuple(sample for block in blocks for sample in measure(block, tasks, [GREEDY]))
    return Run(samples, ("plain", "scripted"), "plain", {}, {})


def recovers(run: Run, truth: float) -> bool:
    """The criterion: the ratio within 2 %, and the interval covers it."""
    (row,) = [row for row in summarise(run)["rows"] if row["configuration"] != run.baseline]
    ratio = row["ratio"]
    return abs(ratio["mean"] / truth - 1) < 0.02 and bool(ratio["low"] <= truth <= ratio["high"])


def noisy(seed: int) -> Callable[[Sequence[Feed]], float]:
    noise = random.Random(seed)
    return lambda feeds: pass_seconds(feeds) * noise.uniform(0.9, 1.1)


def test_scripted_times_give_the_planted_ratio_exactly(models: FakeModels) -> None:
    found = run(models, MIXED, FakeClock())
    assert recovers(found, planted(MIXED))
    row = summarise(found)["rows"][1]
    assert row["ratio"]["mean"] == pytest.approx(planted(MIXED), rel=1e-9)
    assert row["identical"] == {"same": 24, "of": 24}
    for kept in (1, 2, 3):
        part = row["categories"][f"kept {kept}"]
        assert part["ratio"]["mean"] == pytest.approx(planted(completions(kept)), rel=1e-9)
        # 24 tokens are a whole number of rounds, of which the last may have no room for all its drafts.
        assert part["tau"]["mean"] == pytest.approx(kept + 1)


@pytest.mark.parametrize("tasks", [MIXED, ALIKE], ids=["mixed", "alike"])
def test_noise_of_10_percent_a_step_hides_nothing(models: FakeModels, tasks: list[Task]) -> None:
    """2 % is more than four standard deviations here; the interval of "alike" misses the truth for a seed in twenty."""
    assert recovers(run(models, tasks, FakeClock(), noisy(0)), planted(tasks))


def test_a_machine_that_slows_down_favours_nobody(models: FakeModels) -> None:
    clock = FakeClock()

    def drift(feeds: Sequence[Feed]) -> float:
        return pass_seconds(feeds) * (1 + (clock.now - 100) / 8)

    assert recovers(run(models, ALIKE, clock, drift), planted(ALIKE))
    assert clock.now > 110, "it did slow down"
    clock.now = 100.0
    assert not recovers(run(models, ALIKE, clock, drift, in_turn=False), planted(ALIKE)), "one after the other"


def test_swapped_labels_and_a_biased_clock_are_not_taken_for_the_truth(models: FakeModels) -> None:
    """The negative controls: what the criterion must refuse."""
    truth = planted(ALIKE)
    good = run(models, ALIKE, FakeClock(), noisy(0))
    other = {"plain": "scripted", "scripted": "plain"}
    swapped = [replace(sample, configuration=other[sample.configuration]) for sample in good.samples]
    assert not recovers(replace(good, samples=tuple(swapped)), truth)
    assert not recovers(run(models, ALIKE, FakeClock(), noisy(0), speed_of_clock=1.04), truth)
    assert not recovers(run(models, ALIKE, FakeClock(), noisy(0), speed_of_clock=0.96), truth)
    assert recovers(run(models, ALIKE, FakeClock(), noisy(0), speed_of_clock=1.001), truth)
