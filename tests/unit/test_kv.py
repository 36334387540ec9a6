"""Slots: lowest first, absolute commits, nothing left behind."""

from __future__ import annotations

import pytest
import torch

from outrider.errors import ConfigError
from outrider.models.kv import KVSlots, allocate_kv


def test_the_lowest_free_slot_is_taken_first() -> None:
    slots = KVSlots(3, 16)
    assert [slots.open(sequence)[0] for sequence in (10, 11, 12)] == [0, 1, 2]
    slots.close(12)
    slots.close(10)
    assert slots.open(13)[0] == 0
    assert slots.open(14)[0] == 2


def test_closing_twice_or_an_unknown_id_changes_nothing() -> None:
    slots = KVSlots(1, 16)
    slots.open(1)
    slots.close(1)
    slots.close(1)
    slots.close(99)
    assert slots.open(2)[0] == 0
    with pytest.raises(AssertionError):
        slots.open(3)


def test_lengths_grow_only_after_success_and_commits_are_absolute() -> None:
    slots = KVSlots(1, 16)
    slots.open(1)
    assert slots.begin(1, 10) == (0, 0)
    assert slots.length(1) == 0
    slots.grow(1, 10)
    for _ in range(2):
        slots.commit(1, 7)
        assert slots.length(1) == 7
    assert slots.begin(1, 9) == (0, 7)


@pytest.mark.parametrize("length", [-1, 8, 100])
def test_a_commit_beyond_what_is_held_is_refused(length: int) -> None:
    slots = KVSlots(1, 16)
    slots.open(1)
    slots.begin(1, 7)
    slots.grow(1, 7)
    with pytest.raises(ValueError, match="holds 7"):
        slots.commit(1, length)
    assert slots.length(1) == 7


def test_a_slot_cannot_overflow() -> None:
    slots = KVSlots(1, 16)
    slots.open(1)
    slots.begin(1, 16)
    with pytest.raises(AssertionError):
        slots.begin(1, 17)


def test_the_next_owner_learns_how_much_was_written_even_by_a_failed_forward() -> None:
    slots = KVSlots(2, 16)
    assert slots.open(1) == (0, 0)
    slots.begin(1, 9)
    slots.grow(1, 9)
    slots.commit(1, 4)
    slots.begin(1, 11)
    slots.close(1)
    assert slots.open(2) == (0, 15)
    slots.close(2)
    assert slots.open(3) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_memory_is_aligned_zero_and_shaped_as_asked(dtype: torch.dtype) -> None:
    kv = allocate_kv((2, 2, 3, 2, 8, 4), dtype)
    assert kv.shape == (2, 2, 3, 2, 8, 4)
    assert kv.dtype == dtype
    assert kv.data_ptr() % 64 == 0
    assert kv.is_contiguous()
    assert not kv.any()


def test_kv_memory_that_cannot_be_had_is_a_setting_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.models.kv.physical_memory", lambda: 8 * 10**9)
    numbers = r"max_num_seqs=8 slots of 4096 tokens need 8\.6 GB.*has 8\.0 GB.*reduce max_model_len"
    with pytest.raises(ConfigError, match=numbers):
        allocate_kv((64, 2, 8, 4, 4096, 128), torch.float32)
