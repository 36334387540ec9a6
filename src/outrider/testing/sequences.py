"""A sequence without an engine, for trying drafters and controllers on their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import KeyedRandomness

if TYPE_CHECKING:
    from collections.abc import Iterable


class StubSequence:
    """The ``RequestState`` a drafter sees, with ``append`` to commit tokens by hand."""

    def __init__(
        self,
        sequence_id: int,
        prompt: Iterable[int],
        params: SamplingParams | None = None,
        *,
        seed: int = 0,
        shared_noise: bool = False,
    ) -> None:
        self.id = sequence_id
        self.request_id = f"stub-{sequence_id}"
        self.tokens = list(prompt)
        self.prompt_length = len(self.tokens)
        self.params = params or SamplingParams()
        self.randomness = KeyedRandomness(seed, shared_noise)

    def append(self, tokens: Iterable[int]) -> None:
        self.tokens.extend(tokens)
