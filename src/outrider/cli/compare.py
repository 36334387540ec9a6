"""`outrider generate --compare`: plain and speculative decoding in turn, over the same weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from outrider.cli.figures import metrics_json, tokens_per_second
from outrider.errors import ConfigError
from outrider.sampling.rng import fresh_seed

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling.params import SamplingParams
    from outrider.types import RequestOutput

_PAIRS = 3


@dataclass(frozen=True)
class Comparison:
    """Medians over interleaved runs; ``identical`` tells whether every answer had the same tokens."""

    plain: RequestOutput
    speculative: RequestOutput
    plain_speed: float
    speculative_speed: float
    identical: bool
    promised: bool
    """Whether the tokens had to be the same: the accept rule and the model's runner keep bytes."""

    @property
    def ratio(self) -> float:
        return self.speculative_speed / self.plain_speed if self.plain_speed else 0.0


def compare_speeds(llm: LLM, prompt: str, params: SamplingParams) -> Comparison:
    """Run both ways in turn, one warm-up each; without a seed one is drawn, so that both say the same."""
    if llm.engine.drafter.name == "none":
        raise ConfigError("--compare needs a drafter: use --speculative-config auto or a JSON object")
    if not params.greedy and params.seed is None:
        params = replace(params, seed=fresh_seed())
    plain_llm = llm.with_speculation(None)
    warm_up = replace(params, max_tokens=4, min_tokens=0)
    for each in (plain_llm, llm):
        each.generate(prompt, warm_up)
    runs = [_pair(plain_llm, llm, prompt, params, swap=bool(i % 2)) for i in range(_PAIRS)]
    plain, speculative = runs[-1]
    return Comparison(
        plain,
        speculative,
        median(tokens_per_second(a.metrics) for a, _ in runs),
        median(tokens_per_second(b.metrics) for _, b in runs),
        all(_tokens(a) == _tokens(b) for a, b in runs),
        llm.engine.keeps_bytes(params),
    )


def _pair(
    plain: LLM, speculative: LLM, prompt: str, params: SamplingParams, swap: bool
) -> tuple[RequestOutput, RequestOutput]:
    # Who goes first alternates, so that a machine that slows down or speeds up favours neither.
    order = (speculative, plain) if swap else (plain, speculative)
    first, second = (each.generate(prompt, params)[0] for each in order)
    return (second, first) if swap else (first, second)


def comparison_lines(comparison: Comparison) -> str:
    """The text, then one line per way and their ratio."""
    metrics = comparison.speculative.metrics
    different = "DIFFERENT tokens, which is a bug" if comparison.promised else "the same law, other tokens"
    same = "the same tokens" if comparison.identical else different
    return "\n".join(
        [
            *(answer.text for answer in comparison.speculative.outputs),
            "",
            f"plain        {comparison.plain_speed:7.1f} tok/s",
            f"speculative  {comparison.speculative_speed:7.1f} tok/s   drafter {metrics.drafter}, "
            f"tau {metrics.tau:.2f}, {metrics.accepted}/{metrics.drafted} drafts accepted",
            f"speedup      {comparison.ratio:7.2f} x       decoding, median of {_PAIRS} runs in turn; {same}",
        ]
    )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Both runs and their ratio."""
    return {
        "text": comparison.speculative.outputs[0].text,
        "token_ids": list(comparison.speculative.outputs[0].token_ids),
        "finish_reason": comparison.speculative.outputs[0].finish_reason,
        "plain": {"tokens_per_second": comparison.plain_speed, "metrics": metrics_json(comparison.plain.metrics)},
        "speculative": {
            "tokens_per_second": comparison.speculative_speed,
            "metrics": metrics_json(comparison.speculative.metrics),
        },
        "ratio": comparison.ratio,
        "identical": comparison.identical,
    }


def _tokens(output: RequestOutput) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in output.outputs]
