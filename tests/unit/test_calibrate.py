"""Calibration on a scripted clock: what is timed, in which order, what is kept, and that nothing is left behind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import outrider
from outrider.calibrate.cache import cached_curve, curve_key, curve_path, store_curve
from outrider.calibrate.timing import Grid, calibrate
from outrider.errors import ConfigError
from outrider.models.toy import ToyModel, ToyRunner
from outrider.plan.curves import CostCurve, fit_curve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.models.base import Feed, Scores

GRID = Grid(batches=(1, 3), contexts=(4, 20), rows=(1, 2, 3, 5))
POINTS = 4 + 2
"""Steps at each context: of batch 3 only those with a row for each."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedRunner(ToyRunner):
    """Each pass takes what ``price`` says of its rows, its keys and how often it was run before."""

    def __init__(self, clock: Clock, price: Callable[[int, int, int], float], **settings: Any) -> None:
        super().__init__(ToyModel(11), max_num_seqs=settings.pop("max_num_seqs", 3), **settings)
        self._clock, self._price = clock, price
        self.seen: Counter[tuple[int, int]] = Counter()
        self.steps: list[tuple[int, ...]] = []

    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        keys = sum(self.length(feed.sequence_id) for feed in feeds)
        rows = sum(feed.rows for feed in feeds)
        if rows:
            assert all(feed.rows == len(feed.tokens) for feed in feeds)
            self.steps.append(tuple(feed.rows for feed in feeds))
        self._clock.now += self._price(rows, keys, self.seen[rows, keys])
        self.seen[rows, keys] += 1
        return super().score(feeds, hidden, layers)


def quiet(what: str, done: int, total: int) -> None:
    assert what
    assert 0 < done <= total


def linear(rows: int, keys: int, seen: int) -> float:
    return 10.0 + rows + 0.1 * keys


def test_a_curve_is_what_the_clock_says_at_every_point() -> None:
    clock = Clock()
    runner = TimedRunner(clock, linear)
    (curve,) = calibrate([runner], quiet, GRID, clock)
    for batch, rows in GRID.steps():
        for context in GRID.contexts:
            assert curve.seconds(rows, context, batch) == pytest.approx(linear(rows, batch * context, 0))
    assert (curve.batches, curve.contexts, curve.rows) == (GRID.batches, GRID.contexts, GRID.rows)
    assert runner.open_slots == 0


def test_the_median_and_not_the_first_pass_counts() -> None:
    clock = Clock()
    # A cold first pass, which grants the fewest others; then one that was disturbed.
    script = (1e6, 3.0, 99.0, 3.5)
    slow = TimedRunner(clock, lambda rows, keys, seen: (rows > 0) * script[seen % 4])
    (curve,) = calibrate([slow], quiet, GRID, clock)
    assert curve.seconds(5, 4) == 3.5
    assert len(slow.steps) == 4 * POINTS * len(GRID.contexts)


def test_quick_models_are_timed_more_often() -> None:
    clock = Clock()
    quick = TimedRunner(clock, lambda rows, keys, seen: 1e-3)
    calibrate([quick], quiet, GRID, clock)
    assert len(quick.steps) == 10 * POINTS * len(GRID.contexts)


def test_models_are_timed_in_turn_so_that_drift_hits_both() -> None:
    clock = Clock()
    # The machine slows down all the time; one model always takes twice the other's time.
    runners = [
        TimedRunner(clock, lambda rows, keys, seen: (rows > 0) * (1.0 + seen)),
        TimedRunner(clock, lambda rows, keys, seen: (rows > 0) * (2.0 + 2.0 * seen)),
    ]
    one, two = calibrate(runners, quiet, GRID, clock)
    for rows in GRID.rows:
        assert two.seconds(rows, 4) == pytest.approx(2 * one.seconds(rows, 4))
    assert runners[0].steps == runners[1].steps


def test_rows_are_spread_over_the_batch() -> None:
    clock = Clock()
    runner = TimedRunner(clock, linear)
    calibrate([runner], quiet, GRID, clock)
    assert set(runner.steps) == {(1,), (2,), (3,), (5,), (1, 1, 1), (2, 2, 1)}


