"""A controller that does as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.control.base import Offers
from outrider.types import Choice, RequestState, StepTrace

BudgetRule = Callable[[RequestState, int], int]


class ScheduledController:
    """Budgets from a list, taken in turn and round again, or from a rule ``(sequence, call) -> budget``.

    In a batch the i-th sequence reads the list i places further on, so that budgets are ragged.
    """

    def __init__(self, schedule: Sequence[int] | BudgetRule) -> None:
        self._schedule = schedule
        self._calls = 0
        self.traces: list[StepTrace] = []

    def choose(self, sequences: Sequence[RequestState], offers: Offers) -> list[Choice]:
        choices = [
            Choice(self._budget(sequence, place), each[0]) if (each := offers(sequence)) else Choice()
            for place, sequence in enumerate(sequences)
        ]
        self._calls += 1
        return choices

    def observe(self, trace: StepTrace) -> None:
        self.traces.append(trace)

    def close(self, sequence_id: int) -> None:
        """Nothing to forget."""

    def _budget(self, sequence: RequestState, place: int) -> int:
        if callable(self._schedule):
            return self._schedule(sequence, self._calls)
        return self._schedule[(self._calls + place) % len(self._schedule)]
