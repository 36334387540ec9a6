"""No drafter: plain decoding as the k = 0 case of the one loop."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.types import Draft, Offer, RequestState


class NoDrafter:
    """Proposes nothing and keeps nothing."""

    name = "none"

    def open(self, sequence: RequestState) -> None:
        pass

    def close(self, sequence_id: int) -> None:
        pass

    def sync(self, sequences: Sequence[RequestState]) -> None:
        pass

    def offers(self, sequence: RequestState) -> tuple[Offer, ...]:
        """Nothing."""
        del sequence
        return ()

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        del budgets
        return [Draft() for _ in sequences]
