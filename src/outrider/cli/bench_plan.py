"""What `outrider bench` is asked to measure, checked before anything is loaded, and the subjects that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outrider.cli.options import api_key
from outrider.config import SpeculativeConfig, parse_speculative_config
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.engine_subject import EngineSubject
    from outrider.bench.load import Limits
    from outrider.bench.record import Sample, Settings, Task
    from outrider.bench.subject import Subject
    from outrider.bench.workloads import Workload

_SLOTS = 8
_PEER_LOOKUP = 10
"""Transformers' own advice for prompt_lookup_num_tokens."""


@dataclass(frozen=True)
class InProcess:
    """A model of this process: how it is loaded, with which drafters it is measured, and in which peers too."""

    model: str
    dtype: str
    quantization: str | None
    max_model_len: int | None
    trust_remote_code: bool
    drafters: tuple[SpeculativeConfig, ...]
    peers: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """One benchmark: what answers which prompts, how often, in what company. ``rate`` None is a closed loop."""

    workloads: tuple[Workload, ...]
    settings: tuple[Settings, ...]
    batches: tuple[int, ...]
    repeats: int
    rate: float | None
    limits: Limits
    in_process: InProcess | None
    endpoints: tuple[str, ...]
    endpoint_model: str | None

    def __post_init__(self) -> None:
        from outrider.bench.harness import check_unique

        check_unique(self._names(), self.tasks)

    @property
    def tasks(self) -> list[Task]:
        return list(chain.from_iterable(workload.tasks for workload in self.workloads))

    def subjects(self) -> list[Subject]:
        """All that is measured, plain decoding or else the first endpoint first: it is the baseline.

        Servers are asked before a model is loaded. Raises what loading raises, and ConfigError for a named workload
        that the model cannot hold.
        """
        servers = list(self._servers())
        return [*self._engines(self.in_process), *servers] if self.in_process else servers

    def count(self, subjects: Sequence[Subject]) -> int:
        """Samples that ``measure`` will give."""
        from outrider.bench.harness import count_samples

        loops = len(self.batches) if self.rate is None else 1
        return loops * count_samples(subjects, self.tasks, self.settings, repeats=self.repeats)

    def measure(self, subjects: Sequence[Subject]) -> Iterator[Sample]:
        """Samples as they come: batch after batch, or one Poisson stream after the other."""
        from outrider.bench.harness import measure
        from outrider.bench.load import measure_load

        if self.rate is None:
            for batch in self.batches:
                yield from measure(subjects, self.tasks, self.settings, batch=batch, repeats=self.repeats)
        else:
            for settings in self.settings:
                for subject in subjects:
                    yield from measure_load(subject, self.tasks, settings, self.rate)

    def _names(self) -> list[str]:
        """What ``subjects`` will be called: the same twice is refused before anything is loaded."""
        from outrider.bench.sweep import PLAIN, configuration_name

        own = [] if self.in_process is None else [PLAIN, *map(configuration_name, self.in_process.drafters)]
        return [*own, *map(endpoint_name, self.endpoints)]

    def _servers(self) -> Iterator[Subject]:
        from outrider.bench.endpoint import EndpointSubject

        for url in self.endpoints:
            yield EndpointSubject(endpoint_name(url), url, model=self.endpoint_model, api_key=api_key())

    def _engines(self, wanted: InProcess) -> Iterator[Subject]:
        from outrider.bench.engine_subject import EngineSubject
        from outrider.bench.sweep import PLAIN, configuration_name
        from outrider.llm import LLM

        plain = LLM(
            wanted.model,
            dtype=wanted.dtype,
            quantization=wanted.quantization,
            speculative_config=None,
            max_model_len=wanted.max_model_len,
            max_num_seqs=max(_SLOTS, *self.batches),
            trust_remote_code=wanted.trust_remote_code,
        )
        setup: dict[str, Any] = {"dtype": wanted.dtype, "quantization": wanted.quantization}
        baseline = EngineSubject(PLAIN, plain, setup={**setup, "speculative_config": None})
        self._check_fit(baseline)
        yield baseline
        for config in wanted.drafters:
            given = {name: value for name, value in asdict(config).items() if value is not None}
            llm = plain.with_speculation(config)
            yield EngineSubject(configuration_name(config), llm, setup={**setup, "speculative_config": given})
        yield from _peers(wanted)

    def _check_fit(self, subject: EngineSubject) -> None:
        from outrider.bench.workloads import WORKLOADS, check_fits

        limit, longest = subject.details()["max_model_len"], max(each.max_tokens for each in self.settings)
        for workload in self.workloads:
            # A file's too long prompts become answers with an error: its others are still worth measuring.
            if workload.name in WORKLOADS:
                check_fits(workload, subject.count_tokens, limit, longest)


def _peers(wanted: InProcess) -> Iterator[Subject]:
    if "transformers" in wanted.peers:
        from outrider.bench.transformers_subject import TransformersSubject

        yield TransformersSubject("transformers", wanted.model, wanted.dtype)
        name = f"transformers lookup={_PEER_LOOKUP}"
        yield TransformersSubject(name, wanted.model, wanted.dtype, prompt_lookup=_PEER_LOOKUP)


def endpoint_name(url: str) -> str:
    """Host, port and path: what tells one server from another, without a password. Raises ConfigError."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(
            f"--endpoint {url[:80]!r} is no URL ({error}); write one such as http://localhost:8000"
        ) from None
    return parts.netloc.rpartition("@")[2] + parts.path.rstrip("/").removesuffix("/v1") or url


def drafters(texts: Sequence[str | Mapping[str, Any] | None], ks: str | None) -> tuple[SpeculativeConfig, ...]:
    """Every drafter at every draft length of ``ks`` (None: its own), each once; plain decoding is always measured."""
    from outrider.bench.sweep import k_range, sweep_configs

    found: list[SpeculativeConfig | None] = []
    for text in texts:
        config = parse_speculative_config(text)
        if config is not None:
            found += [config] if ks is None else sweep_configs(config, k_range(ks))
    if ks is not None and not found:
        raise ConfigError(f"--k {ks[:60]!r} means nothing without a drafter: leave it out, or name one")
    return tuple(dict.fromkeys(each for each in found if each is not None and each.num_speculative_tokens != 0))


def whole_numbers(texts: Sequence[str], option: str) -> tuple[int, ...]:
    """Numbers of "1,8" or of a repeated option, each once, all 1 or more. Raises ConfigError."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    wrong = next((part for part in parts if not (part.isdecimal() and len(part) <= 3 and int(part))), None)
    if wrong is not None:
        raise ConfigError(f"{option} {wrong[:40]!r} must be a whole number from 1 to 999, or several such as '1,8'")
    return tuple(dict.fromkeys(map(int, parts)))
