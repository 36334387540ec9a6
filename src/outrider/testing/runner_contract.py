"""What every target runner must do, as a suite to subclass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from outrider.models.base import Feed, TargetRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class RunnerContract:
    """Give ``make_runner``; name the subclass ``Test...`` and pytest does the rest.

    The runner needs 2 slots or more, of at least 32 tokens. Equality of logits is exact when it declares
    ``deterministic_shape``, else within ``atol``.
    """

    atol = 1e-4

    def make_runner(self) -> TargetRunner:
        """A fresh runner with nothing open; called once a test."""
        raise NotImplementedError

    def test_feeding_lengthens_the_slot(self) -> None:
        runner = self._open(1)
        assert runner.length(1) == 0, "a new slot is empty"
        for tokens, length in ((self._text(runner, 5), 5), (self._text(runner, 1), 6), (self._text(runner, 3), 9)):
            runner.score([Feed(1, tokens, 1)])
            assert runner.length(1) == length, "a slot grows by the tokens of its feed"

    def test_rows_asked_for_are_the_last_ones(self) -> None:
        tokens = self._text(self.make_runner(), 7)
        full_TV = self._fresh(tokens, rows=7)
        assert full_TV.shape[0] == 7, "one row a token"
        for rows in (0, 1, 4):
            some_TV = self._fresh(tokens, rows)
            assert some_TV.shape == (rows, full_TV.shape[1]), f"{rows} rows were asked for"
            self._same(some_TV, full_TV[7 - rows :])

    def test_logits_are_finite_and_as_wide_as_declared(self) -> None:
        runner = self._open(1)
        logits_TV = runner.score([Feed(1, self._text(runner, 4), 4)]).logits[0]
        assert logits_TV.shape == (4, runner.vocab_size), "rows by vocab_size"
        assert bool(torch.isfinite(logits_TV).all()), "raw logits are finite"

    def test_any_chunking_gives_the_same_rows(self) -> None:
        tokens = self._text(self.make_runner(), 12)
        full_TV = self._fresh(tokens, rows=12)
        for cuts in ((1,) * 12, (5, 7), (4, 1, 1, 6), (11, 1)):
            runner, at = self._open(1), 0
            for size in cuts:
                logits_TV = runner.score([Feed(1, tokens[at : at + size], size)]).logits[0]
                self._same(logits_TV, full_TV[at : at + size])
                at += size

    def test_prefill_without_rows_leaves_the_same_state(self) -> None:
        runner = self._open(1)
        tokens = self._text(runner, 9)
        runner.score([Feed(1, tokens[:6], 0)])
        self._same(runner.score([Feed(1, tokens[6:], 3)]).logits[0], self._fresh(tokens, 3))

    def test_rollback_leaves_no_trace(self) -> None:
        runner = self._open(1)
        if runner.capabilities.rollback != "truncate":
            return
        tokens, other = self._text(runner, 10), self._text(runner, 10, salt=1)
        runner.score([Feed(1, tokens, 1)])
        for kept in (9, 6, 1, 0):
            runner.commit(1, kept)
            assert runner.length(1) == kept, "commit is absolute"
            tail = other[kept:]
            self._same(runner.score([Feed(1, tail, len(tail))]).logits[0], self._fresh(tokens[:kept] + tail, len(tail)))
            tokens = tokens[:kept] + tail

    def test_commit_is_idempotent_and_never_beyond_what_was_fed(self) -> None:
        runner = self._open(1)
        tokens = self._text(runner, 8)
        runner.score([Feed(1, tokens[:5], 1)])
        for _ in range(2):
            runner.commit(1, 5)
        assert runner.length(1) == 5, "committing the present length changes nothing"
        assert _refused(lambda: runner.commit(1, 6)), "nothing was fed at position 5"
        assert runner.length(1) == 5, "a refused commit changes nothing"
        self._same(runner.score([Feed(1, tokens[5:], 3)]).logits[0], self._fresh(tokens, 3))

    def test_neighbours_do_not_show(self) -> None:
        runner = self._open(1, 2)
        tokens, other = self._text(runner, 9), self._text(runner, 7, salt=1)
        together = runner.score([Feed(2, other[:2], 2), Feed(1, tokens[:6], 6)]).logits
        self._same(together[0], self._fresh(other[:2], 2))
        self._same(together[1], self._fresh(tokens[:6], 6))
        ragged = runner.score([Feed(1, tokens[6:7], 1), Feed(2, other[2:], 5)]).logits
        self._same(ragged[0], self._fresh(tokens[:7], 1))
        self._same(ragged[1], self._fresh(other, 5))
        runner.close(2)
        self._same(runner.score([Feed(1, tokens[7:], 2)]).logits[0], self._fresh(tokens, 2))

    def test_a_reopened_slot_remembers_nothing(self) -> None:
        runner = self._open(1)
        for round_ in range(3 * runner.max_num_seqs):
            tokens = self._text(runner, 6, salt=round_)
            self._same(runner.score([Feed(1, tokens, 6)]).logits[0], self._fresh(tokens, 6))
            runner.close(1)
            runner.open(1)
            assert runner.length(1) == 0, "a reopened slot is empty"

    def test_every_slot_can_be_used_and_closing_is_safe(self) -> None:
        runner = self.make_runner()
        for _ in range(2):
            for sequence_id in range(runner.max_num_seqs):
                runner.open(sequence_id)
            for sequence_id in (*range(runner.max_num_seqs), 0, 10_000):
                runner.close(sequence_id)

    def test_a_slot_holds_max_model_len_tokens(self) -> None:
        runner = self._open(1)
        tokens = self._text(runner, runner.max_model_len)
        runner.score([Feed(1, tokens[:-1], 0)])
        assert runner.score([Feed(1, tokens[-1:], 1)]).logits[0].shape[0] == 1, "the last position is usable"
        assert runner.length(1) == runner.max_model_len

    def test_hidden_states_when_declared(self) -> None:
        runner = self._open(1)
        tokens = self._text(runner, 5)
        if not runner.capabilities.hidden_states:
            assert runner.score([Feed(1, tokens, 2)]).hidden is None, "no hidden states unless asked for"
            return
        scores = runner.score([Feed(1, tokens, 2)], hidden=True)
        assert scores.hidden is not None, "hidden states were declared"
        assert scores.hidden[0].shape[0] == 2, "one hidden state a row"

    def test_a_failing_feed_leaves_lengths_as_they_were(self) -> None:
        runner = self._open(1, 2)
        tokens, other = self._text(runner, 6), self._text(runner, 4, salt=1)
        runner.score([Feed(1, tokens[:4], 0), Feed(2, other[:3], 0)])
        bad = Feed(2, (runner.vocab_size + 1_000_000,), 1)
        assert _refused(lambda: runner.score([Feed(1, tokens[4:5], 1), bad])), "no such token id"
        assert (runner.length(1), runner.length(2)) == (4, 3), "lengths are as before the call"
        after = runner.score([Feed(1, tokens[4:], 2), Feed(2, other[3:], 1)]).logits
        self._same(after[0], self._fresh(tokens, 2))
        self._same(after[1], self._fresh(other, 1))

    def _open(self, *sequence_ids: int) -> TargetRunner:
        runner = self.make_runner()
        for sequence_id in sequence_ids:
            runner.open(sequence_id)
        return runner

    def _fresh(self, tokens: Sequence[int], rows: int) -> torch.Tensor:
        """The last rows of ``tokens`` fed in one go to a runner of its own: what every path must equal."""
        return self._open(77).score([Feed(77, tuple(tokens), rows)]).logits[0]

    def _same(self, got_TV: torch.Tensor, expected_TV: torch.Tensor) -> None:
        assert got_TV.shape == expected_TV.shape, f"{tuple(got_TV.shape)} is not {tuple(expected_TV.shape)}"
        if self.make_runner().capabilities.deterministic_shape:
            assert torch.equal(got_TV, expected_TV), "deterministic_shape promises equal bits"
        else:
            worst = (got_TV.float() - expected_TV.float()).abs().max().item() if got_TV.numel() else 0.0
            assert worst <= self.atol, f"logits differ by {worst}"

    @staticmethod
    def _text(runner: TargetRunner, count: int, salt: int = 0) -> tuple[int, ...]:
        """Tokens without an obvious period, so that a wrong position shows."""
        return tuple((i * i * 7 + 3 * i + 11 * salt + 1) % runner.vocab_size for i in range(count))


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:
        return True
    return False
