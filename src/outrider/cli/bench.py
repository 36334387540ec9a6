"""`outrider bench`: how fast, measured prompt by prompt against plain decoding; and `outrider bench compare`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.bench_plan import InProcess, Plan, drafters, endpoint_name, whole_numbers
from outrider.cli.bench_results import check_targets, publish
from outrider.cli.progress import progress_bar
from outrider.config import DEFAULT_DTYPE, DEFAULT_MODEL, check_dtype, check_quantization
from outrider.errors import ConfigError
from outrider.pauses import settle

if TYPE_CHECKING:
    from outrider.bench.load import Limits
    from outrider.bench.record import Run, Sample, Settings
    from outrider.bench.subject import Subject
    from outrider.bench.workloads import Workload

_WORKLOAD = "chat"
# Options that say how a model of this process is loaded and drafted for; without one they would mean nothing.
_MODEL_OPTIONS = (
    "dtype", "quantization", "max_model_len", "trust_remote_code", "speculative_config", "k", "peer",
)  # fmt: skip
_EPILOG = (
    "The last line of standard output is one JSON document. Exit code 1: a request failed, or bytes that are promised "
    "to be plain decoding's are not. Interrupted, it reports what was measured so far."
)


def bench_app() -> typer.Typer:
    """`bench` with its subcommand `compare`; built on call."""
    app = typer.Typer(rich_markup_mode=None, subcommand_metavar="[compare A.json B.json]")
    app.callback(invoke_without_command=True, epilog=_EPILOG)(bench)
    app.command("compare")(compare)
    return app


def bench(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help=f"As in generate; {DEFAULT_MODEL} unless only endpoints are measured.")
    ] = None,
    dtype: options.Dtype = DEFAULT_DTYPE,
    quantization: options.Quantization = None,
    max_model_len: options.MaxModelLen = None,
    trust_remote_code: options.TrustRemoteCode = False,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="chat, json, copy, creative, long-1k to long-8k; may be repeated. [default: chat]"),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines: Spec-Bench or HumanEval rows, or {prompt} or {messages}.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most prompts of each workload, over its categories.")
    ] = None,
    max_tokens: options.MaxTokens = 128,
    temperature: Annotated[
        list[float] | None, typer.Option(help="0 is greedy; may be repeated. [default: 0 and 1]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Makes the prompts of a workload and each request's own seed.")] = 0,
    no_seed: Annotated[bool, typer.Option("--no-seed", help="Send requests without a seed.")] = False,
    speculative_config: Annotated[
        list[str] | None, typer.Option(help="As in generate; repeated for several drafters. [default: auto]")
    ] = None,
    k: Annotated[str | None, typer.Option(help="Draft lengths to sweep, such as '0..8' or '2,4'.")] = None,
    batch: Annotated[
        list[str] | None, typer.Option(help="Requests at a time: 8, '1,8', or repeated. [default: 1]")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times that every prompt is answered.")] = 1,
    rate: Annotated[
        float | None, typer.Option(help="Open loop instead of batches: requests per second, Poisson.")
    ] = None,
    max_ttft: Annotated[float | None, typer.Option(help="Goodput's limit on time to first token, in ms.")] = None,
    max_tpot: Annotated[float | None, typer.Option(help="Goodput's limit on time per output token, in ms.")] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="URL of an OpenAI-compatible server; may be repeated. The key is OPENAI_API_KEY."),
    ] = None,
    endpoint_model: options.EndpointModel = None,
    peer: Annotated[list[str] | None, typer.Option(help="Another engine in this process: transformers.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the whole record, with every answer, as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with figures (needs outrider[plot]).")] = None,
) -> int:
    """Measure plain decoding, drafters and other engines on the same prompts, in turn."""
    if context.invoked_subcommand is not None:
        options.refuse_given(context, tuple(context.params), f"goes with bench, not with {context.invoked_subcommand}")
        return 0
    check_targets(output, html, prompts)
    in_process = None
    if model is not None or not endpoint:
        in_process = InProcess(
            model or DEFAULT_MODEL,
            check_dtype(dtype),
            check_quantization(quantization),
            max_model_len,
            trust_remote_code,
            drafters([options.read_speculative(text) for text in speculative_config or ["auto"]], k),
            _peers(peer or [], batch),
        )
    else:
        options.refuse_given(context, _MODEL_OPTIONS, "means nothing where only endpoints are measured: add --model")
    batches, goodput = _loop(rate, batch, repeats, max_ttft, max_tpot)
    plan = Plan(
        _workloads(workload, prompts, seed, limit),
        _settings(temperature or [0.0, 1.0], max_tokens, None if no_seed else seed),
        batches,
        repeats,
        rate,
        goodput,
        in_process,
        _endpoints(endpoint or [], endpoint_model),
        endpoint_model,
    )
    return _run(plan, output, html)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="A record that bench --output wrote.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Another; the ratio is B's speed over A's.")],
    fail_below: Annotated[
        float | None, typer.Option(help="Exit with 1 if a ratio is below this, whatever its interval covers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Compare two runs prompt by prompt: B's tok/s over A's, by configuration, with 95 % intervals.

    Only prompts that both runs answered count. It fails on the ratio itself; the message says whether the interval
    covers the limit, so that a limit can be set with the noise of the machine in mind.
    """
    from outrider.bench.compare import compare_runs, comparison_json, comparison_text, read_run, verdicts, warnings

    if fail_below is not None and not (math.isfinite(fail_below) and fail_below > 0):
        raise ConfigError(f"--fail-below {fail_below} must be a ratio above 0, such as 0.95")
    one, other = read_run(a), read_run(b)
    rows = compare_runs(one, other)
    failures = [] if fail_below is None else list(verdicts(rows, fail_below))
    differences = warnings(one, other)
    for line in (*(f"warning: {each}" for each in differences), *failures):
        print(f"outrider: {line}", file=sys.stderr)
    found = {"rows": comparison_json(rows), "warnings": differences, "failures": failures}
    print(json.dumps(found) if as_json else comparison_text(rows))
    return 1 if failures else 0


