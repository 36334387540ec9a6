"""The drafter contract: guess, cheaply, what the target will say next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from outrider.types import Choice, Draft, Offer, RequestState

if TYPE_CHECKING:
    from outrider.types import CommittedStates


class Drafter(Protocol):
    """Proposes draft tokens for every sequence of a batch."""

    @property
    def name(self) -> str: ...

    def open(self, sequence: RequestState) -> None:
        """Take in a new sequence."""
        ...

    def close(self, sequence_id: int) -> None:
        """Forget a sequence; unknown ids are ignored."""
        ...

    def sync(self, sequences: Sequence[RequestState]) -> None:
        """Bring the drafter's state to exactly the committed tokens but the last.

        Called for sequences whose prompt is still being read, so that their first draft does not keep neighbours
        waiting; a long prompt may take several calls. A prompt that fits into a step is read with the first draft. A
        round without a draft calls neither this nor ``propose``; ``offers``, and ``remember`` of a drafter that reads
        states, are called all the same and must stay cheap.
        """
        ...

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        """One draft per sequence, of at most its budget; fewer tokens, or none, is always allowed.

        First does what ``sync`` does, for these sequences, however many rounds went by without one of theirs: drafting
        from stale state would be exact, and slow.

        ``Draft.logq_KV`` is what each token was really drawn from, or None for a point mass.
        """
        ...


class OfferingDrafter(Drafter, Protocol):
    """A drafter that says before drafting how good its guess is, or that it has none."""

    def offers(self, sequence: RequestState) -> tuple[Offer, ...]:
        """What it could propose now, best first; nothing where it has no guess. Brings its state up to date."""
        ...


class ChoosingDrafter(OfferingDrafter, Protocol):
    """A drafter with several kinds of guesses, so that it must know which was chosen."""

    def propose_chosen(self, sequences: Sequence[RequestState], choices: Sequence[Choice]) -> list[Draft]:
        """``propose``, from the offers that were chosen."""
        ...


def drafter_names(drafter: Drafter) -> tuple[str, ...]:
    """Names that a request may ask for; nothing drafts under the name of "none"."""
    return tuple(each.name for each in getattr(drafter, "drafters", (drafter,)) if each.name != "none")


def offers_of(drafter: Drafter, sequence: RequestState) -> tuple[Offer, ...]:
    """What any drafter offers: itself, unless it says more."""
    # Asked for every sequence and round: looking a protocol's members up one by one takes longer than a choice.
    if hasattr(drafter, "offers"):
        return cast("OfferingDrafter", drafter).offers(sequence)
    return (Offer(drafter.name),)


def propose_chosen(drafter: Drafter, sequences: Sequence[RequestState], choices: Sequence[Choice]) -> list[Draft]:
    """Drafts of any drafter, as chosen from its offers."""
    if hasattr(drafter, "propose_chosen"):
        return cast("ChoosingDrafter", drafter).propose_chosen(sequences, choices)
    return drafter.propose(sequences, [choice.tokens for choice in choices])


@runtime_checkable
class StateDrafter(Drafter, Protocol):
    """A drafter that reads the target's own activations."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Target layers after which it wants the residual stream; see ``TargetRunner.score``."""
        ...

    def remember(self, committed: Sequence[CommittedStates]) -> None:
        """With every target pass, what it was for each sequence: states in order of positions, each position once.

        What a pass computed for rejected draft tokens is never among them. Who raises may lose those of
        others, which then have no drafts any more.
        """
        ...
