"""How many tokens a draft earns: tau and survival through the real engine, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.bench.statistics import Interval, bootstrap
from outrider.draft.spire.config import FORMAT
from outrider.errors import ConfigError
from outrider.models.checkpoint import read_json
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.llm import LLM


@dataclass(frozen=True)
class Setting:
    """One cell of a table. ``context``: prompts cut to so many tokens; None: whole prompts."""

    draft: str
    k: int
    temperature: float
    context: int | None


@dataclass(frozen=True)
class Evaluation:
    """What one setting gave; tau counts the correction or bonus token."""

    setting: Setting
    prompts: int
    tokens: int
    rounds: int
    tau: float
    interval: Interval | None
    """95 %, bootstrap over prompts."""
    survival: tuple[float, ...]
    """Share of rounds whose draft token at each of the k positions was kept."""


def speculation(draft: str) -> dict[str, Any]:
    """How to speculate with what was named: a method that needs no folder, a SPIRe draft's folder, or a model's."""
    if draft in ("ngram", "sparse_self"):
        return {"method": draft}
    card = Path(draft) / "config.json"
    is_spire = card.is_file() and read_json(card).get("format") == FORMAT
    return {"method": "spire" if is_spire else "draft_model", "model": draft}


def evaluate(
    llm: LLM,
    setting: Setting,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> Evaluation:
    """Generate exactly ``new_tokens`` for each prompt, ends of text ignored, so that every prompt weighs the same.

    ``llm`` speculates with the setting's draft; prompts too short for its context are left out. Raises ConfigError when
    none is left.
    """
    fitting = [ids for ids in prompts if setting.context is None or len(ids) >= setting.context]
    room = llm.engine.runner.max_model_len - new_tokens
    cut = [list(ids)[: setting.context] for ids in fitting]
    kept = [ids for ids in cut if len(ids) <= room]
    if not kept:
        raise ConfigError(f"no prompt has {setting.context or 1} to {room} tokens; give longer or shorter --context")
    counts, survived, at_once = [], [], llm.engine.runner.max_num_seqs
    for start in range(0, len(kept), at_once):
        batch = kept[start : start + at_once]
        params = [
            SamplingParams(
                temperature=setting.temperature, max_tokens=new_tokens, ignore_eos=True, seed=seed + start + i
            )
            for i in range(len(batch))
        ]
        for output in llm.generate(batch, params):
            counts.append((output.metrics.emitted, output.metrics.rounds))
            survived.append((output.metrics.rounds, output.metrics.survival))
        progress(len(counts), len(kept))
    emitted, rounds = (int(column.sum()) for column in np.array(counts).T)
    interval = bootstrap(counts, lambda drawn: drawn[..., 0].sum(1) / drawn[..., 1].sum(1))
    return Evaluation(setting, len(kept), emitted, rounds, emitted / rounds, interval, _survival(survived, setting.k))


def _survival(by_prompt: Sequence[tuple[int, tuple[float, ...]]], k: int) -> tuple[float, ...]:
    """Shares over all rounds of all prompts; a prompt that kept nothing so far down counts with 0."""
    kept, rounds = np.zeros(k), sum(count for count, _ in by_prompt)
    for count, shares in by_prompt:
        kept[: len(shares)] += count * np.array(shares)
    return tuple(float(share) for share in kept / max(1, rounds))


def evaluation_json(each: Evaluation) -> dict[str, Any]:
    """Plain JSON."""
    interval = each.interval
    return {
        "draft": each.setting.draft,
        "k": each.setting.k,
        "temperature": each.setting.temperature,
        "context": each.setting.context,
        "prompts": each.prompts,
        "tokens": each.tokens,
        "rounds": each.rounds,
        "tau": each.tau,
        "interval": None if interval is None else [interval.low, interval.high],
        "survival": list(each.survival),
    }
