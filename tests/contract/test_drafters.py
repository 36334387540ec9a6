"""The drafter contract, kept by every drafter of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.several import SeveralDrafter
from outrider.models.toy import ToyModel, ToyRunner
from outrider.testing import AdversarialDrafter, DrafterContract, RandomDrafter, ScriptedDrafter
from outrider.types import Draft, RequestState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.draft.base import Drafter


class TestNgramDrafter(DrafterContract):
    def make_drafter(self) -> Drafter:
        return NgramDrafter(1, 3)


class TestModelDrafter(DrafterContract):
    def make_drafter(self) -> Drafter:
        return ModelDrafter(ToyRunner(ToyModel(16), max_num_seqs=3), self.vocab_size)


class TestModelDrafterInSmallChunks(DrafterContract):
    def make_drafter(self) -> Drafter:
        runner = ToyRunner(ToyModel(14, context=3), max_num_seqs=3, vocab_size=20)
        return ModelDrafter(runner, self.vocab_size, max_num_batched_tokens=4)


class TestModelDrafterOfShortContext(DrafterContract):
    def make_drafter(self) -> Drafter:
        return ModelDrafter(ToyRunner(ToyModel(16), max_num_seqs=3, max_model_len=12), self.vocab_size)


class TestSeveralDrafter(DrafterContract):
    def make_drafter(self) -> Drafter:
        model = ModelDrafter(ToyRunner(ToyModel(16), max_num_seqs=3), self.vocab_size)
        return SeveralDrafter([NgramDrafter(2, 3), model])


class TestScriptedDrafter(DrafterContract):
    def make_drafter(self) -> Drafter:
        return ScriptedDrafter(lambda sequence, budget: [(len(sequence.tokens) + i) % 16 for i in range(budget + 2)])


class TestScriptedDrafterOfAList(DrafterContract):
    depends_on_history = True

    def make_drafter(self) -> Drafter:
        return ScriptedDrafter([[1, 2, 3], (), Draft((4,), torch.full((1, 16), 1 / 16).log())])


class TestRandomDrafter(DrafterContract):
    def make_drafter(self) -> Drafter:
        return RandomDrafter(self.vocab_size, zeros=0.3)


class TestAdversarialDrafter(DrafterContract):
    def make_drafter(self) -> Drafter:
        return AdversarialDrafter(self.vocab_size, eos_id=0, seed=3)


class _OverBudget(ScriptedDrafter):
    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        return super().propose(sequences, [budget + 1 for budget in budgets])


class _Remembers(NgramDrafter):
    """Keeps the text of a request that ended, and goes on with it under the same id."""

    def close(self, sequence_id: int) -> None:
        """Wrong: the index stays."""

    def open(self, sequence: RequestState) -> None:
        if sequence.id not in self._indexes:
            super().open(sequence)


class _ReportsAnotherLaw(RandomDrafter):
    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        drafts = super().propose(sequences, budgets)
        return [Draft(d.tokens, None if d.logq_KV is None else d.logq_KV.roll(1, dims=-1)) for d in drafts]


class _LearnsGuesses(NgramDrafter):
    """Takes its own proposals for committed text."""

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        drafts = super().propose(sequences, budgets)
        for sequence, draft in zip(sequences, drafts, strict=True):
            self._indexes[sequence.id]._after.update({(token,): 1 for token in draft.tokens})
        return drafts


class _SharesOneIndex(NgramDrafter):
    """Mixes the texts of a batch."""

    def open(self, sequence: RequestState) -> None:
        super().open(sequence)
        first = next(iter(self._indexes.values()))
        self._indexes[sequence.id]._after = first._after


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (lambda: _OverBudget(lambda _, budget: [1] * budget), "test_drafts_keep_to_their_budgets"),
        (lambda: ScriptedDrafter(lambda _, budget: [16] * budget), "test_reported_laws_could_have_been_drawn_from"),
        (lambda: _ReportsAnotherLaw(16, zeros=0.8), "test_reported_laws_could_have_been_drawn_from"),
        (lambda: _Remembers(1, 3), "test_a_closed_sequence_is_forgotten"),
        (lambda: _LearnsGuesses(1, 1), "test_only_committed_tokens_count"),
        (lambda: _SharesOneIndex(1, 1), "test_neighbours_do_not_show"),
    ],
)
def test_the_suite_notices(broken: Callable[[], Drafter], check: str) -> None:
    class Suite(DrafterContract):
        def make_drafter(self) -> Drafter:
            return broken()

    with pytest.raises((AssertionError, ArithmeticError)):
        getattr(Suite(), check)()
