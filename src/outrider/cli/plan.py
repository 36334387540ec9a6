"""`outrider plan`: what speculation would bring on a device, before anything is bought, deployed or loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options
from outrider.cli.plan_curves import calibrate_models, curves_json, curves_text, known_curves
from outrider.cli.plan_inputs import planned_device, planned_model, read_document, storage
from outrider.cli.plan_page import PageOrder, order_page, write_page
from outrider.cli.plan_probe import Probe
from outrider.cli.plan_spire import check_trained, with_shipped
from outrider.config import DEFAULT_DTYPE, DEFAULT_MODEL, check_dtype
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.plan.acceptance import Estimate
    from outrider.plan.architecture import Storage
    from outrider.plan.curves import CostCurve
    from outrider.plan.memory import Model
    from outrider.plan.search import Candidate, Method, Prediction, Scenario

_MODEL = "demo name that was pulled, folder, config.json, GGUF file, or sizes as JSON"
_QUANTIZATION = "int8, int8-dynamic, fp8 or int4; none by default."


def plan(
    target: Annotated[str, typer.Option(help=f"Target model: {_MODEL}.")] = DEFAULT_MODEL,
    draft: Annotated[
        list[str] | None, typer.Option(help=f"Draft model: {_MODEL}; a trained SPIRe draft's folder; may be repeated.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="ngram, draft_model, magicdec, spire; may be repeated. [default: draft_model or ngram]"),
    ] = None,
    draft_cost: Annotated[
        float | None, typer.Option(help="A draft token's cost as a share of a plain step, instead of a draft model.")
    ] = None,
    hardware: Annotated[
        str, typer.Option(help="A device such as H100-SXM (an unknown name lists them), or 'this' machine, measured.")
    ] = "this",
    bandwidth: Annotated[float | None, typer.Option(help="The hardware's memory bandwidth, GB/s.")] = None,
    memory: Annotated[float | None, typer.Option(help="The hardware's memory, GB.")] = None,
    flops: Annotated[float | None, typer.Option(help="The hardware's dense TFLOP/s.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Requests decoded together.")] = 1,
    context: Annotated[int, typer.Option(min=1, max=10**8, help="Tokens of each request, prompt included.")] = 1024,
    acceptance: Annotated[
        list[float] | None, typer.Option(help="Share of draft tokens accepted; repeated, one for each drafter in turn.")
    ] = None,
    acceptance_from: Annotated[
        Path | None, typer.Option(help="Survival as measured: a record of `outrider bench --output`.")
    ] = None,
    probing: Annotated[
        bool, typer.Option("--probe", help="Survival, and what SPIRe drafts cost, from a short run of the models.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Time the target and --draft models here first, minutes; kept for later."),
    ] = False,
    k_max: Annotated[int, typer.Option(min=1, max=64, help="Most draft tokens of a round.")] = 16,
    dtype: options.Dtype = DEFAULT_DTYPE,
    quantization: Annotated[str | None, typer.Option(help=f"Of the target: {_QUANTIZATION}")] = None,
    draft_quantization: Annotated[str | None, typer.Option(help=f"Of draft models: {_QUANTIZATION}")] = None,
    page: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the plan and the SPIRe article's figures.")
    ] = None,
    ablation_from: Annotated[
        Path | None,
        typer.Option(help="Its ablation of your own drafts: the output of `outrider train evaluate --json`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict speed, best draft length, break-even acceptance and memory from sizes alone; no weights are loaded.

    A speedup is a range: from what a reproduction measured of the device's limit, to the limit. With --calibrate the
    weights are loaded and passes timed, once; later plans for this machine use them, and without an acceptance they
    are all that is printed.
    """
    from outrider.plan.search import Scenario, predict

    drafters = list(_drafters(method, draft or [], draft_cost))
    here = hardware == "this" and bandwidth is memory is flops is None
    timing_alone = calibrate and not (acceptance or acceptance_from or probing or page)
    if calibrate and not here:
        raise ConfigError("--calibrate times this machine: leave out --hardware, --bandwidth, --memory and --flops")
    if not timing_alone:
        _check_acceptance(acceptance, acceptance_from, probing, len(drafters))
    order = _check_page(page, ablation_from)
    model = planned_model(target, "TARGET", storage(check_dtype(dtype), quantization))
    if probing and draft_cost is None:
        drafters = list(with_shipped(model, drafters))
    models = _draft_models(model, drafters, storage(dtype, draft_quantization))
    # A SPIRe draft is no model that decodes alone: its passes cannot be timed like this.
    timed = list(dict.fromkeys([model, *(models[ref] for each, ref in drafters if ref and each == "draft_model")]))
    if timing_alone:
        timings = calibrate_models(timed)
        print(json.dumps(curves_json(timings)) if as_json else curves_text(timings))
        return
    scenario = Scenario(model, planned_device(hardware, dtype, bandwidth, memory, flops), batch, context, k_max)
    if not scenario.memory().fits:
        raise ConfigError(f"{model.name} {scenario.memory().refusal()}")
    # What takes minutes comes last: by then nothing is left to be refused.
    probe = Probe(model, k_max, batch, timing=here)
    estimates = _estimates(probe, drafters, models, acceptance, acceptance_from)
    if calibrate:
        calibrate_models(timed)
    curves = known_curves(timed, batch, context) if here else {}
    scenario = replace(scenario, curve=curves.get(model))
    candidates = _candidates(scenario, drafters, estimates, models, curves, draft_cost)
    _publish(scenario, [predict(scenario, each) for each in candidates], order, as_json)


