"""The one line of figures that ends a generation, and its JSON form."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from outrider.types import RequestMetrics, RequestOutput


def tokens_per_second(metrics: RequestMetrics) -> float:
    """Decoding speed: tokens after the first round over the time they took; 0 when there was one round."""
    return 1.0 / metrics.tpot if metrics.tpot else 0.0


def figures_line(metrics: RequestMetrics) -> str:
    """Speed, tau, acceptance, rounds and the drafter really in use."""
    accepted = f"{metrics.accepted}/{metrics.drafted} drafts accepted"
    if metrics.drafted:
        accepted += f" ({metrics.acceptance_rate:.0%})"
    return (
        f"{tokens_per_second(metrics):.1f} tok/s | tau {metrics.tau:.2f} | {accepted} | "
        f"{metrics.rounds} rounds | drafter {metrics.drafter} | first token {(metrics.ttft or 0) * 1e3:.0f} ms"
    )


def metrics_json(metrics: RequestMetrics) -> dict[str, Any]:
    """Every figure by its field's name, with the derived ones."""
    return {
        **asdict(metrics),
        "tau": metrics.tau,
        "acceptance_rate": metrics.acceptance_rate,
        "tokens_per_second": tokens_per_second(metrics),
    }


def output_json(output: RequestOutput) -> dict[str, Any]:
    """``{"text", "token_ids", "finish_reason", "metrics"}``; with n > 1 the other answers under ``"outputs"``."""
    answers = [
        {
            "text": answer.text,
            "token_ids": list(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        | (
            {}
            if answer.logprobs is None
            else {"logprobs": [{t: asdict(lp) for t, lp in row.items()} for row in answer.logprobs]}
        )
        for answer in output.outputs
    ]
    more = {"outputs": answers} if len(answers) > 1 else {}
    return {**answers[0], "metrics": metrics_json(output.metrics), **more}
