"""A step of several batches is one of a batch so many times as large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.errors import ConfigError, ModelError
from outrider.train.config import TrainConfig
from outrider.train.loop import Progress
from tests.unit.test_train_team import CONFIG, Draws, assert_same, learnt


def test_accumulated_batches_are_one_large_one(tmp_path: Path) -> None:
    parts: list[Progress] = []
    whole: list[Progress] = []
    accumulated = learnt(replace(CONFIG, accumulate=3), Draws(), tmp_path / "parts", parts.append)
    large = learnt(CONFIG, Draws(joined=3), tmp_path / "whole", whole.append)
    assert_same(accumulated["module"], large["module"])
    for part, one in zip(parts, whole, strict=True):
        assert part.tokens == one.tokens
        assert (part.loss, part.alpha, part.hits) == pytest.approx((one.loss, one.alpha, one.hits), rel=1e-12)
    single = learnt(CONFIG, Draws(), tmp_path / "single")
    assert (single["module"]["0.weight"] - large["module"]["0.weight"]).abs().max() > 1e-3


def test_accumulation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = replace(CONFIG, accumulate=2)
    whole = learnt(config, Draws(), tmp_path / "whole")
    with pytest.raises(ModelError, match="no more"):
        learnt(config, Draws(end=7), tmp_path / "parts")
    seen: list[Progress] = []
    parts = learnt(config, Draws(), tmp_path / "parts", seen.append)
    assert [each.step for each in seen] == [4, 5, 6]
    assert_same(parts["module"], whole["module"])
    with pytest.raises(ModelError, match="another accumulate;"):
        learnt(CONFIG, Draws(), tmp_path / "parts")
    with pytest.raises(ConfigError, match="accumulate=0"):
        TrainConfig(accumulate=0)