def _publish(scenario: Scenario, predictions: Sequence[Prediction], order: PageOrder | None, as_json: bool) -> None:
    from outrider.plan.report import plan_json, plan_text

    for each in predictions:
        if not each.memory.fits:
            print(f"outrider: with {each.candidate.name} it {each.memory.refusal()}", file=sys.stderr)
    if order is not None:
        write_page(order, scenario, predictions)
    print(json.dumps(plan_json(scenario, predictions)) if as_json else plan_text(scenario, predictions))


# --- what is asked, checked before anything is read -----------------------------------------------------------


def _drafters(
    methods: Sequence[str] | None, drafts: Sequence[str], share: float | None
) -> Iterator[tuple[Method, str | None]]:
    """Each drafter as its method and the draft model it takes; draft models go to draft_model where that is asked."""
    wanted = _methods(methods or [], "draft_model" if drafts or share is not None else "ngram")
    taker = next((each for each in ("draft_model", "spire") if each in wanted), None)
    if share is not None and (drafts or len(wanted) > 1 or not 0.0 <= share <= 1e6):
        raise ConfigError(f"--draft-cost {share:g} must be 0 or more, for one --method and without --draft")
    if drafts and taker is None:
        raise ConfigError(f"--draft {drafts[0]!r} means nothing with --method {wanted[0]}: use draft_model or spire")
    for each in wanted:
        if each == taker and drafts:
            yield from ((each, ref) for ref in dict.fromkeys(drafts))
        elif each == "draft_model" and share is None:
            raise ConfigError("--method draft_model needs --draft MODEL, or --draft-cost for a model not at hand")
        else:
            yield each, None


def _methods(names: Sequence[str], default: Method) -> list[Method]:
    from outrider.plan.search import METHODS

    known: dict[str, Method] = {method: method for method in METHODS}
    for name in names:
        if name not in known:
            raise ConfigError(f"--method {name!r} is unknown; use {', '.join(METHODS)}")
    return [known[name] for name in dict.fromkeys(names)] or [default]


def _check_acceptance(given: Sequence[float] | None, record: Path | None, probing: bool, drafters: int) -> None:
    from outrider.plan.acceptance import assumed

    if bool(given) + (record is not None) + probing != 1:
        raise ConfigError(
            "say how many drafts are accepted: --acceptance 0.8, or --acceptance-from a record of `outrider bench`, "
            "or --probe"
        )
    if given and len(given) not in (1, drafters):
        raise ConfigError(
            f"--acceptance is given {len(given)} times and drafters {drafters}: give one for all, or one for each"
        )
    for alpha in given or []:
        assumed(alpha, 1)


def _check_page(page: Path | None, ablation: Path | None) -> PageOrder | None:
    if page is not None:
        return order_page(page, ablation)
    if ablation is not None:
        raise ConfigError(f"--ablation-from {str(ablation)!r} is for a figure of the page: give --html FILE too")
    return None


def _draft_models(target: Model, drafters: Sequence[tuple[Method, str | None]], held: Storage) -> dict[str, Model]:
    """Draft models by what they were called."""
    from outrider.plan.commands import UNNAMED_DRAFT

    models = {
        ref: planned_model(ref, UNNAMED_DRAFT + (f"-{i + 1}" if i else ""), held)
        for i, ref in enumerate(dict.fromkeys(ref for _, ref in drafters if ref is not None))
    }
    check_trained(target, drafters, models)
    _warn_of_vocabularies(target, models.values())
    return models


def _warn_of_vocabularies(target: Model, drafts: Iterable[Model]) -> None:
    # Sizes cannot tell whether two tokenizers are the same, but can tell that they are not.
    for draft in (each for each in drafts if each.reads is None):
        sizes = draft.architecture.vocab, target.architecture.vocab
        if sizes[0] != sizes[1]:
            print(
                f"outrider: {draft.name} has a vocabulary of {sizes[0]}, {target.name} of {sizes[1]}: "
                "a draft model needs the target's tokenizer",
                file=sys.stderr,
            )


def _candidates(
    scenario: Scenario,
    drafters: Sequence[tuple[Method, str | None]],
    estimates: Sequence[Estimate],
    models: Mapping[str, Model],
    curves: Mapping[Model, CostCurve],
    share: float | None,
) -> Iterator[Candidate]:
    from outrider.plan.search import Candidate, spire_draft

    for (method, ref), estimate in zip(drafters, estimates, strict=True):
        draft = models[ref] if ref is not None else None
        if method == "spire" and draft is None and share is None:
            draft = spire_draft(scenario.target)
        yield Candidate(method, estimate, draft, share, curves.get(draft) if draft else None)


def _estimates(
    probe: Probe,
    drafters: Sequence[tuple[Method, str | None]],
    models: Mapping[str, Model],
    acceptance: Sequence[float] | None,
    record: Path | None,
) -> list[Estimate]:
    """As assumed, as recorded, or, with neither, as probed."""
    from outrider.plan.acceptance import assumed, choose, read_measured

    if acceptance:
        alphas = acceptance if len(acceptance) > 1 else [*acceptance] * len(drafters)
        return [assumed(alpha, probe.k_max) for alpha in alphas]
    if record is None:
        return probe.run(drafters, models)
    measured = read_measured(read_document(record, "--acceptance-from"), str(record))
    names = [(ref, models[ref].name, models[ref].location) if ref else () for _, ref in drafters]
    return [choose(measured, method, each, str(record)) for (method, _), each in zip(drafters, names, strict=True)]
