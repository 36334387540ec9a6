"""What an audit compares: answers of a plain and a speculative engine to the same jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from outrider.sampling.params import SamplingParams

Token: TypeAlias = int | str
"""A token id; its text where a server tells no ids."""
Tokens: TypeAlias = tuple[Token, ...]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Question:
    """One prompt of an audit; ``ids`` is empty where a server reads the text itself."""

    label: str
    text: str
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """One answer wanted. Decoding may stop once ``enough`` tokens are there; None takes the whole answer."""

    question: Question
    params: SamplingParams
    enough: int | None = None


@dataclass(frozen=True)
class Answer:
    """The tokens of one answer, and what is known of each of them."""

    tokens: Tokens
    judged: tuple[bool, ...] | None = None
    """Whether each token was decided by judging a draft token; None where an engine does not tell."""
    logprobs: tuple[Mapping[str, float], ...] | None = None
    """Log-probabilities of the likeliest tokens at each place, by their text, where a server reports them."""


class Sampler(Protocol):
    """An engine, plain or speculative."""

    def sample(self, jobs: Sequence[Job]) -> list[Answer]:
        """Answers in order. Raises RequestError when one of them cannot be had."""
        ...


@dataclass(frozen=True)
class Pair:
    """The same model twice: without and with speculation."""

    plain: Sampler
    speculative: Sampler


def with_fresh_seed(params: SamplingParams, number: int) -> SamplingParams:
    """Parameters for the ``number``-th sample of an audit: a seed of its own if the request is to have one at all.

    Whether a request has a seed may decide the accept rule, so an unseeded one stays unseeded.
    """
    if params.seed is None:
        return params
    return replace(params, seed=(params.seed + number) % 2**64)


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
