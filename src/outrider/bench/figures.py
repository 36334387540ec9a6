"""Figures of one set of samples: speed, latency, acceptance, and how they compare with a baseline's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from outrider.bench.record import Acceptance, Answer, Sample, Settings
from outrider.bench.statistics import paired_ratio, percentiles, quotient
from outrider.types import PhaseSeconds

Place = tuple[str, Settings, int, int]
Company = tuple[str, int]
Samples = Sequence[Sample]


def place(sample: Sample) -> Place:
    """What two samples share that differ in configuration only."""
    return sample.task.id, sample.settings, sample.batch, sample.repeat


def company(sample: Sample) -> Company:
    """What samples share that were served together."""
    return sample.group or sample.task.id, sample.repeat


def figures(samples: Samples, baseline: Mapping[Place, Sample], whole: Mapping[Company, int]) -> dict[str, Any]:
    """Figures over the answered ones of ``samples``, which have one configuration, settings and batch.

    ``baseline`` holds what to compare with, by place; nothing for the baseline itself. ``whole`` says how many were
    served together: where a part of them is left out, as in a category, no wall time is theirs.
    """
    answered = [sample for sample in samples if sample.answer.error is None]
    pairs = [(s, other) for s in answered if (other := _good(baseline.get(place(s)))) is not None]
    return {
        "requests": len(answered),
        "errors": len(samples) - len(answered),
        "prompts": len({sample.task.id for sample in answered}),
        "tokens": sum(sample.answer.tokens for sample in answered),
        "tokens_per_second": _throughput(samples, answered, whole),
        "request_tokens_per_second": per_second((s.answer.tokens, s.answer.seconds) for s in answered),
        "decode_tokens_per_second": per_second(_after_first(s.answer) for s in answered),
        "ratio": paired_ratio(_log_ratios(pairs, lambda answer: answer.tokens_per_second)),
        "decode_ratio": paired_ratio(_log_ratios(pairs, lambda answer: answer.decode_tokens_per_second)),
        **latencies(answered),
        **_acceptance(answered),
        "phases": _phases(answered),
        "identical": _identical(pairs),
    }


def latencies(answered: Iterable[Sample]) -> dict[str, Any]:
    """Percentiles of TTFT and TPOT over requests, and of ITL over all gaps between arrivals.

    Tokens of one round arrive together and make one gap, so ITL is the wait that a reader sees, and TPOT the time per
    token.
    """
    answers = [sample.answer for sample in answered]
    return {
        "ttft": percentiles(answer.ttft for answer in answers if answer.ttft is not None),
        "itl": percentiles(gap for answer in answers for gap in answer.gaps),
        "tpot": percentiles(answer.tpot for answer in answers if answer.tpot is not None),
    }


def per_second(parts: Iterable[tuple[int, float]]) -> float | None:
    """All counts over all seconds; None without time."""
    counts, seconds = zip(*parts, strict=True) if (parts := list(parts)) else ((), ())
    total = math.fsum(seconds)
    return sum(counts) / total if total else None


def same_answer(a: Answer, b: Answer) -> bool:
    """Equal by token ids where both engines tell them, else by text."""
    return a.text == b.text if a.token_ids is None or b.token_ids is None else a.token_ids == b.token_ids


def _good(sample: Sample | None) -> Sample | None:
    return sample if sample is not None and sample.answer.error is None else None


def _after_first(answer: Answer) -> tuple[int, float]:
    if not answer.arrivals:
        return 0, 0.0
    return answer.tokens - answer.arrivals[0].tokens, answer.seconds - answer.arrivals[0].seconds


def _throughput(samples: Samples, answered: Samples, whole: Mapping[Company, int]) -> float | None:
    """Tokens over wall time: all of a batch were sent at once, so its slowest request took the batch's time."""
    groups = _by_company(samples)
    if any(len(group) != whole[key] for key, group in groups.items()):
        return None
    return per_second(
        (sum(s.answer.tokens for s in group), max(s.answer.seconds for s in group))
        for group in _by_company(answered).values()
    )


def _log_ratios(pairs: Iterable[tuple[Sample, Sample]], speed: Callable[[Answer], float | None]) -> list[list[float]]:
    """By group served together, by prompt: the mean over repeats of log(speed / baseline's speed)."""
    logs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for ours, theirs in pairs:
        mine, base = speed(ours.answer), speed(theirs.answer)
        if mine and base:
            logs[company(ours)[0]][ours.task.id].append(math.log(mine / base))
    return [[fmean(repeats) for repeats in prompts.values()] for prompts in logs.values()]


def _acceptance(answered: Samples) -> dict[str, Any]:
    units: dict[str, Acceptance] = {}
    for sample in answered:
        # A unit without a round would be nothing over nothing.
        if sample.answer.acceptance is not None and sample.answer.acceptance.rounds:
            unit = company(sample)[0]
            units[unit] = units.get(unit, Acceptance()) + sample.answer.acceptance
    total = Acceptance.total(units.values())
    if not total.rounds:
        return {"tau": None, "acceptance_rate": None, "acceptance": None}
    survival = (*total.survival, *[0.0] * (len(total.conditional) - len(total.survival)))
    counts = {name: getattr(total, name) for name in ("rounds", "drafted", "accepted", "emitted")}
    return {
        "tau": quotient([(unit.emitted, unit.rounds) for unit in units.values()]),
        "acceptance_rate": total.rate,
        "acceptance": counts | {"conditional": list(total.conditional), "survival": list(survival)},
    }


def _phases(answered: Samples) -> dict[str, float] | None:
    """Each batch's longest-served request took part in all its steps; adding up requests would count steps twice."""
    longest = [
        max((s.answer.phases for s in group if s.answer.phases is not None), key=lambda p: p.total, default=None)
        for group in _by_company(answered).values()
    ]
    known = [phases for phases in longest if phases is not None]
    return asdict(sum(known, start=PhaseSeconds())) if known else None


def _identical(pairs: Iterable[tuple[Sample, Sample]]) -> dict[str, int] | None:
    same = [
        same_answer(a.answer, b.answer) for a, b in pairs if a.settings.temperature == 0 or a.settings.seed is not None
    ]
    return {"same": sum(same), "of": len(same)} if same else None


def _by_company(samples: Samples) -> dict[Company, list[Sample]]:
    groups: dict[Company, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[company(sample)].append(sample)
    return groups
