"""What became of draft tokens, from the counters on a server's ``/metrics`` page (Prometheus text)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider.bench.record import Acceptance

# name{labels} value [timestamp]; label values may hold commas, braces and escaped quotes.
_LABEL = r'\s*[A-Za-z_]\w*\s*=\s*"(?:[^"\\]|\\.)*"\s*'
_SAMPLE = re.compile(rf"([A-Za-z_:][\w:]*)\s*(?:\{{((?:{_LABEL},?)*)\}})?\s+(\S+)(?:\s+-?\d+)?\s*")
_PAIR = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')

# vLLM's names, which llama-server uses under its own prefix; ``_created`` samples are times, not counts.
_COUNTER = re.compile(r"\w+:spec_decode_num_(\w+)_total")


@dataclass(frozen=True)
class Sample:
    """One line of the page."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = 0.0


def parse(page: str) -> list[Sample]:
    """All samples of a page with a finite value; comments and what is no sample are left out."""
    samples = []
    for line in page.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        name, labels, text = match.groups()
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            samples.append(Sample(name, dict(_PAIR.findall(labels or "")), value))
    return samples


def acceptance_between(before: str, after: str) -> Acceptance | None:
    """Rounds with a draft between two readings of a page, all engines and models of the server together.

    None where the page counts no drafts, or where the server was restarted in between. ``emitted`` is accepted tokens
    and one a round: vLLM's mean acceptance length, which leaves out rounds without a draft and does not see stops.
    """
    first, last = _counters(before), _counters(after)
    if last is None or first is None:
        return None
    grown = {key: round(last[key] - first.get(key, 0.0)) for key in last}
    if any(value < 0 for value in grown.values()):
        return None
    rounds, drafted, accepted = (grown[key] for key in ("drafts", "draft_tokens", "accepted_tokens"))
    positions = sum(isinstance(key, int) for key in grown)
    kept = tuple(grown.get(i, 0) for i in range(positions))
    # Which rounds drafted a position is told only when all drafts were of one length.
    reached = (rounds, *kept[:-1]) if kept and drafted == rounds * len(kept) else ()
    return Acceptance(rounds, drafted, accepted, rounds + accepted, reached, kept)


def _counters(page: str) -> dict[str | int, float] | None:
    """The counters by the middle of their names, accepted tokens per position by its number; None if incomplete."""
    counters: dict[str | int, float] = {}
    for sample in parse(page):
        match = _COUNTER.fullmatch(sample.name)
        if match is None:
            continue
        key: str | int = match[1]
        if key == "accepted_tokens_per_pos":
            position = sample.labels.get("position", "")
            if not position.isdecimal():
                continue
            key = int(position)
        counters[key] = counters.get(key, 0.0) + sample.value
    return counters if {"drafts", "draft_tokens", "accepted_tokens"} <= set(counters) else None
