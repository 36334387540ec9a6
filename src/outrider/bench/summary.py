"""What a run's samples say: figures by configuration, sampling settings and batch, as plain JSON."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from outrider.bench.figures import Place, Samples, company, figures, latencies, place
from outrider.bench.load import Limits
from outrider.bench.record import Run, Sample

Key = TypeVar("Key", bound=Hashable)
NO_LIMITS = Limits()


def summarise(run: Run, limits: Limits = NO_LIMITS) -> dict[str, Any]:
    """All figures of a run; None where there is nothing to say. Failed requests are counted and left out.

    ``rows``: closed loop, by configuration, settings and batch; the figures of ``figures.figures``, over all and in
    ``categories``. A row's baseline is the baseline configuration under the same settings and batch, task by task and
    repeat by repeat. ``load``: open loop, by configuration, settings and rate. ``bandwidth``: how close plain
    decoding comes to reading every weight once a step. Times in seconds, intervals 95 %.
    """
    closed = [sample for sample in run.samples if sample.rate is None]
    opened = [sample for sample in run.samples if sample.rate is not None]
    baseline = {place(sample): sample for sample in closed if sample.configuration == run.baseline}
    order = {name: i for i, name in enumerate(run.configurations)}
    # Settings in the order in which they were measured.
    turn = {each: i for i, each in enumerate(dict.fromkeys(sample.settings for sample in run.samples))}
    rows = _groups(closed, lambda s: (order[s.configuration], turn[s.settings], s.batch))
    loads = _groups(opened, lambda s: (order[s.configuration], turn[s.settings], s.rate or 0.0))
    return {
        "baseline": run.baseline,
        "rows": [_row(row, {} if row[0].configuration == run.baseline else baseline) for row in rows],
        "load": [_load(row, limits) for row in loads],
        "bandwidth": _bandwidth(run, baseline.values()),
    }


def _row(samples: Samples, baseline: Mapping[Place, Sample]) -> dict[str, Any]:
    first = samples[0]
    whole = Counter(company(sample) for sample in samples)
    categories: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        categories[sample.task.category].append(sample)
    return {
        "configuration": first.configuration,
        "settings": asdict(first.settings),
        "batch": first.batch,
        **figures(samples, baseline, whole),
        "categories": {name: figures(part, baseline, whole) for name, part in categories.items()},
    }


def _load(samples: Samples, limits: Limits) -> dict[str, Any]:
    """An open loop's figures; rates are over the time from the first request's sending to the last token."""
    first = samples[0]
    answered = [sample for sample in samples if sample.answer.error is None]
    met = sum(limits.met(sample.answer) for sample in answered)
    ends = [sample.at + sample.answer.seconds for sample in samples]
    seconds = max(ends) - min(sample.at for sample in samples)

    def rate(count: int) -> float | None:
        return count / seconds if seconds else None

    return {
        "configuration": first.configuration,
        "settings": asdict(first.settings),
        "rate": first.rate,
        "requests": len(samples),
        "errors": len(samples) - len(answered),
        "met": met,
        "late": len(answered) - met,
        "seconds": seconds,
        "requests_per_second": rate(len(answered)),
        "goodput": rate(met),
        "limits": asdict(limits),
        "tokens_per_second": rate(sum(sample.answer.tokens for sample in answered)),
        **latencies(answered),
    }


def _bandwidth(run: Run, baseline: Iterable[Sample]) -> dict[str, Any] | None:
    """Mean target pass of one plain row, prompts left out, over the time to read every weight once."""
    weight_bytes = run.details.get(run.baseline, {}).get("weight_bytes")
    bandwidth = run.provenance.get("machine", {}).get("read_bandwidth")
    seconds, passes = [], 0
    for sample in baseline:
        answer = sample.answer
        if sample.batch == 1 and answer.acceptance and answer.decode_phases and not answer.acceptance.drafted:
            seconds.append(answer.decode_phases.target)
            passes += answer.acceptance.rounds - 1
    if not weight_bytes or not bandwidth or passes < 1:
        return None
    limit, target = weight_bytes / bandwidth, math.fsum(seconds) / passes
    return {
        "configuration": run.baseline,
        "weight_bytes": weight_bytes,
        "read_bandwidth": bandwidth,
        "limit_seconds": limit,
        "target_seconds": target,
        "ratio": target / limit,
    }


def _groups(samples: Iterable[Sample], key: Callable[[Sample], Key]) -> list[list[Sample]]:
    """Samples with equal keys, in the keys' order."""
    groups: dict[Any, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[key(sample)].append(sample)
    return [groups[each] for each in sorted(groups)]
