"""`outrider audit`: show on a user's own model, drafter and settings that speculation changed nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.progress import progress_bar
from outrider.config import DEFAULT_DTYPE, DEFAULT_MODEL, SpeculativeConfig, parse_speculative_config
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.audit.report import AuditReport
    from outrider.audit.samples import Question
    from outrider.bench.record import Task
    from outrider.llm import LLM
    from outrider.sampling.params import SamplingParams

_LEAST_SAMPLES = 100
_LEAST_TOKENS = 2
_DRAFT_LENGTH = 5
_IN_PROCESS = ("model", "speculative_config", "dtype", "quantization", "max_model_len", "trust_remote_code")


def audit(
    context: typer.Context,
    model: options.Model = DEFAULT_MODEL,
    prompts: Annotated[
        str | None, typer.Option(help="JSON Lines file or workload of `bench`; by default some of our own.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most prompts.")] = 8,
    samples: Annotated[int, typer.Option(help="Sampled answers per prompt and side; more see smaller biases.")] = 1000,
    max_tokens: options.MaxTokens = 64,
    temperature: options.Temperature = 1.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    speculative_config: options.Speculative = "auto",
    dtype: options.Dtype = DEFAULT_DTYPE,
    quantization: options.Quantization = None,
    max_model_len: options.MaxModelLen = None,
    trust_remote_code: options.TrustRemoteCode = False,
    endpoint: Annotated[
        str | None, typer.Option(help="URL of a speculative OpenAI-compatible server. The key is OPENAI_API_KEY.")
    ] = None,
    plain_endpoint: Annotated[
        str | None, typer.Option(help="URL of the same model without speculation; goes with --endpoint.")
    ] = None,
    endpoint_model: options.EndpointModel = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Compare speculative with plain decoding: tokens, accept rule, sampled law, and a mistake that must be seen."""
    from outrider.sampling.params import SamplingParams

    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
    )
    _check(limit, samples, max_tokens)
    if endpoint is not None or plain_endpoint is not None:
        urls = _both(context, endpoint, plain_endpoint)
        report, settings = _audit_endpoints(*urls, endpoint_model, _tasks(prompts, limit), params, samples)
    else:
        if endpoint_model is not None:
            raise ConfigError(f"--endpoint-model {endpoint_model!r} means nothing without --endpoint")
        asked = _speculation(speculative_config)
        # Where the engine would choose draft lengths a fixed one is audited: much is seen only where much is drafted.
        k = asked.num_speculative_tokens or _DRAFT_LENGTH
        tasks = _tasks(prompts, limit)
        config = {key: value for key, value in asdict(asked).items() if value is not None}
        llm = options.load_llm(model, dtype, quantization, json.dumps(config), max_model_len, trust_remote_code)
        report = _audit(llm, k, tasks, params, samples, chooses=asked.num_speculative_tokens is None)
        settings = {
            "model": model,
            "dtype": dtype,
            "quantization": quantization,
            "speculative_config": config | {"num_speculative_tokens": k},
            "drafter": llm.engine.drafter.name,
        }
    _print(report, settings | {"prompts": prompts or "built-in"} | _sampling_json(params, samples), as_json)
    return 0 if report.passed else 1


# --- what is asked ------------------------------------------------------------------------------------------


def _check(limit: int, samples: int, max_tokens: int) -> None:
    if limit < 1:
        raise ConfigError(f"--limit {limit} must be 1 or more")
    if samples < _LEAST_SAMPLES:
        raise ConfigError(f"--samples {samples} must be {_LEAST_SAMPLES} or more: fewer show nothing")
    if max_tokens < _LEAST_TOKENS:
        raise ConfigError(f"--max-tokens {max_tokens} must be {_LEAST_TOKENS} or more: a last token is never drafted")


def _both(context: typer.Context, endpoint: str | None, plain_endpoint: str | None) -> tuple[str, str]:
    if endpoint is None or plain_endpoint is None:
        raise ConfigError("--endpoint and --plain-endpoint go together: the same model with and without speculation")
    options.refuse_given(context, _IN_PROCESS, "means nothing where servers are audited; leave it out")
    return endpoint, plain_endpoint


def _speculation(text: str) -> SpeculativeConfig:
    """Refused before a model is loaded: what drafts nothing has nothing to audit."""
    speculation = parse_speculative_config(options.read_speculative(text))
    if speculation is None or speculation.num_speculative_tokens == 0:
        raise ConfigError(
            f"--speculative-config {text}: plain decoding has nothing to audit; use auto or a JSON object such as "
            '{"method": "ngram"}'
        )
    return speculation


def _tasks(prompts: str | None, limit: int) -> tuple[Task, ...]:
    from outrider.audit.prompts import BUILT_IN
    from outrider.bench.record import Task
    from outrider.bench.workloads import load_workload

    if prompts is not None:
        return load_workload(prompts, limit=limit).tasks
    return tuple(Task(f"prompt {i}", "audit", text, chat=False) for i, text in enumerate(BUILT_IN[:limit]))


# --- auditing -----------------------------------------------------------------------------------------------


def _audit(
    llm: LLM, k: int, tasks: tuple[Task, ...], params: SamplingParams, samples: int, chooses: bool
) -> AuditReport:
    """``chooses``: whether the engine would choose other lengths than ``k``."""
    from outrider.audit.run import EngineAudit

    if llm.engine.drafter.name == "none":
        raise ConfigError(
            f"{llm.loaded.runner.name}: its cache cannot be rolled back, so nothing is drafted and nothing is to audit"
        )
    questions = [_question(llm, task) for task in tasks]
    with progress_bar() as progress:
        plain = llm.with_speculation(None).engine
        return EngineAudit(plain, llm.engine, k, progress, chooses).run(questions, params, samples)


def _question(llm: LLM, task: Task) -> Question:
    from outrider.audit.samples import Question
    from outrider.bench.subject import prompt_tokens

    return Question(task.id, task.prompt, tuple(prompt_tokens(task, llm.loaded.tokenizer)))


def _audit_endpoints(
    endpoint: str,
    plain_endpoint: str,
    model: str | None,
    tasks: tuple[Task, ...],
    params: SamplingParams,
    samples: int,
) -> tuple[AuditReport, dict[str, Any]]:
    from outrider.audit.endpoint import Endpoint, audit_endpoints
    from outrider.audit.samples import Question

    speculative, plain = (Endpoint.find(url, model, options.api_key()) for url in (endpoint, plain_endpoint))
    if speculative.model != plain.model:
        print(
            f"outrider: {endpoint} answers as {speculative.model!r} and {plain_endpoint} as {plain.model!r}; "
            "an audit is of one model",
            file=sys.stderr,
        )
    questions = [Question(task.id, task.prompt) for task in tasks]
    with progress_bar() as progress:
        report = audit_endpoints(plain, speculative, questions, params, samples, progress)
    return report, {"endpoint": speculative.details(), "plain_endpoint": plain.details()}


# --- telling ------------------------------------------------------------------------------------------------


def _sampling_json(params: SamplingParams, samples: int) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
    return {name: getattr(params, name) for name in names} | {"samples": samples}


def _print(report: AuditReport, settings: Mapping[str, Any], as_json: bool) -> None:
    from outrider.audit.report import report_json
    from outrider.audit.text import paragraph, table
    from outrider.provenance import provenance

    if as_json:
        print(json.dumps(report_json(report, settings) | {"summary": paragraph(report), "provenance": provenance()}))
    else:
        print(table(report), "", paragraph(report), sep="\n")
