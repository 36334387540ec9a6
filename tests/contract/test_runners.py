"""The runner contract, kept by the runners that need no weights on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from outrider.models.toy import ToyModel, ToyRunner
from outrider.testing import RunnerContract

if TYPE_CHECKING:
    from outrider.models.base import Feed, TargetRunner


class TestToyRunner(RunnerContract):
    def make_runner(self) -> TargetRunner:
        return ToyRunner(ToyModel(31, context=3), max_num_seqs=3, max_model_len=32)


class TestPaddedToyRunner(RunnerContract):
    def make_runner(self) -> TargetRunner:
        model = ToyModel(23, context=4, dtype=torch.float64)
        return ToyRunner(model, max_num_seqs=2, max_model_len=40, vocab_size=29)


class _ForgetsToRollBack(ToyRunner):
    def commit(self, sequence_id: int, length: int) -> None:
        """Wrong: rejected tokens stay."""


class _CutsOneTooMany(ToyRunner):
    def commit(self, sequence_id: int, length: int) -> None:
        super().commit(sequence_id, max(0, length - 1))


class _KeepsOldText(ToyRunner):
    def open(self, sequence_id: int) -> None:
        super().open(sequence_id)
        self._stored[sequence_id] = [1, 2, 3]
        self._length[sequence_id] = 3


class _GrowsOnFailure(ToyRunner):
    def score(self, feeds, hidden=False, layers=()):  # type: ignore[no-untyped-def]
        for feed in feeds:
            self._length[feed.sequence_id] += len(feed.tokens)
            if max(feed.tokens) >= self.vocab_size:
                raise IndexError
            self._length[feed.sequence_id] -= len(feed.tokens)
        return super().score(feeds, hidden, layers)


class _LeaksBetweenRows(ToyRunner):
    """Its logits depend, by a hair, on the number of feeds beside them, though it declares that they do not."""

    def _rows(self, feed: Feed) -> torch.Tensor:
        return super()._rows(feed) + 1e-6 * len(self.calls[-1])


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_ForgetsToRollBack, "test_rollback_leaves_no_trace"),
        (_CutsOneTooMany, "test_rollback_leaves_no_trace"),
        (_CutsOneTooMany, "test_commit_is_idempotent_and_never_beyond_what_was_fed"),
        (_KeepsOldText, "test_a_reopened_slot_remembers_nothing"),
        (_KeepsOldText, "test_feeding_lengthens_the_slot"),
        (_GrowsOnFailure, "test_a_failing_feed_leaves_lengths_as_they_were"),
        (_LeaksBetweenRows, "test_neighbours_do_not_show"),
    ],
)
def test_the_suite_notices(broken: type[ToyRunner], check: str) -> None:
    class Suite(RunnerContract):
        def make_runner(self) -> TargetRunner:
            return broken(ToyModel(31, context=3), max_num_seqs=3, max_model_len=32)

    with pytest.raises(AssertionError):
        getattr(Suite(), check)()
