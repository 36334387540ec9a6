"""What every drafter must do, as a suite to subclass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from outrider.sampling.params import SamplingParams
from outrider.testing.sequences import StubSequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.draft.base import Drafter
    from outrider.types import Draft


class DrafterContract:
    """Give ``make_drafter``; name the subclass ``Test...`` and pytest does the rest.

    Sequences of up to 40 tokens with ids below ``vocab_size`` are drafted for, at most 3 at a time.
    """

    vocab_size = 16
    depends_on_history = False
    """True only for a drafter that is meant to answer from past rounds as well as the committed tokens."""

    def make_drafter(self) -> Drafter:
        """A fresh drafter with nothing open."""
        raise NotImplementedError

    def test_drafts_keep_to_their_budgets(self) -> None:
        for sequences, drafter in self._settings():
            for budgets in ([0] * len(sequences), [1, 4, 0][: len(sequences)], [5] * len(sequences)):
                drafts = drafter.propose(sequences, budgets)
                assert len(drafts) == len(sequences), "one draft a sequence"
                for draft, budget in zip(drafts, budgets, strict=True):
                    assert len(draft.tokens) <= budget, f"{len(draft.tokens)} tokens for a budget of {budget}"
                for sequence in sequences:
                    sequence.append([len(sequence.tokens) % self.vocab_size])

    def test_reported_laws_could_have_been_drawn_from(self) -> None:
        for sequences, drafter in self._settings():
            for draft in drafter.propose(sequences, [4] * len(sequences)):
                self._check_law(draft)

    def test_sync_before_propose_changes_nothing(self) -> None:
        for sequences, drafter in self._settings():
            drafter.sync(sequences)
            drafter.sync(sequences)
            ready = self._opened(sequences).propose(sequences, [4] * len(sequences))
            _same(drafter.propose(sequences, [4] * len(sequences)), ready)

    def test_only_committed_tokens_count(self) -> None:
        """However the tokens came to be committed, a drafter that saw it all proposes as a fresh one does."""
        if self.depends_on_history:
            return
        for sequences, drafter in self._settings():
            for round_ in range(8):
                budgets = [(round_ + place) % 5 for place in range(len(sequences))]
                if round_ % 3 == 1:
                    drafter.sync(sequences)
                drafts = drafter.propose(sequences, budgets)
                _same(drafts, self._opened(sequences).propose(sequences, budgets))
                for place, (sequence, draft) in enumerate(zip(sequences, drafts, strict=True)):
                    kept = min(len(draft.tokens), (round_ * 2 + place) % 5)
                    sequence.append([*draft.tokens[:kept], (round_ * 5 + place) % 3])

    def test_rounds_without_a_draft_are_caught_up_on(self) -> None:
        """Nothing is called in them; the next draft is a fresh drafter's all the same."""
        if self.depends_on_history:
            return
        for sequences, drafter in self._settings():
            budgets = [3] * len(sequences)
            drafter.propose(sequences, budgets)
            for missed in (1, 2, 20):
                for sequence in sequences:
                    sequence.append([i % 3 for i in range(missed)])
                _same(drafter.propose(sequences, budgets), self._opened(sequences).propose(sequences, budgets))

    def test_neighbours_do_not_show(self) -> None:
        if self.depends_on_history:
            return
        sequences = list(self._sequences(3, SamplingParams()))
        together = self._opened(sequences).propose(sequences, [4, 2, 3])
        for sequence, budget, draft in zip(sequences, (4, 2, 3), together, strict=True):
            _same(self._opened([sequence]).propose([sequence], [budget]), [draft])

    def test_a_closed_sequence_is_forgotten(self) -> None:
        first, second = self._sequences(2, SamplingParams())
        drafter = self._opened([first])
        drafter.propose([first], [4])
        drafter.close(first.id)
        drafter.close(first.id)
        drafter.close(12_345)
        second.id = first.id
        drafter.open(second)
        _same(drafter.propose([second], [4]), self._opened([second]).propose([second], [4]))

    def test_many_requests_one_after_another(self) -> None:
        drafter = self.make_drafter()
        for sequence_id in range(30):
            sequence = StubSequence(sequence_id, [sequence_id % self.vocab_size, 1, 2])
            drafter.open(sequence)
            assert len(drafter.propose([sequence], [2])) == 1
            drafter.close(sequence_id)

    def test_a_one_token_prompt(self) -> None:
        sequence = StubSequence(0, [3])
        drafter = self._opened([sequence])
        drafter.sync([sequence])
        self._check_law(drafter.propose([sequence], [4])[0])

    def _settings(self) -> Iterator[tuple[list[StubSequence], Drafter]]:
        """Batches of 1 and 3, greedy and sampled."""
        for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)):
            for count in (1, 3):
                sequences = list(self._sequences(count, params))
                yield sequences, self._opened(sequences)

    def _sequences(self, count: int, params: SamplingParams) -> Iterator[StubSequence]:
        for place in range(count):
            prompt = [(i % (3 + place)) * (place + 1) % self.vocab_size for i in range(7 + place)]
            yield StubSequence(place, prompt, params, seed=place)

    def _opened(self, sequences: Sequence[StubSequence]) -> Drafter:
        drafter = self.make_drafter()
        for sequence in sequences:
            drafter.open(sequence)
        return drafter

    def _check_law(self, draft: Draft) -> None:
        assert all(0 <= token < self.vocab_size for token in draft.tokens), f"{draft.tokens} outside the vocabulary"
        if draft.logq_KV is None:
            return
        assert draft.logq_KV.shape == (len(draft.tokens), self.vocab_size), "one law a token, as wide as the target's"
        mass_K = draft.logq_KV.double().exp().sum(-1)
        assert torch.allclose(mass_K, torch.ones_like(mass_K), atol=1e-5), "laws sum to one"
        for token, logq_V in zip(draft.tokens, draft.logq_KV, strict=True):
            assert float(logq_V[token]) > -torch.inf, f"token {token} has no probability under the law reported for it"


def _same(got: Sequence[Draft], expected: Sequence[Draft]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.tokens == other.tokens, f"{one.tokens} is not {other.tokens}"
        assert (one.logq_KV is None) == (other.logq_KV is None), "a law and a point mass"
        if one.logq_KV is not None and other.logq_KV is not None:
            assert torch.allclose(one.logq_KV.exp(), other.logq_KV.exp(), atol=1e-5), "laws differ"
