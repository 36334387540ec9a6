"""Token for token: where plain and speculative answers part, and whether rounding can explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Final, Protocol

from outrider.audit.samples import Answer, Job, Pair, Question, Token, Tokens
from outrider.sampling.params import SamplingParams

BOTH_MOVE: Final = 2.0
"""Noise may lift one of two logits and lower the other, so it closes a gap of twice its size."""
ROUNDING: Final = 1.0
"""Most that rounding moves all logits of a place, as a root mean square: in bfloat16 we saw 0.15, with a token missing
from the context 0.8 to 2.4. Without such a limit a fault of wide passes would pass for noise and explain itself."""


@dataclass(frozen=True)
class Noise:
    """How far logits move when the same prefix is computed another way."""

    rows: float
    """Largest move of a likely token's logit, as one of k + 1 rows instead of alone."""
    company: float
    """The same as one of k + 1 rows with another sequence in the same pass."""
    overall: float
    """Largest root mean square move of all logits of one place; 0 means the same bits everywhere."""
    positions: int
    """Places that were measured."""

    @property
    def largest(self) -> float:
        return max(self.rows, self.company)

    @property
    def is_rounding(self) -> bool:
        return self.overall <= ROUNDING


@dataclass(frozen=True)
class Split:
    """The first place where two answers differ; None stands for an answer that had ended."""

    position: int
    plain: Token | None
    speculative: Token | None


@dataclass(frozen=True)
class Divergence:
    """A split, and what is known of its cause."""

    prompt: str
    split: Split
    plain_text: str
    speculative_text: str
    margin: float | None
    """By how much plain decoding's own logits prefer its token; None where they are not known."""
    noise: float | None
    near_tie: bool

    @property
    def factor(self) -> float | None:
        """Margin over noise: up to 2 the noise explains the other token."""
        return self.margin / self.noise if self.margin is not None and self.noise else None


@dataclass(frozen=True)
class TokenComparison:
    """Plain against speculative decoding of every prompt."""

    prompts: int
    tokens: int
    """Tokens compared: up to the first difference of each prompt, its token included."""
    judged: int | None
    """Those that were decided by judging a draft token, as far as the engine tells."""
    divergences: tuple[Divergence, ...]
    noise: Noise | None
    exact: bool
    """Whether no difference at all is allowed."""

    @property
    def faults(self) -> tuple[Divergence, ...]:
        return tuple(each for each in self.divergences if not each.near_tie)

    @property
    def sound(self) -> bool:
        """Whether logits move no more than the runner promises, or than rounding explains."""
        if self.noise is None:
            return True
        return self.noise.overall == 0 if self.exact else self.noise.is_rounding

    @property
    def passed(self) -> bool:
        return not self.faults and self.sound


@dataclass(frozen=True)
class Compared:
    """Both answers to one prompt."""

    question: Question
    plain: Answer
    speculative: Answer

    @cached_property
    def split(self) -> Split | None:
        return first_split(self.plain.tokens, self.speculative.tokens)

    @property
    def count(self) -> int:
        """Tokens up to the first difference, its own included."""
        return len(self.plain.tokens) if self.split is None else self.split.position + 1


class Explainer(Protocol):
    """Knows the logits behind the answers."""

    def noise(self, answers: Sequence[Compared]) -> Noise | None:
        """The numeric noise along these answers; None where it cannot be measured."""
        ...

    def margin(self, compared: Compared, split: Split) -> float | None:
        """Plain logit of the plain token less that of the speculative one, after the tokens both have."""
        ...

    def text(self, token: Token) -> str:
        """A token for display."""
        ...


def first_split(plain: Tokens, speculative: Tokens) -> Split | None:
    """Where two answers part; None when they are the same."""
    for position, (a, b) in enumerate(zip_longest(plain, speculative)):
        if a != b:
            return Split(position, a, b)
    return None


def is_near_tie(margin: float | None, noise: Noise | None, exact: bool) -> bool:
    """Whether measured noise explains that the other token won. What is not known explains nothing."""
    if exact or margin is None or noise is None or not noise.is_rounding:
        return False
    return margin <= BOTH_MOVE * noise.largest


def greedy_params(params: SamplingParams) -> SamplingParams:
    """The same request at temperature 0."""
    return replace(params, temperature=0.0, seed=None)


def compare_tokens(
    pair: Pair, questions: Sequence[Question], params: SamplingParams, explainer: Explainer, exact: bool
) -> TokenComparison:
    """Decode every prompt both ways and explain each first difference. ``exact``: any difference is a fault."""
    jobs = [Job(question, params) for question in questions]
    answers = [
        Compared(*each) for each in zip(questions, pair.plain.sample(jobs), pair.speculative.sample(jobs), strict=True)
    ]
    # Which of two logits is larger decides nothing where tokens are drawn.
    noise = explainer.noise(answers) if params.greedy else None
    divergences = tuple(
        _explain(explainer, each, each.split, noise, exact) for each in answers if each.split is not None
    )
    told = [each.speculative.judged[: each.count] for each in answers if each.speculative.judged is not None]
    judged = sum(map(sum, told)) if told else None
    return TokenComparison(len(questions), sum(each.count for each in answers), judged, divergences, noise, exact)


def _explain(explainer: Explainer, compared: Compared, split: Split, noise: Noise | None, exact: bool) -> Divergence:
    margin = None if noise is None else explainer.margin(compared, split)
    largest = None if noise is None else noise.largest
    plain, speculative = ("" if token is None else explainer.text(token) for token in (split.plain, split.speculative))
    near_tie = is_near_tie(margin, noise, exact)
    return Divergence(compared.question.label, split, plain, speculative, margin, largest, near_tie)
