"""The parts of an audit in turn, on two engines over one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from outrider.audit.capture import Capture
from outrider.audit.control import ControlCheck, Mistake, choose_mistake
from outrider.audit.distribution import DistributionCheck, HistogramTest, compare_histograms, count_judged, draw
from outrider.audit.engine_sampler import EngineSampler
from outrider.audit.greedy import TokenComparison, compare_tokens, greedy_params
from outrider.audit.noise import RunnerExplainer
from outrider.audit.report import FALSE_ALARM, AuditReport
from outrider.audit.rule import RACES, RuleCheck, check_rule
from outrider.audit.samples import Answer, Job, Pair, Progress, Question, silent, with_fresh_seed
from outrider.engine.engine import Engine
from outrider.sampling.params import SamplingParams

ROUNDS: Final = 32
"""Real rounds whose rows the rule check takes, over all prompts."""
ROWS_FROM: Final = 48
"""Tokens of each answer in which those rounds are looked for."""


def alarm_each(questions: int) -> float:
    """Odds of a false alarm of each statistical test, so that all together keep to ``FALSE_ALARM`` (Bonferroni)."""
    return FALSE_ALARM / (2 * questions + RACES)


@dataclass(frozen=True)
class EngineAudit:
    """An audit of two engines over one runner, which nobody uses meanwhile. ``k``: draft tokens of a whole round."""

    plain: Engine
    speculative: Engine
    k: int
    progress: Progress = silent

    def run(self, questions: Sequence[Question], params: SamplingParams, samples: int) -> AuditReport:
        """Every part that applies to these parameters. Raises RequestError for a prompt that cannot be served."""
        greedy = self.tokens(questions, greedy_params(params))
        seeded = self.tokens(questions, params) if self._promises_samples(params) else None
        rule, mistake = self.rule(questions, params)
        if params.greedy:
            return AuditReport(greedy, seeded, rule, None, self.greedy_control(questions, params, mistake))
        pair = Pair(self._plain("samples, plain"), self._speculative("samples, speculative"))
        laws, plain = compare_laws(pair, questions, params, samples)
        return AuditReport(greedy, seeded, rule, laws, self.sampled_control(questions, params, plain, mistake))

    def tokens(
        self, questions: Sequence[Question], params: SamplingParams, mistake: Mistake | None = None
    ) -> TokenComparison:
        """Token for token, at temperature 0 or where samples are promised; with a ``mistake``: spoilt."""
        name = "negative control" if mistake else "greedy" if params.greedy else "seeded"
        pair = Pair(self._plain(f"{name}, plain"), self._speculative(f"{name}, speculative", mistake))
        runner = self.plain.runner
        explainer = RunnerExplainer(runner, self.plain.tokenizer, self.k + 1)
        return compare_tokens(pair, questions, params, explainer, exact=runner.capabilities.deterministic_shape)

    def rule(self, questions: Sequence[Question], params: SamplingParams) -> tuple[RuleCheck, Mistake]:
        """The accept rule on rows of real rounds, and the mistake that fits it."""
        capture = Capture(ceil(ROUNDS / len(questions)))
        sampler = EngineSampler(self.speculative, "real rounds", verifier=capture, progress=self.progress)
        sampler.sample([Job(q, with_fresh_seed(params, i), ROWS_FROM) for i, q in enumerate(questions)])
        check = check_rule(capture.rounds[:ROUNDS], params.greedy, alarm_each(len(questions)), self.progress)
        assert capture.rule is not None, "an audit has a prompt"
        return check, choose_mistake(capture.rule, params.greedy, self.speculative.runner.vocab_size)

    def greedy_control(self, questions: Sequence[Question], params: SamplingParams, mistake: Mistake) -> ControlCheck:
        """Whether the comparison of tokens sees the mistake."""
        faults = self.tokens(questions, params, mistake).faults
        if faults:
            return ControlCheck(mistake.words, True, f"{faults[0].prompt}: another token at {faults[0].split.position}")
        return ControlCheck(mistake.words, False, "all tokens were plain decoding's own")

    def sampled_control(
        self, questions: Sequence[Question], params: SamplingParams, plain: Sequence[Sequence[Answer]], mistake: Mistake
    ) -> ControlCheck:
        """The same test against the same plain answers, prompt by prompt until one of them sees the mistake."""
        sampler = self._speculative("negative control", mistake)
        tests: list[HistogramTest] = []
        for i, (question, answers) in enumerate(zip(questions, plain, strict=True)):
            spoilt = draw(sampler, question, params, len(answers), (2 * len(questions) + i) * len(answers))
            tests += compare_histograms(question, answers, spoilt, alarm_each(len(questions)))
            if any(test.rejected for test in tests):
                break
        least = min(tests, key=lambda test: test.test.p_value)
        return ControlCheck(
            mistake.words, least.rejected, f"{least.histogram} of {least.prompt}: p = {least.test.p_value:.1g}"
        )

    def _promises_samples(self, params: SamplingParams) -> bool:
        return not params.greedy and self.speculative.keeps_bytes(params)

    def _plain(self, name: str) -> EngineSampler:
        return EngineSampler(self.plain, name, progress=self.progress)

    def _speculative(self, name: str, mistake: Mistake | None = None) -> EngineSampler:
        if mistake is None:
            return EngineSampler(self.speculative, name, progress=self.progress)
        return EngineSampler(
            self.speculative, name, drafter=mistake.drafter, verifier=mistake.verifier, progress=self.progress
        )


def compare_laws(
    pair: Pair, questions: Sequence[Question], params: SamplingParams, samples: int
) -> tuple[DistributionCheck, list[list[Answer]]]:
    """The end-to-end test of every prompt, and the plain answers it used."""
    tests: list[HistogramTest] = []
    plain_answers, speculative_answers = [], []
    for i, question in enumerate(questions):
        # Seeds are never shared between the sides: under a rule that shares noise they would be one sample twice.
        plain = draw(pair.plain, question, params, samples, 2 * i * samples)
        speculative = draw(pair.speculative, question, params, samples, (2 * i + 1) * samples)
        tests += compare_histograms(question, plain, speculative, alarm_each(len(questions)))
        plain_answers.append(plain)
        speculative_answers += speculative
    return DistributionCheck(tuple(tests), samples, count_judged(speculative_answers)), plain_answers
