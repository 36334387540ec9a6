"""`outrider plan --probe`: how much of each drafter survives, from a short run of the models themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outrider.cli.plan_inputs import loadable
from outrider.cli.progress import progress_bar
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.plan.acceptance import Estimate
    from outrider.plan.memory import Model
    from outrider.plan.search import Method
    from outrider.types import RequestMetrics

_WORKLOAD = "chat"
_PROMPTS = 12
_TOKENS = 48
_MODEL_LEN = 1024
_MOST_K = 8


def probe(
    target: Model, drafters: Sequence[tuple[Method, str | None]], models: Mapping[str, Model], k_max: int
) -> list[Estimate]:
    """Survival of each drafter over a few prompts of a named workload, greedily.

    Raises ConfigError for a drafter that does not run here, before anything is loaded.
    """
    from outrider.bench.subject import prompt_tokens
    from outrider.bench.workloads import load_workload
    from outrider.llm import LLM
    from outrider.sampling.params import SamplingParams

    configs = [_config(method, models[ref] if ref is not None else None) for method, ref in drafters]
    llm = LLM(
        loadable(target, "--probe"),
        dtype=target.storage.dtype,
        quantization=target.storage.quantization,
        speculative_config=None,
        max_model_len=_MODEL_LEN,
    )
    tasks = load_workload(_WORKLOAD, limit=_PROMPTS).tasks
    prompts = [prompt_tokens(task, llm.loaded.tokenizer) for task in tasks]
    k, found = min(k_max, _MOST_K), []
    with progress_bar() as report:
        for done, config in enumerate(configs):
            report(f"probing {config['method']}", done, len(configs))
            speculating = llm.with_speculation({**config, "num_speculative_tokens": k})
            params = SamplingParams(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True)
            found.append(_estimate([each.metrics for each in speculating.generate(prompts, params)], k))
    return found


def _config(method: Method, draft: Model | None) -> dict[str, Any]:
    if method == "ngram":
        return {"method": "ngram"}
    if method == "draft_model" and draft is not None:
        quantization = draft.storage.quantization
        more = {"quantization": quantization} if quantization else {}
        return {"method": "draft_model", "model": loadable(draft, "--probe"), **more}
    raise ConfigError(f"--probe runs ngram and draft models, not {method} from sizes: give an --acceptance for it")


def _estimate(answers: Sequence[RequestMetrics], k: int) -> Estimate:
    """Survival over all rounds; tau's interval over prompts."""
    from outrider.bench.statistics import bootstrap
    from outrider.plan.acceptance import Estimate, drafting_share

    rounds = sum(each.rounds for each in answers)
    kept = [sum(each.rounds * share for each in answers for share in each.survival[i : i + 1]) for i in range(k)]
    drafting = drafting_share(sum(each.drafted for each in answers), rounds, k)
    tau = sum(each.emitted for each in answers) / rounds
    ends = bootstrap([(each.emitted, each.rounds) for each in answers], lambda x: x[..., 0].sum(1) / x[..., 1].sum(1))
    low, high = (ends.low / tau, ends.high / tau) if ends else (1.0, 1.0)
    source = f"probed, {len(answers)} prompts, {rounds} rounds, greedy"
    return Estimate(tuple(each / rounds for each in kept), source, low, high, drafting)
