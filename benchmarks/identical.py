"""Is speculation invisible? Byte-for-byte comparison of speculative output with plain decoding at batch 1.

    python benchmarks/identical.py                                  # eight built-in prompts, a minute or two
    python benchmarks/identical.py --prompts spec_bench.jsonl       # rows with "turns", first turn each

Every prompt is decoded plainly at batch 1, greedy and seeded (T = 0.8, coupled verifier). Then each configuration
decodes the same requests again: n-gram drafts at batch 1 with k from 1 to 8, a draft model, and batches of 8 that mix
greedy and seeded requests, each with a k of its own, n-gram and draft model. Prints identical / total per
configuration, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prompts import load_prompts
from runners import DENSE, QUANTISED

from outrider import LLM, SamplingParams
from outrider.config import EngineConfig
from outrider.draft.base import Drafter
from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.hardware import processor
from outrider.models.load import LoadedModel, load_runner
from outrider.testing import ScheduledController
from outrider.types import RequestState

BATCH = 8
MOST_K = 8


@dataclass(frozen=True)
class Job:
    """One request; ``k`` is the draft length it is served with."""

    key: tuple[int, str]
    prompt: tuple[int, ...]
    params: SamplingParams
    k: int


@dataclass(frozen=True)
class Row:
    """Outcome of one configuration."""

    name: str
    identical: int
    total: int
    tau: float
    seconds: float


@dataclass(frozen=True)
class Setting:
    """One way to serve the requests; ``k_of`` gives a prompt's draft length, ``every`` thins the prompts out."""

    name: str
    drafter: Callable[[], Drafter]
    k_of: Callable[[int], int]
    batch: int
    every: int = 1


Answers = dict[tuple[int, str], tuple[int, ...]]


def decode(loaded: LoadedModel, drafter: Drafter, jobs: Sequence[Job], batch: int) -> tuple[Answers, float]:
    """Serve the jobs, ``batch`` at a time, with continuous batching; returns their tokens and the mean tau."""
    k_of: dict[str, int] = {}

    def budget(sequence: RequestState, _call: int) -> int:
        return k_of[sequence.request_id]

    engine = Engine(loaded.runner, drafter, ScheduledController(budget), loaded.tokenizer, EngineConfig(batch))
    keys: dict[str, tuple[int, str]] = {}
    for job in jobs:
        request_id = engine.add(job.prompt, job.params)
        keys[request_id], k_of[request_id] = job.key, job.k
    answers: Answers = {}
    rounds = emitted = 0
    while engine.has_work:
        engine.step()
        for output in engine.collect():
            answers[keys[output.request_id]] = output.outputs[0].token_ids
            rounds += output.metrics.rounds
            emitted += output.metrics.emitted
    return answers, emitted / max(rounds, 1)


def make_jobs(prompts: Sequence[Sequence[int]], max_tokens: int, k_of: Callable[[int], int]) -> list[Job]:
    """Two requests a prompt, greedy and seeded, one after the other so that batches mix them."""
    jobs = []
    for i, prompt in enumerate(prompts):
        greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        seeded = SamplingParams(temperature=0.8, seed=1000 + i, max_tokens=max_tokens)
        jobs.append(Job((i, "greedy"), tuple(prompt), greedy, k_of(i)))
        jobs.append(Job((i, "seeded"), tuple(prompt), seeded, k_of(i + 3)))
    return jobs


def compare(
    loaded: LoadedModel,
    draft: LoadedModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    passes: int,
    every: int = 1,
) -> Iterable[Row]:
    """Plain decoding at batch 1, then every configuration against it; a row each, as it finishes.

    ``every`` thins out the prompts of the slow configurations, those that draft at batch 1.
    """
    started = time.monotonic()
    expected, _ = decode(loaded, NoDrafter(), make_jobs(prompts, max_tokens, lambda _: 0), batch=1)
    print(f"reference: {len(expected)} answers, plain, batch 1, {time.monotonic() - started:.0f} s", flush=True)

    def model_drafter() -> Drafter:
        return ModelDrafter(draft.runner, loaded.runner.vocab_size, loaded.tokenizer.eos_ids)

    def cycling(shift: int) -> Callable[[int], int]:
        return lambda i: 1 + (i + shift) % MOST_K

    def mixed(turn: int) -> Setting:
        return Setting(f"ngram, k 1..8 mixed, batch 8, pass {turn + 1}", NgramDrafter, cycling(turn), BATCH)

    # A pass of each kind first: what is seen early tells most.
    settings = [
        Setting("plain, batch 8", NoDrafter, lambda _: 0, BATCH),
        mixed(0),
        Setting("draft_model, k 1..8 mixed, batch 8", model_drafter, cycling(5), BATCH),
        Setting("ngram, k 1..8 by prompt, batch 1", NgramDrafter, cycling(0), 1, every),
        Setting("draft_model, k 1..8 by prompt, batch 1", model_drafter, cycling(2), 1, every),
        *(mixed(turn) for turn in range(1, passes)),
    ]
    for setting in settings:
        started = time.monotonic()
        jobs = [job for job in make_jobs(prompts, max_tokens, setting.k_of) if job.key[0] % setting.every == 0]
        got, tau = decode(loaded, setting.drafter(), jobs, setting.batch)
        same = sum(tokens == expected[key] for key, tokens in got.items())
        yield Row(setting.name, same, len(jobs), tau, time.monotonic() - started)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default=None, help="draft model; the model itself by default")
    parser.add_argument("--prompts", type=Path, default=None, help="JSONL with 'turns' or 'prompt'")
    parser.add_argument("--limit", type=int, default=None, help="use the first so many prompts")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--kinds", nargs="+", default=[*DENSE], choices=[*DENSE, *QUANTISED], help="of weights")
    parser.add_argument("--passes", type=int, default=8, help="mixed n-gram passes; 8 give every prompt every k")
    parser.add_argument("--every", type=int, default=1, help="use every n-th prompt where drafts run at batch 1")
    args = parser.parse_args()
    texts = load_prompts(args.prompts, args.limit)
    report = {}
    for name in args.kinds:
        kind = (DENSE | QUANTISED)[name]
        llm = LLM(
            args.model,
            dtype=kind.dtype,
            quantization=kind.quantization,
            speculative_config=None,
            max_num_seqs=BATCH,
        )
        draft = load_runner(
            args.draft or args.model, dtype=kind.dtype, quantization=kind.quantization, max_num_seqs=BATCH
        )
        prompts = [llm.chat_tokens([{"role": "user", "content": text}]) for text in texts]
        for row in compare(llm.loaded, draft, prompts, args.max_tokens, args.passes, args.every):
            print(
                f"{name}  {row.name:<46} {row.identical:>5} / {row.total:<5} identical   tau {row.tau:.2f}   "
                f"{row.seconds:.0f} s",
                flush=True,
            )
            report[f"{name}, {row.name}"] = {"identical": row.identical, "total": row.total, "tau": row.tau}
    different = sum(row["total"] - row["identical"] for row in report.values())
    record = {"benchmark": "identical", "model": args.model, "prompts": len(texts), "max_tokens": args.max_tokens}
    print(json.dumps(record | {"processor": asdict(processor()), "different": different, "rows": report}))
    return 0 if different == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
