"""Two runs against each other: the speed of B over that of A, prompt by prompt, on the prompts that both have."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.bench.record import Run, Sample, Settings
from outrider.bench.record_json import run_from_json
from outrider.bench.statistics import paired_ratio
from outrider.bench.table import Table, interval, text
from outrider.errors import ConfigError

# What must be equal for two speeds to differ by the software alone.
_MACHINE = ("platform", "processor", "kernels", "threads")
_SETUP = ("model", "dtype", "quantization", "speculative_config", "max_num_seqs", "max_model_len")


@dataclass(frozen=True)
class Place:
    """What is compared with what: prompts answered by one configuration under the same settings and load."""

    configuration: str
    settings: Settings
    batch: int
    rate: float | None

    @classmethod
    def of(cls, sample: Sample) -> Place:
        settings = sample.settings
        # A greedy answer has no seed, whatever the run's.
        settings = replace(settings, seed=None) if settings.temperature == 0 else settings
        return cls(sample.configuration, settings, sample.batch, sample.rate)

    def __str__(self) -> str:
        asked = self.settings
        load = f"{self.rate:g} requests/s" if self.rate is not None else f"batch {self.batch}"
        seed = "" if asked.seed is None else f", seed {asked.seed}"
        return f"{self.configuration} at T={asked.temperature:g}, {load}, max_tokens {asked.max_tokens}{seed}"


@dataclass(frozen=True)
class Compared:
    """B's tok/s over A's at one place: geometric mean over prompts, ends of a 95 % interval (None for one prompt)."""

    place: Place
    prompts: int
    mean: float
    low: float | None
    high: float | None

    def is_below(self, limit: float) -> bool:
        """Whether the ratio itself is below; the interval says how sure that is, and does not decide."""
        return self.mean < limit

    def covers(self, limit: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= limit <= self.high


def read_run(path: Path) -> Run:
    """A record written by ``outrider bench --output``, or its last line saved. Raises ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}); give a file that outrider bench --output wrote") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a JSON object; give a file that outrider bench --output wrote")
    try:
        return run_from_json(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def compare_runs(a: Run, b: Run) -> list[Compared]:
    """Every place that both runs have, in A's order.

    A prompt counts where its text is the same in both: ids alone may name other prompts under another seed. Its
    speed is its tokens over its time, all repeats together. Raises ConfigError when nothing is in common.
    """
    speeds_a, speeds_b = _speeds(a), _speeds(b)
    rows = [row for place in speeds_a if (row := _compared(place, speeds_a[place], speeds_b.get(place, {})))]
    if not rows:
        raise ConfigError(
            "the runs have nothing in common: no prompt was answered in both by a configuration of the same name "
            f"under the same settings (A: {_places(speeds_a)}; B: {_places(speeds_b)})"
        )
    return rows


def warnings(a: Run, b: Run) -> list[str]:
    """What else than the software differs: machine, threads, how a configuration was set up, what was answered."""
    differences = [
        f"{name} differs: {_short(a.provenance.get(name))} in A, {_short(b.provenance.get(name))} in B"
        for name in _MACHINE
        if a.provenance.get(name) != b.provenance.get(name)
    ]
    for configuration in a.configurations:
        one, other = (run.details.get(configuration) for run in (a, b))
        if one is not None and other is not None:
            differences += [
                f"{configuration}: {name} differs: {_short(one.get(name))} in A, {_short(other.get(name))} in B"
                for name in _SETUP
                if one.get(name) != other.get(name)
            ]
    return [*differences, *_unpaired(_speeds(a), _speeds(b))]


def comparison_text(rows: list[Compared]) -> str:
    """One line a place."""
    cells = (
        (
            row.place.configuration,
            f"{row.place.settings.temperature:g}",
            f"{row.place.rate:g}/s" if row.place.rate is not None else f"{row.place.batch}",
            f"{row.prompts}",
            interval({"mean": row.mean, "low": row.low, "high": row.high}),
        )
        for row in rows
    )
    columns = ("configuration", "T", "batch", "prompts", "B / A")
    return text(Table("tok/s of B over A, geometric mean over prompts [95 % interval]", columns, tuple(cells)))


def comparison_json(rows: list[Compared]) -> list[dict[str, Any]]:
    """The rows as plain JSON."""
    return [
        {
            "configuration": row.place.configuration,
            "temperature": row.place.settings.temperature,
            "batch": row.place.batch,
            "rate": row.place.rate,
            "prompts": row.prompts,
            "ratio": row.mean,
            "low": row.low,
            "high": row.high,
        }
        for row in rows
    ]


def verdicts(rows: list[Compared], limit: float) -> Iterator[str]:
    """A sentence for every row below ``limit``."""
    for row in rows:
        if row.is_below(limit):
            if row.low is None:
                sure = "one prompt gives no interval"
            elif row.covers(limit):
                sure = f"but the interval covers {limit:g}: it may be chance"
            else:
                sure = "and the whole interval is below"
            yield f"{row.place}: ratio {row.mean:.3f} is below {limit:g}, {sure}"


# --- helpers ----------------------------------------------------------------------------------------------

_Prompt = tuple[str, str, bool]
"""Id, text, and whether it is a chat: what makes two tasks the same."""


@dataclass
class _Speed:
    """Tokens and seconds of one prompt, and the prompts it was served with."""

    tokens: int = 0
    seconds: float = 0.0
    group: str = ""

    @property
    def log(self) -> float:
        return math.log(self.tokens / self.seconds)


def _speeds(run: Run) -> dict[Place, dict[_Prompt, _Speed]]:
    speeds: dict[Place, dict[_Prompt, _Speed]] = {}
    for sample in run.samples:
        if sample.answer.error is None and sample.answer.tokens and sample.answer.seconds > 0:
            task = sample.task
            prompts = speeds.setdefault(Place.of(sample), {})
            speed = prompts.setdefault((task.id, task.prompt, task.chat), _Speed(group=sample.group or task.id))
            speed.tokens += sample.answer.tokens
            speed.seconds += sample.answer.seconds
    return speeds


def _compared(place: Place, a: Mapping[_Prompt, _Speed], b: Mapping[_Prompt, _Speed]) -> Compared | None:
    # Prompts served together shared their steps: they are one unit of evidence.
    units: dict[str, list[float]] = defaultdict(list)
    for prompt in a:
        if prompt in b:
            units[a[prompt].group].append(b[prompt].log - a[prompt].log)
    found = paired_ratio(list(units.values()))
    if found is None:
        return None
    return Compared(place, sum(map(len, units.values())), _number(found["mean"]), found["low"], found["high"])


def _number(value: float | None) -> float:
    assert value is not None
    return value


def _places(speeds: Mapping[Place, object]) -> str:
    names = [str(place) for place in speeds]
    return "; ".join(names[:4]) + ("; ..." if len(names) > 4 else "") if names else "no answers"


def _unpaired(
    a: Mapping[Place, Mapping[_Prompt, _Speed]], b: Mapping[Place, Mapping[_Prompt, _Speed]]
) -> Iterator[str]:
    """What is in one run only, and so in no ratio: it must not drop out of sight."""
    for place in dict.fromkeys((*a, *b)):
        one, other = a.get(place, {}), b.get(place, {})
        for name, alone in (("A", one.keys() - other.keys()), ("B", other.keys() - one.keys())):
            if alone:
                yield f"{place}: prompts answered in {name} only: {len(alone)} of {len(one.keys() | other.keys())}"


def _short(value: object) -> str:
    return json.dumps(value, default=str)[:120]
