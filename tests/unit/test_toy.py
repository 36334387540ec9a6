"""The toy model: fixed logits, and a runner whose mistakes would show."""

from __future__ import annotations

import pytest
import torch

from outrider.models.base import Feed
from outrider.models.toy import ToyModel, ToyRunner


def _runner(**options: object) -> ToyRunner:
    runner = ToyRunner(ToyModel(11, context=3), **options)  # type: ignore[arg-type]
    runner.open(0)
    return runner


def test_logits_depend_on_the_last_tokens_and_the_seed_only() -> None:
    model = ToyModel(9, context=2, seed=1)
    assert torch.equal(model.logits([4, 1, 2]), ToyModel(9, context=2, seed=1).logits([7, 7, 1, 2]))
    assert not torch.equal(model.logits([1, 2]), model.logits([2, 1]))
    assert not torch.equal(model.logits([1, 2]), model.logits([2]))
    assert not torch.equal(model.logits([1, 2]), ToyModel(9, context=2, seed=2).logits([1, 2]))


def test_logits_are_the_same_in_every_process() -> None:
    row_V = ToyModel(4, context=1, dtype=torch.float64).logits([3])
    expected_V = torch.tensor([-0.07493, 1.39025, -1.53682, 0.71412], dtype=torch.float64)
    torch.testing.assert_close(row_V, expected_V, atol=1e-4, rtol=0)


def test_a_table_wins_over_noise() -> None:
    model = ToyModel(3, context=1, dtype=torch.float64, table={(0,): [0.0, 1.0, 2.0], (2,): [5.0, 0.0, 0.0]})
    assert model.logits([1, 0]).tolist() == [0.0, 1.0, 2.0]
    assert model.greedy([0], 3) == [2, 0, 2]
    assert model.logits([1]).dtype == torch.float64


def test_a_length_one_too_long_gives_wrong_logits() -> None:
    right, wrong = _runner(), _runner()
    for runner, length in ((right, 4), (wrong, 5)):
        runner.score([Feed(0, (1, 2, 3, 4, 5, 6), 1)])
        runner.commit(0, length)
    rows = [runner.score([Feed(0, (9,), 1)]).logits[0][0] for runner in (right, wrong)]
    assert torch.equal(rows[0], right.model.logits([1, 2, 3, 4, 9]))
    assert torch.equal(rows[1], right.model.logits([1, 2, 3, 4, 5, 9]))
    assert not torch.equal(rows[0], rows[1])
    assert right._stored[0] == [1, 2, 3, 4, 9, 6], "what lies beyond the length stays, stale"


def test_padding_is_junk_and_never_fed() -> None:
    runner = _runner(vocab_size=13)
    logits_TV = runner.score([Feed(0, (12, 1), 2)]).logits[0]
    assert logits_TV.shape == (2, 13)
    assert bool((logits_TV.argmax(-1) >= 11).all())
    narrow = _runner(vocab_size=8)
    assert torch.equal(narrow.score([Feed(0, (1, 2), 1)]).logits[0][0], narrow.model.logits([1, 2])[:8])
    with pytest.raises(AssertionError, match="outside 8"):
        narrow.score([Feed(0, (8,), 1)])


def test_an_injected_failure_comes_once_and_midway() -> None:
    runner = _runner(fail_on_call=2)
    runner.score([Feed(0, (1, 2, 3), 1)])
    with pytest.raises(RuntimeError, match="injected failure of call 2"):
        runner.score([Feed(0, (4, 5), 1)])
    assert runner.length(0) == 3
    assert torch.equal(runner.score([Feed(0, (6,), 1)]).logits[0][0], runner.model.logits([2, 3, 6]))


def test_misuse_is_caught() -> None:
    runner = _runner(max_num_seqs=1, max_model_len=4, rollback="none")
    with pytest.raises(AssertionError, match="open already"):
        runner.open(0)
    with pytest.raises(AssertionError, match="more than 1 slots"):
        runner.open(1)
    with pytest.raises(AssertionError, match="slot of 4 tokens overrun"):
        runner.score([Feed(0, (1,) * 5, 1)])
    with pytest.raises(AssertionError, match="one feed per sequence"):
        runner.score([Feed(0, (1,), 1), Feed(0, (2,), 1)])
    runner.score([Feed(0, (1, 2), 1)])
    runner.commit(0, 2)
    with pytest.raises(AssertionError, match="cannot roll back"):
        runner.commit(0, 1)
    runner.close(0)
    assert runner.open_slots == 0
