"""What an LLM's controller starts with: a glance at passes, or a curve that was calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from outrider import LLM, SamplingParams
from outrider.calibrate import cache
from outrider.calibrate.glance import glance
from outrider.control.fixed import FixedController
from outrider.control.goodput import GoodputController
from outrider.draft import shipped
from outrider.draft.ngram import NgramDrafter
from outrider.draft.several import SeveralDrafter
from outrider.models.base import Capabilities, Scores
from outrider.models.load import LoadedModel
from outrider.models.toy import ToyRunner
from outrider.plan.curves import fit_curve
from tests.fake_model import FakeModels, fake_models
from tests.support import MODEL
from tests.unit.decoders import families, random_weights
from tests.unit.decoders import load as load_decoder


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    return fake_models(monkeypatch)


class Slow(ToyRunner):
    """Passes take what they cost, on a clock of their own."""

    now = 0.0
    row = 0.001
    step = 0.01

    def score(self, feeds: Any, hidden: bool = False, layers: Any = ()) -> Scores:
        self.now += self.step + self.row * sum(len(feed.tokens) for feed in feeds)
        return super().score(feeds, hidden, layers)


def seen(step: float, row: float) -> tuple[dict[int, float], Slow]:
    runner = Slow(MODEL, 2, 64)
    runner.step, runner.row = step, row
    return glance(runner, lambda: runner.now), runner


def test_a_glance_sees_what_passes_cost_and_leaves_nothing() -> None:
    taken, runner = seen(0.01, 0.001)
    assert taken == pytest.approx({rows: 0.01 + 0.001 * rows for rows in (1, 2, 3, 5, 9, 17)})
    assert runner.now < 0.6
    assert runner.open_slots == 0


@pytest.mark.parametrize("step", [0.1, 0.3, 2.0])
def test_a_slow_model_is_hardly_kept_waiting(step: float) -> None:
    taken, runner = seen(step, 0.0)
    assert taken[1] == pytest.approx(step)
    assert runner.now <= max(0.5 + 2 * step, 2 * step) + 1e-9


def test_who_cannot_go_back_or_is_too_short_is_not_looked_at() -> None:
    short = ToyRunner(MODEL, 2, 17)
    fixed = ToyRunner(MODEL, 2, 64)
    fixed.capabilities = Capabilities(rollback="none", deterministic_shape=True)
    for runner in (short, fixed):
        assert glance(runner) == {}
        assert runner.calls == []


def test_a_runner_that_fails_gets_its_slot_back() -> None:
    class Failing(ToyRunner):
        def score(self, feeds: Any, hidden: bool = False, layers: Any = ()) -> Scores:
            raise RuntimeError("broken")

    runner = Failing(MODEL, 2, 64)
    with pytest.raises(RuntimeError, match="broken"):
        glance(runner)
    assert runner.open_slots == 0


def table(llm: LLM) -> list[float]:
    controller = llm.engine.controller
    assert isinstance(controller, GoodputController)
    return controller._cost.table(1, 9)


def test_a_length_that_is_given_is_kept_and_otherwise_chosen(models: FakeModels) -> None:
    llm = LLM("toy", speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert llm.engine.controller == FixedController(3)
    assert models.runners[0].calls == [], "nothing to choose, nothing to look at"
    assert llm.with_speculation(None).engine.controller == FixedController(0)
    assert isinstance(llm.with_speculation("auto").engine.controller, GoodputController)


def test_one_glance_serves_all_that_share_the_weights(models: FakeModels) -> None:
    llm = LLM("toy", speculative_config=None)
    llm.with_speculation("auto")
    looked = len(models.runners[0].calls)
    assert looked > 0
    llm.with_speculation("auto").with_speculation({"method": "ngram"})
    assert len(models.runners[0].calls) == looked


def test_nothing_is_looked_at_while_a_request_is_under_way(models: FakeModels) -> None:
    llm = LLM("toy", speculative_config=None)
    stream = llm.stream("once", SamplingParams(max_tokens=20, temperature=0))
    next(stream)
    before = len(models.runners[0].calls)
    llm.with_speculation("auto")
    assert len(models.runners[0].calls) == before
    assert list(stream)[-1].output is not None


def test_a_calibrated_curve_goes_before_a_glance(
    models: FakeModels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    points = {(1, context, rows): 1.0 + 0.5 * rows for context in (64, 512) for rows in (1, 9, 64)}
    cache.store_curve(cache.curve_key("toy", "bfloat16"), fit_curve(points))
    llm = LLM("toy")
    assert models.runners[0].calls == []
    assert table(llm) == pytest.approx([1.0 + 0.5 * rows for rows in range(1, 10)])


def test_a_shipped_draft_is_found_by_the_shape_of_its_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner = load_decoder(families()["llama-tied"], random_weights(families()["llama-tied"]))
    c, target = runner.config, LoadedModel(runner, cast("Any", None), cast("Any", None))
    monkeypatch.setattr(shipped, "DRAFTS", tmp_path)
    assert shipped.shipped_draft(target) is None
    monkeypatch.setattr(shipped, "_MADE_FOR", {(c.num_layers, c.hidden_size, c.vocab_size): "small"})
    assert shipped.shipped_draft(target) is None, "the folder is not there"
    (tmp_path / "small").mkdir()
    assert shipped.shipped_draft(target) == tmp_path / "small"
    toy = LoadedModel(cast("Any", ToyRunner(MODEL, 2, 64)), cast("Any", None), cast("Any", None))
    assert shipped.shipped_draft(toy) is None


def test_auto_without_a_shipped_draft_is_lookup(models: FakeModels) -> None:
    assert isinstance(LLM("toy").engine.drafter, NgramDrafter)
    assert not isinstance(LLM("toy").engine.drafter, SeveralDrafter)
    assert len(models.runners) == 2
