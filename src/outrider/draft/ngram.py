"""Prompt lookup: guess that what followed the last words before will follow them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.errors import ConfigError
from outrider.types import Draft, Offer, RequestState

if TYPE_CHECKING:
    from collections.abc import Sequence


_GRADES = (16, 8, 4, 3, 2, 1)
"""Lengths of what is the same that are told apart."""


class NgramIndex:
    """Where each n-gram of one sequence last went on, kept up to date token by token.

    ``match`` finds the longest suffix of ``tokens`` (``longest`` down to ``shortest``) that occurred before, and
    the position after its most recent earlier occurrence, in time independent of the sequence's length.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self._matched: tuple[int, tuple[int, int] | None] = (0, None)
        """For how many tokens a match was looked for last, and what was found."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in the tokens committed since the last call; ``tokens`` is the whole sequence."""
        reach = self._sizes.start
        base = max(0, self._indexed - reach)
        recent = tokens[base:]
        # An n-gram is entered only once a token follows it: the suffix itself must not match itself.
        for at in range(max(1, self._indexed), len(tokens)):
            end = at - base
            for size in self._sizes:
                if size <= end:
                    self._after[tuple(recent[end - size : end])] = at
        self._indexed = len(tokens)

    def match(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Position to copy from and how many tokens before it are the text's last ones, counted up to the largest
        grade; None when no suffix occurred before.
        """
        if self._matched[0] != len(tokens):
            at = self._find(tuple(tokens[-self._sizes.start :]))
            self._matched = (len(tokens), None if at is None else (at, _common(tokens, at)))
        return self._matched[1]

    def _find(self, suffix: tuple[int, ...]) -> int | None:
        for size in self._sizes:
            if size <= len(suffix):
                at = self._after.get(suffix[len(suffix) - size :])
                if at is not None:
                    return at
        return None


class NgramDrafter:
    """Copies what followed the longest matching suffix of the committed tokens (vLLM's ``ngram``).

    Where vLLM copies from the first occurrence, this copies from the most recent one: over words, 1 to 3 long, 5
    drafted, that emitted 1.80 tokens a round instead of 1.68 on Python sources and 1.55 instead of 1.51 on prose.
    A copy that reaches the end of the text goes on into itself, so a repeating pattern fills the whole budget.
    """

    name = "ngram"

    def __init__(self, prompt_lookup_min: int = 1, prompt_lookup_max: int = 3) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min={prompt_lookup_min} and prompt_lookup_max={prompt_lookup_max}: "
                "use whole numbers with 1 <= min <= max"
            )
        self._sizes = (prompt_lookup_min, prompt_lookup_max)
        self._indexes: dict[int, NgramIndex] = {}
        self._offers = {grade: (Offer(self.name, grade),) for grade in _GRADES}

    def open(self, sequence: RequestState) -> None:
        self._indexes[sequence.id] = NgramIndex(*self._sizes)

    def close(self, sequence_id: int) -> None:
        self._indexes.pop(sequence_id, None)

    def sync(self, sequences: Sequence[RequestState]) -> None:
        for sequence in sequences:
            self._indexes[sequence.id].extend(sequence.tokens)

    def offers(self, sequence: RequestState) -> tuple[Offer, ...]:
        """The more tokens before it are the same, the stronger: a text that repeats itself goes on doing so."""
        self.sync([sequence])
        found = self._indexes[sequence.id].match(sequence.tokens)
        if found is None:
            return ()
        return self._offers[next(grade for grade in _GRADES if grade <= found[1])]

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        self.sync(sequences)
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: RequestState, budget: int) -> Draft:
        if budget <= 0:
            return Draft()
        found = self._indexes[sequence.id].match(sequence.tokens)
        return Draft() if found is None else Draft(copy_on(sequence.tokens, found[0], budget))


def _common(tokens: Sequence[int], at: int) -> int:
    """How many tokens before ``at`` are those at the end, in order, as far as grades count."""
    last = len(tokens)
    for back in range(1, min(at, _GRADES[0]) + 1):
        if tokens[at - back] != tokens[last - back]:
            return back - 1
    return min(at, _GRADES[0])


def copy_on(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """``count`` tokens from ``start`` on, going round the stretch ``start..end`` when it is shorter."""
    stretch = list(tokens[start : start + count])
    return tuple(stretch[i % len(stretch)] for i in range(count))
