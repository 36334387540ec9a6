"""The parts of an audit in turn, on two engines over one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from outrider.audit.control import ControlCheck, Mistake, mistakes_for
from outrider.audit.distribution import (
    HISTOGRAMS,
    DistributionCheck,
    HistogramTest,
    compare_histograms,
    count_judged,
    draw,
)
from outrider.audit.draws import PURPOSES, DrawWatch
from outrider.audit.engine_sampler import EngineSampler
from outrider.audit.greedy import TokenComparison, compare_tokens, greedy_params
from outrider.audit.noise import RunnerExplainer
from outrider.audit.report import FALSE_ALARM, AuditReport
from outrider.audit.rows import check_rows
from outrider.audit.rule import check_rule
from outrider.audit.samples import Answer, Job, Pair, Progress, Question, silent, with_fresh_seed
from outrider.audit.watch import Watch, Watched
from outrider.config import MOST_TOKENS
from outrider.control.fixed import FixedController
from outrider.draft.base import Drafter
from outrider.engine.engine import Engine
from outrider.engine.sequence import Sequence as EngineSequence
from outrider.sampling.params import SamplingParams
from outrider.verify.base import Verifier

ROUNDS: Final = 32
"""Real rounds whose rows the rule check takes, over all prompts."""
ROWS_FROM: Final = 48
"""Tokens of each answer in which those rounds are looked for."""


def alarm_each(questions: int) -> float:
    """Odds of a false alarm of each statistical test, so that all together keep to ``FALSE_ALARM`` (Bonferroni)."""
    return FALSE_ALARM / (len(HISTOGRAMS) * questions + len(PURPOSES))


@dataclass(frozen=True)
class EngineAudit:
    """An audit of two engines over one runner, which nobody uses meanwhile. ``k``: draft tokens of a whole round.

    ``chooses``: whether the speculative engine would choose other lengths. Much is seen only where much is drafted, so
    it drafts ``k`` in all parts but one, and as it chooses in that.
    """

    plain: Engine
    speculative: Engine
    k: int
    progress: Progress = silent
    chooses: bool = False

    def run(self, questions: Sequence[Question], params: SamplingParams, samples: int) -> AuditReport:
        """Every part that applies to these parameters. Raises RequestError for a prompt that cannot be served."""
        greedy = self.tokens(questions, greedy_params(params))
        seeded = self.tokens(questions, params) if self._promises_samples(params) else None
        watched = self.watch(questions, params)
        exact = self.plain.runner.capabilities.deterministic_shape
        rows = check_rows(watched, self.plain.runner, self.progress) if exact else None
        captured = [round_ for each in watched for round_ in each.captured]
        rule = check_rule(captured[:ROUNDS], params.greedy, self.progress)
        report = AuditReport(greedy, seeded, rows, rule, chosen=self.chosen(questions, params))
        mistakes = mistakes_for(watched[0].rule, params.greedy, self.speculative.runner.vocab_size)
        if params.greedy:
            return replace(report, control=self.greedy_control(questions, params, mistakes[0]))
        draws = DrawWatch()
        pair = Pair(self._plain("samples, plain"), self._speculative("samples, speculative", draws))
        laws, plain = compare_laws(pair, questions, params, samples)
        return replace(
            report,
            draws=draws.check(alarm_each(len(questions))),
            distribution=laws,
            control=self.sampled_control(questions, params, plain, mistakes),
        )

    def tokens(
        self, questions: Sequence[Question], params: SamplingParams, mistake: Mistake | None = None
    ) -> TokenComparison:
        """Token for token, at temperature 0 or where samples are promised; with a ``mistake``: spoilt."""
        name = "negative control" if mistake else "greedy" if params.greedy else "seeded"
        return self._compared(name, self._spoilt(f"{name}, speculative", mistake), questions, params, self.k)

    def chosen(self, questions: Sequence[Question], params: SamplingParams) -> TokenComparison | None:
        """The same where lengths are chosen round by round, which takes how long steps took into account."""
        if not self.chooses:
            return None
        promised = params if params.greedy or self._promises_samples(params) else greedy_params(params)
        side = EngineSampler(self.speculative, "lengths chosen, speculative", progress=self.progress)
        return self._compared("lengths chosen", side, questions, promised, MOST_TOKENS)

    def _compared(
        self, name: str, side: EngineSampler, questions: Sequence[Question], params: SamplingParams, most: int
    ) -> TokenComparison:
        """``most``: draft tokens of the widest round, whose pass is what noise is measured in."""
        pair = Pair(self._plain(f"{name}, plain"), side)
        runner = self.plain.runner
        explainer = RunnerExplainer(runner, self.plain.tokenizer, most + 1)
        return compare_tokens(pair, questions, params, explainer, exact=runner.capabilities.deterministic_shape)

    def watch(self, questions: Sequence[Question], params: SamplingParams) -> list[Watched]:
        """What the accept rule is shown in real rounds of an answer to each question."""
        watch = Watch(ceil(ROUNDS / len(questions)))
        sampler = self._speculative("real rounds", watch)
        sampler.sample([Job(q, with_fresh_seed(params, i), ROWS_FROM) for i, q in enumerate(questions)])
        return watch.sequences

    def greedy_control(self, questions: Sequence[Question], params: SamplingParams, mistake: Mistake) -> ControlCheck:
        """Whether the comparison of tokens sees the mistake."""
        faults = self.tokens(questions, params, mistake).faults
        if faults:
            return ControlCheck(mistake.words, True, f"{faults[0].prompt}: another token at {faults[0].split.position}")
        return ControlCheck(mistake.words, False, "all tokens were plain decoding's own")

    def sampled_control(
        self,
        questions: Sequence[Question],
        params: SamplingParams,
        plain: Sequence[Sequence[Answer]],
        mistakes: Sequence[Mistake],
    ) -> ControlCheck:
        """The same test against the same plain answers, mistake by mistake until one is seen."""
        tried: list[str] = []
        for mistake in mistakes:
            tried.append(mistake.words)
            least = self._least_likely(questions, params, plain, mistake)
            if least.rejected:
                break
        by = f"{least.histogram} of {least.prompt}: p = {least.test.p_value:.1g}"
        return ControlCheck(tried[-1], least.rejected, by, tuple(tried[:-1]))

    def _least_likely(
        self, questions: Sequence[Question], params: SamplingParams, plain: Sequence[Sequence[Answer]], mistake: Mistake
    ) -> HistogramTest:
        """Prompt by prompt until one shows the mistake; else the test that came closest."""
        sampler = self._spoilt("negative control", mistake)
        tests: list[HistogramTest] = []
        for i, (question, answers) in enumerate(zip(questions, plain, strict=True)):
            (spoilt,) = draw(sampler, [question], params, len(answers), (2 * len(questions) + i) * len(answers))
            tests += compare_histograms(question, answers, spoilt, alarm_each(len(questions)))
            if any(test.rejected for test in tests):
                break
        return min(tests, key=lambda test: test.test.p_value)

    def _promises_samples(self, params: SamplingParams) -> bool:
        # Without a seed, every request gets one of its own.
        return params.seed is not None and not params.greedy and self.speculative.keeps_bytes(params)

    def _plain(self, name: str) -> EngineSampler:
        return EngineSampler(self.plain, name, progress=self.progress)

    def _speculative(
        self,
        name: str,
        verifier: Callable[[EngineSequence], Verifier] | None = None,
        drafter: Callable[[Drafter], Drafter] | None = None,
    ) -> EngineSampler:
        """``k`` draft tokens a round."""
        controller = FixedController(self.k) if self.chooses else None
        return EngineSampler(
            self.speculative,
            name,
            verifier=verifier,
            drafter=drafter,
            controller=controller,
            progress=self.progress,
        )

    def _spoilt(self, name: str, mistake: Mistake | None) -> EngineSampler:
        """With a mistake in it, if there is one."""
        if mistake is None:
            return self._speculative(name)
        return self._speculative(name, mistake.verifier, mistake.drafter)


def compare_laws(
    pair: Pair, questions: Sequence[Question], params: SamplingParams, samples: int
) -> tuple[DistributionCheck, list[list[Answer]]]:
    """The end-to-end test of every prompt, and the plain answers it used."""
    # Seeds are never shared between the sides: under a rule that shares noise they would be one sample twice.
    plain = draw(pair.plain, questions, params, samples, 0)
    speculative = draw(pair.speculative, questions, params, samples, samples * len(questions))
    tests = [
        test
        for question, ours, theirs in zip(questions, plain, speculative, strict=True)
        for test in compare_histograms(question, ours, theirs, alarm_each(len(questions)))
    ]
    judged = count_judged([answer for answers in speculative for answer in answers])
    return DistributionCheck(tuple(tests), samples, judged), plain
