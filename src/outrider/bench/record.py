"""What a benchmark measures: one request's answer as it arrived, and which of its drafts were kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from outrider.types import PhaseSeconds

SCHEMA = "outrider.bench/1"


@dataclass(frozen=True)
class Task:
    """One prompt of a workload. ``category`` groups results; ``chat`` sends it through the model's chat template."""

    id: str
    category: str
    prompt: str
    chat: bool = True
    max_tokens: int | None = None
    """Most tokens of this task's answer, where the workload has a reason; None takes the run's."""


@dataclass(frozen=True)
class Settings:
    """How every request of a run is sampled. Each task has its own seed, derived from ``seed``; None sends none."""

    temperature: float = 0.0
    max_tokens: int = 128
    seed: int | None = 0
    ignore_eos: bool = False


@dataclass(frozen=True)
class Arrival:
    """Tokens that reached the client together, ``seconds`` after it sent the request."""

    seconds: float
    tokens: int


@dataclass(frozen=True)
class Acceptance:
    """What became of draft tokens, over any number of rounds; adds up. Position 0 is a round's first draft token."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    reached_at: tuple[int, ...] = ()
    """Rounds that drafted this position and kept all before it."""
    accepted_at: tuple[int, ...] = ()
    """Rounds that kept this position."""

    @classmethod
    def of_round(cls, drafted: int, kept: int, emitted: int) -> Acceptance:
        """One round: tokens drafted, tokens kept by the verifier, tokens committed."""
        accepted = min(kept, emitted)
        reached = min(accepted + 1, drafted)
        return cls(1, drafted, accepted, emitted, (1,) * reached, (1,) * accepted)

    @classmethod
    def total(cls, parts: Iterable[Acceptance]) -> Acceptance:
        return sum(parts, start=cls())

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.rounds + other.rounds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.emitted + other.emitted,
            _add(self.reached_at, other.reached_at),
            _add(self.accepted_at, other.accepted_at),
        )

    @property
    def tau(self) -> float | None:
        """Mean tokens emitted per round, correction or bonus token included."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def rate(self) -> float | None:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of all rounds that kept each position (unconditional; vLLM's per-position rate)."""
        return tuple(kept / self.rounds for kept in self.accepted_at)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Share kept of the rounds that got as far as judging each position (Leviathan's alpha, by position)."""
        kept = dict(enumerate(self.accepted_at))
        return tuple(kept.get(i, 0) / reached for i, reached in enumerate(self.reached_at))


@dataclass(frozen=True)
class Answer:
    """One request as its client saw it. What an engine does not tell is None."""

    text: str
    token_ids: tuple[int, ...] | None
    prompt_tokens: int | None
    arrivals: tuple[Arrival, ...]
    finish_reason: str | None
    acceptance: Acceptance | None = None
    phases: PhaseSeconds | None = None
    """Time by phase of the steps that served this request; shared by a batch."""
    error: str | None = None
    """One line: why there is no answer, or no whole one."""
    decode_phases: PhaseSeconds | None = None
    """``phases`` of the steps after the one that brought the first tokens: no prompt was read in them."""

    @property
    def tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)

    @property
    def seconds(self) -> float:
        """From sending the request to its last token."""
        return self.arrivals[-1].seconds if self.arrivals else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """The whole answer over the whole time, reading the prompt included."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first arrival over the time they took: 1 / TPOT."""
        return 1.0 / self.tpot if self.tpot else None

    @property
    def ttft(self) -> float | None:
        """Time to first token, seconds."""
        return self.arrivals[0].seconds if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first arrival, whose tokens' time is in ``ttft``."""
        if len(self.arrivals) < 2:
            return None
        first, last = self.arrivals[0], self.arrivals[-1]
        return (last.seconds - first.seconds) / (self.tokens - first.tokens)

    @property
    def gaps(self) -> tuple[float, ...]:
        """Inter-token latencies, seconds: from an arrival to the next. Tokens of one round arrive together and make
        one gap, the wait that a reader sees; TPOT is the figure per token."""
        return tuple(b.seconds - a.seconds for a, b in pairwise(self.arrivals))


@dataclass(frozen=True)
class Sample:
    """One task served once: which configuration, in what company, and what came of it."""

    task: Task
    configuration: str
    settings: Settings
    repeat: int
    batch: int
    """Requests served at a time (closed loop); 0 in an open loop."""
    answer: Answer
    group: str = ""
    """Id of the first task of those that were served together; empty for a task alone."""
    rate: float | None = None
    """Requests a second of an open loop; None in a closed one."""
    at: float = 0.0
    """When an open loop sent it, seconds after the start."""


@dataclass(frozen=True)
class Run:
    """All samples of one benchmark, with what is needed to repeat it. ``baseline`` names a configuration."""

    samples: tuple[Sample, ...]
    configurations: tuple[str, ...]
    baseline: str
    details: Mapping[str, Any]
    """By configuration, in plain JSON: how it was set up, and figures of the engine as a whole."""
    provenance: Mapping[str, Any]


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))