def test_each_model_is_timed_as_far_as_it_reaches() -> None:
    clock = Clock()
    short, narrow = (TimedRunner(clock, linear, **limit) for limit in ({"max_model_len": 24}, {"max_num_seqs": 2}))
    one, two = calibrate([short, narrow], quiet, GRID, clock)
    assert (one.contexts, one.batches) == ((4,), (1, 3))
    assert (two.contexts, two.batches) == ((4, 20), (1,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_model_len": 8}, "holds 8 tokens, and timing takes 9"), ({"rollback": "none"}, "cannot be rolled back")],
)
def test_what_cannot_be_timed_is_refused(settings: dict[str, Any], message: str) -> None:
    clock = Clock()
    with pytest.raises(ConfigError, match=message):
        calibrate([TimedRunner(clock, linear, **settings)], quiet, GRID, clock)


@pytest.mark.parametrize("call", [1, 7, 20])
def test_an_interrupt_leaves_no_slot_open(call: int) -> None:
    clock = Clock()
    runners = [TimedRunner(clock, linear), TimedRunner(clock, linear, fail_on_call=call)]
    with pytest.raises(RuntimeError, match="injected"):
        calibrate(runners, quiet, GRID, clock)
    assert [runner.open_slots for runner in runners] == [0, 0]


def test_the_usual_grid_fits_a_model_of_2048_positions() -> None:
    grid = Grid()
    assert grid.length <= 2048
    # Every draft length up to 8, at the batches that a plan is checked at.
    for batch in (1, 8):
        assert {batch * (k + 1) for k in range(9)} - {1} <= set(grid.rows)


# --- the cache --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "curves"


CURVE = fit_curve({(1, 64, n): 0.01 * n for n in (1, 2, 4)})
KEY = {"model": "some/model", "dtype": "bfloat16", "outrider": "1"}


def test_a_curve_is_found_under_its_own_key_alone(folder: Path) -> None:
    assert cached_curve(KEY) is None
    path = store_curve(KEY, CURVE)
    assert path.name.startswith("model-")
    assert cached_curve(KEY) == CURVE
    assert cached_curve(KEY | {"dtype": "float32"}) is None
    assert [each.name for each in folder.iterdir()] == [path.name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 3}', '{"key": null, "curve": {}}', "[" * 100_000])
def test_a_damaged_file_is_as_good_as_none(text: str) -> None:
    path = store_curve(KEY, CURVE)
    path.write_text(text)
    assert cached_curve(KEY) is None
    store_curve(KEY, CURVE)
    assert cached_curve(KEY) == CURVE


def test_another_keys_file_is_not_believed() -> None:
    path = store_curve(KEY, CURVE)
    path.rename(curve_path(KEY | {"outrider": "2"}))
    assert cached_curve(KEY | {"outrider": "2"}) is None


def test_a_cache_that_cannot_be_written(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file where a folder should be")
    with pytest.raises(ConfigError, match="cannot be written"):
        store_curve(KEY, CURVE)


def test_an_interrupted_write_leaves_the_old_curve(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    store_curve(KEY, CURVE)

    def interrupted(self: CostCurve) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CostCurve, "to_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store_curve(KEY, fit_curve({(1, 64, n): 0.02 * n for n in (1, 2, 4)}))
    monkeypatch.undo()
    monkeypatch.setenv("OUTRIDER_CACHE", str(folder.parent))
    assert cached_curve(KEY) == CURVE
    assert len(list(folder.iterdir())) == 1


def test_a_key_holds_all_that_a_curve_depends_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = curve_key("smollm2-135m", "bfloat16")
    assert (key["model"], key["quantization"]) == ("smollm2-135m", None)
    assert all(key[name] for name in ("processor", "kernels", "threads", "outrider"))
    monkeypatch.setenv("OUTRIDER_KERNELS", "torch")
    assert curve_key("smollm2-135m", "bfloat16")["kernels"] == "torch" != key["kernels"]
    monkeypatch.setattr(outrider, "__version__", "999")
    assert curve_key("smollm2-135m", "bfloat16")["outrider"] == "999"


def test_another_model_at_the_same_place_is_another_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").write_bytes(b"123")
    before = [curve_key(str(at), "bfloat16")["model"] for at in (tmp_path, tmp_path / "m.gguf")]
    detour = tmp_path / ".." / tmp_path.name
    assert before == [curve_key(str(at), "bfloat16")["model"] for at in (detour, detour / "m.gguf")]
    (tmp_path / "config.json").write_text("{ }")
    (tmp_path / "m.gguf").write_bytes(b"1234")
    after = [curve_key(str(at), "bfloat16")["model"] for at in (tmp_path, tmp_path / "m.gguf")]
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert curve_key("org/model", "bfloat16")["model"] == "org/model"
