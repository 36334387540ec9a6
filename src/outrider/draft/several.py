"""Several drafters over one target, of which a controller chooses for each sequence and round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.draft.base import StateDrafter, offers_of, propose_chosen
from outrider.types import Choice, Draft, Offer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.draft.base import Drafter
    from outrider.types import CommittedStates, RequestState


class SeveralDrafter:
    """Asks its drafters in order: left to itself it takes the first that has a guess.

    At most one of them may read the target's activations (``StateDrafter``).
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)
        self.name = "+".join(drafter.name for drafter in self.drafters)
        assert len({drafter.name for drafter in self.drafters}) == len(self.drafters), (
            "drafters are told by their names"
        )
        readers = [drafter for drafter in self.drafters if isinstance(drafter, StateDrafter)]
        assert len(readers) <= 1, "states are handed to one drafter"
        self._reader = readers[0] if readers else None

    @property
    def layers(self) -> tuple[int, ...]:
        return () if self._reader is None else self._reader.layers

    def remember(self, committed: Sequence[CommittedStates]) -> None:
        if self._reader is not None:
            self._reader.remember(committed)

    def open(self, sequence: RequestState) -> None:
        # Whom a request does not ask for does no work for it, and keeps nothing of it.
        for drafter in self._asked(sequence):
            drafter.open(sequence)

    def close(self, sequence_id: int) -> None:
        for drafter in self.drafters:
            drafter.close(sequence_id)

    def sync(self, sequences: Sequence[RequestState]) -> None:
        for drafter in self.drafters:
            drafter.sync([seq for seq in sequences if drafter in self._asked(seq)])

    def offers(self, sequence: RequestState) -> tuple[Offer, ...]:
        return tuple(offer for drafter in self._asked(sequence) for offer in offers_of(drafter, sequence))

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        offers = [self.offers(sequence) for sequence in sequences]
        choices = [Choice(k, each[0] if each else None) for k, each in zip(budgets, offers, strict=True)]
        return self.propose_chosen(sequences, choices)

    def propose_chosen(self, sequences: Sequence[RequestState], choices: Sequence[Choice]) -> list[Draft]:
        drafts: dict[int, Draft] = {}
        pairs = list(zip(sequences, choices, strict=True))
        for drafter in self.drafters:
            mine = [(seq, c) for seq, c in pairs if c.offer is not None and c.offer.drafter == drafter.name]
            if mine:
                proposed = propose_chosen(drafter, [seq for seq, _ in mine], [c for _, c in mine])
                drafts |= {seq.id: draft for (seq, _), draft in zip(mine, proposed, strict=True)}
        return [drafts.get(sequence.id, Draft()) for sequence in sequences]

    def _asked(self, sequence: RequestState) -> tuple[Drafter, ...]:
        wanted = sequence.params.speculation
        return tuple(each for each in self.drafters if wanted.drafts and wanted.method in (None, each.name))
