"""The nouns every other module shares. No torch at run time, so importing this stays light."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from outrider.sampling.params import SamplingParams
    from outrider.sampling.rng import KeyedRandomness


class FinishReason(StrEnum):
    """Why a request ended; the first two are OpenAI's words, the third vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class Draft:
    """Tokens a drafter guesses will come next in one sequence.

    ``logq_KV`` holds, row by row, the log-probabilities each token was *really drawn from*;
    None means every token was proposed deterministically (a point mass).
    """

    tokens: tuple[int, ...] = ()
    logq_KV: torch.Tensor | None = None


@dataclass(frozen=True)
class Offer:
    """What a drafter could propose for a sequence now; drafts of equal offers are expected to fare alike."""

    drafter: str
    strength: int = 0
    """The drafter's own grade of its guess, from what is committed."""
    behind: int = field(default=0, compare=False)
    """Committed tokens that it must catch up on before it drafts, beyond what a draft in every round leaves it."""


@dataclass(frozen=True)
class Choice:
    """How many tokens to draft for a sequence in a round, and from which offer; none is plain decoding."""

    tokens: int = 0
    offer: Offer | None = None


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided: how many draft tokens stay, and the one fresh token after them."""

    kept: int
    token: int


class CommittedStates(NamedTuple):
    """The target's states ``(layers, N, width)`` of N committed positions of a sequence, from ``start`` on."""

    sequence_id: int
    start: int
    states_LND: torch.Tensor


class RequestState(Protocol):
    """What drafters, controllers and policies may read of a sequence (they never write it)."""

    @property
    def id(self) -> int: ...
    @property
    def request_id(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens, prompt included."""
        ...

    @property
    def prompt_length(self) -> int: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def randomness(self) -> KeyedRandomness: ...


@dataclass(frozen=True)
class RoundTrace:
    """One sequence's part of one round. Metrics, controllers and benchmarks read only this."""

    request_id: str
    sequence_id: int
    drafter: str
    drafted: int
    kept: int
    emitted: int
    """Tokens really committed: ``kept + 1`` unless a stop cut the round short."""
    choice: Choice = Choice()
    """What was asked for; a drafter may give less."""


@dataclass(frozen=True)
class PhaseSeconds:
    """Wall time of one engine step by phase."""

    schedule: float = 0.0
    draft: float = 0.0
    target: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    def __add__(self, other: PhaseSeconds) -> PhaseSeconds:
        return PhaseSeconds(
            self.schedule + other.schedule,
            self.draft + other.draft,
            self.target + other.target,
            self.verify + other.verify,
            self.commit + other.commit,
        )

    @property
    def total(self) -> float:
        return self.schedule + self.draft + self.target + self.verify + self.commit

    @property
    def drafter(self) -> float:
        """Of the phases in which a drafter works: it drafts, and takes the states of the pass in the commit."""
        return self.draft + self.commit


@dataclass(frozen=True)
class StepTrace:
    """Everything one engine step did: a round per sequence that was ready, and the time it took."""

    rounds: tuple[RoundTrace, ...]
    seconds: PhaseSeconds
    rows: int = 0
    """Tokens of the target's pass."""
    prompt_rows: int = 0
    """Those of them that were of prompts."""

    @property
    def asked(self) -> list[tuple[Offer, RoundTrace]]:
        """Rounds for which drafts were asked, and from which offer; a drafter may have given none."""
        chosen = ((each.choice.offer, each) for each in self.rounds if each.choice.tokens)
        return [(offer, each) for offer, each in chosen if offer is not None]


@dataclass(frozen=True)
class Logprob:
    """Target log-probability of one token (raw logits, before temperature), vLLM's shape."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(frozen=True)
class RequestMetrics:
    """Figures of one request. Times in seconds; tau counts the correction/bonus token."""

    ttft: float | None = None
    tpot: float | None = None
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    survival: tuple[float, ...] = ()
    """Share of rounds whose draft token at each position survived (unconditional)."""
    emitted: int = 0
    drafter: str = "none"
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)
    """Time of every step the request took part in, prompt chunks included; a step is shared by its whole batch."""

    @property
    def tau(self) -> float:
        """Mean tokens emitted per round, correction/bonus token included."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class CompletionOutput:
    """One of a request's ``n`` answers, vLLM's shape."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A finished (or, while streaming, unfinished) request, vLLM's shape."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    metrics: RequestMetrics


@dataclass(frozen=True)
class StreamChunk:
    """What one step added to one answer of a streaming request; the last chunk carries the whole output."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    output: RequestOutput | None = None
