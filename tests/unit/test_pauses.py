"""What was loaded is not looked through again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from outrider.pauses import settle


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_there_is_left_out_and_what_comes_later_is_not() -> None:
    before = gc.get_freeze_count()
    loaded: list[object] = [[]]
    settle()
    assert gc.get_freeze_count() > before
    loaded.append([])
    known = {id(each) for each in gc.get_objects()}
    assert id(loaded[0]) not in known
    assert id(loaded[1]) in known
