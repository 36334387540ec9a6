"""End to end: are the first tokens of many speculative answers drawn from plain decoding's law?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from outrider.audit.chi_square import TwoSampleTest, smallest_bias, two_sample_test
from outrider.audit.samples import Answer, Job, Question, Sampler, Tokens, with_fresh_seed
from outrider.sampling.params import SamplingParams

HISTOGRAMS: Final = {"first token": 1, "first two tokens": 2}
ENOUGH: Final = max(HISTOGRAMS.values())


@dataclass(frozen=True)
class HistogramTest:
    """One histogram of one prompt, plain against speculative."""

    prompt: str
    histogram: str
    test: TwoSampleTest
    alarm: float
    """A p-value below this is a fault; the odds that chance alone brings one."""

    @property
    def rejected(self) -> bool:
        return self.test.p_value < self.alarm

    @property
    def smallest_bias(self) -> float:
        """Total variation of the pooled law that would have been seen in 95 of 100 runs, whatever its shape."""
        return smallest_bias(self.test.samples, self.test.bins, self.alarm)


@dataclass(frozen=True)
class Judged:
    """How many sampled tokens were decided by judging a draft token, of how many; ``told`` False: nobody knows."""

    first: int = 0
    second: int = 0
    of: int = 0
    told: bool = False


@dataclass(frozen=True)
class DistributionCheck:
    """All histograms of all prompts."""

    tests: tuple[HistogramTest, ...]
    samples: int
    """Answers a prompt and side."""
    judged: Judged

    @property
    def rejected(self) -> tuple[HistogramTest, ...]:
        return tuple(test for test in self.tests if test.rejected)

    @property
    def passed(self) -> bool:
        return not self.rejected

    def visible_bias(self, histogram: str) -> float:
        """The bias of the pooled law that would have been seen in whichever prompt it was."""
        return max(test.smallest_bias for test in self._of(histogram))

    def rare(self, histogram: str) -> float:
        """Largest share of a prompt's answers that lie in its shared bin."""
        return max(test.test.rare for test in self._of(histogram))

    def _of(self, histogram: str) -> list[HistogramTest]:
        return [test for test in self.tests if test.histogram == histogram]


def draw(
    sampler: Sampler, questions: Sequence[Question], params: SamplingParams, samples: int, start: int
) -> list[list[Answer]]:
    """``samples`` answers to each question, long enough for the histograms; ``start`` numbers the first seed.

    Questions take turns: neighbours in a batch that answered the same one could be mixed up unseen.
    """
    asked = [question for _ in range(samples) for question in questions]
    answers = sampler.sample(
        [Job(question, with_fresh_seed(params, start + i), ENOUGH) for i, question in enumerate(asked)]
    )
    return [answers[i :: len(questions)] for i in range(len(questions))]


def compare_histograms(
    question: Question, plain: Sequence[Answer], speculative: Sequence[Answer], alarm: float
) -> list[HistogramTest]:
    """Both histograms of one prompt."""
    return [
        HistogramTest(question.label, name, two_sample_test(_heads(plain, length), _heads(speculative, length)), alarm)
        for name, length in HISTOGRAMS.items()
    ]


def count_judged(answers: Sequence[Answer]) -> Judged:
    """How many first and second tokens met a draft token."""
    told = [answer.judged for answer in answers if answer.judged is not None]
    first = sum(any(judged[:1]) for judged in told)
    second = sum(any(judged[1:2]) for judged in told)
    return Judged(first, second, len(answers), bool(told))


def _heads(answers: Sequence[Answer], length: int) -> list[Tokens]:
    return [answer.tokens[:length] for answer in answers]