# --- checking what was asked --------------------------------------------------------------------------------


def _workloads(names: list[str] | None, prompts: Path | None, seed: int, limit: int | None) -> tuple[Workload, ...]:
    from outrider.bench.workloads import load_workload

    wanted = list(names or ([] if prompts else [_WORKLOAD]))
    if prompts is not None:
        # A pipe will do: it is read once.
        if not os.path.exists(prompts) or os.path.isdir(prompts):  # noqa: PTH110, PTH112 (Path's raise for some names)
            raise ConfigError(f"--prompts {str(prompts)[:80]!r}: there is no such file")
        # With its folder, so that a file called like a workload is still a file.
        wanted.append(f"{prompts.parent}/{prompts.name}")
    return tuple(load_workload(name, seed=seed, limit=limit) for name in dict.fromkeys(wanted))


def _settings(temperatures: Sequence[float], max_tokens: int, seed: int | None) -> tuple[Settings, ...]:
    from outrider.bench.record import Settings
    from outrider.sampling.params import SamplingParams

    for temperature in temperatures:
        SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    return tuple(Settings(temperature, max_tokens, seed) for temperature in dict.fromkeys(temperatures))


def _loop(
    rate: float | None, batch: list[str] | None, repeats: int, max_ttft: float | None, max_tpot: float | None
) -> tuple[tuple[int, ...], Limits]:
    from outrider.bench.load import Limits, check_rate

    for option, value in (("--max-ttft", max_ttft), ("--max-tpot", max_tpot)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{option} {value} must be above 0")
        if value is not None and rate is None:
            raise ConfigError(f"{option} is a limit on goodput, which needs an open loop: add --rate")
    if rate is not None:
        check_rate(rate)
        if batch or repeats > 1:
            raise ConfigError("--rate is an open loop, every prompt is sent once: leave out --batch and --repeats")
    limits = Limits(*(None if value is None else value / 1e3 for value in (max_ttft, max_tpot)))
    return whole_numbers(batch or ["1"], "--batch"), limits


def _endpoints(urls: Sequence[str], model: str | None) -> tuple[str, ...]:
    if model is not None and not urls:
        raise ConfigError(f"--endpoint-model {model!r} means nothing without --endpoint")
    by_name = {endpoint_name(url): url for url in urls}
    if len(by_name) < len(urls):
        raise ConfigError(f"an endpoint is given twice: {', '.join(urls)}")
    return tuple(by_name.values())


def _peers(peers: Sequence[str], batch: list[str] | None) -> tuple[str, ...]:
    for peer in peers:
        if peer != "transformers":
            raise ConfigError(f"--peer {peer!r} is unknown; use transformers, or --endpoint for a server")
    if peers and whole_numbers(batch or ["1"], "--batch") != (1,):
        raise ConfigError("--peer transformers answers one request at a time: leave out --batch")
    return tuple(dict.fromkeys(peers))


# --- measuring ----------------------------------------------------------------------------------------------


def _run(plan: Plan, output: Path | None, html: Path | None) -> int:
    from outrider.provenance import provenance

    about = provenance()
    subjects = plan.subjects()
    samples: list[Sample] = []
    stopped: BaseException | None = None
    try:
        _measure(plan, subjects, samples)
    except BaseException as error:
        # What was measured is handed over first, whatever ended it: a bug, an interrupt, a signal to leave.
        stopped = error
    if not samples:
        raise stopped or ConfigError("nothing to measure: the workload has no prompts")
    code = publish(_record(plan, subjects, samples, about), plan.limits, output, html)
    if stopped is not None:
        raise stopped
    return code


def _measure(plan: Plan, subjects: Sequence[Subject], samples: list[Sample]) -> None:
    total = plan.count(subjects)
    settle()
    with progress_bar() as progress:
        for sample in plan.measure(subjects):
            samples.append(sample)
            progress(sample.configuration, len(samples), total)


def _record(plan: Plan, subjects: Sequence[Subject], samples: Sequence[Sample], about: Mapping[str, Any]) -> Run:
    from outrider.bench.record import Run
    from outrider.provenance import measure_machine

    details = {subject.name: _told(subject.details) for subject in subjects}
    more = {
        "workloads": [{"name": each.name, "version": each.version} for each in plan.workloads],
        "answers": {"measured": len(samples), "planned": plan.count(subjects)},
        **({"machine": _told(measure_machine)} if plan.in_process is not None else {}),
    }
    return Run(tuple(samples), tuple(details), subjects[0].name, details, {**about, **more})


def _told(ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """What is asked when all is measured, and must not lose it: a server that is silent now, a lack of memory."""
    try:
        return ask()
    except (Exception, KeyboardInterrupt) as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
