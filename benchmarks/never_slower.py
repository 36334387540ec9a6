"""Is speculation ever slower than plain decoding, and is it timid? Ratios of one run, category by category.

    python benchmarks/never_slower.py --prompts spec_bench.jsonl --limit 52 --batch 1

Every prompt is answered plainly, with drafts of every fixed length and drafter, with the controller's choice ("auto"),
and with the controller over a drafter that is always wrong. Configurations take turns prompt group by prompt group, on
the same tokens: at temperature 0 all must say the same. What must hold: auto at least 0.98 x plain in every category
(median of prompt ratios), the wrong drafter 0.97 x, auto at least 0.97 x the best fixed configuration of the category,
and better than every single one over all prompts (geometric mean). The best of several noisy figures looks better than
it is; so how auto does beside the one that was best on the other half of a category's prompts is told as well, for
batches of one. Prints a table, then one JSON line; exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, geometric_mean, median
from typing import Any

from outrider import LLM
from outrider.bench.engine_subject import EngineSubject
from outrider.bench.harness import measure
from outrider.bench.record import Sample, Settings
from outrider.bench.workloads import load_workload
from outrider.hardware import processor, read_bandwidth
from outrider.pauses import settle
from outrider.testing import ScriptedDrafter

PLAIN, AUTO, WRONG = "plain", "auto", "wrong"
ALL = "all"
BARS = {"auto_least": 0.98, "wrong_least": 0.97, "auto_over_best_fixed_least": 0.97, "auto_over_best_fixed_all": 1.0}
Ratios = Mapping[str, Mapping[str, float]]
"""By category, then by configuration: plain seconds over its own, median over prompts; geometric mean over all."""


def subjects(llm: LLM, lengths: Sequence[int], methods: Sequence[dict[str, Any]]) -> list[EngineSubject]:
    """Plain, the controller's choice, the controller over a wrong drafter, and every fixed configuration."""
    wrong = llm.with_speculation({"method": "ngram"})
    vocab_size = llm.engine.runner.vocab_size
    # Tokens that have nothing to do with the text.
    wrong.engine.drafter = ScriptedDrafter(
        lambda sequence, budget: [7919 * (len(sequence.tokens) + i) % vocab_size for i in range(budget)]
    )
    made = {PLAIN: llm.with_speculation(None), AUTO: llm.with_speculation("auto"), WRONG: wrong}
    for method in methods:
        for k in lengths:
            made[f"{method['method']} k={k}"] = llm.with_speculation({**method, "num_speculative_tokens": k})
    return [EngineSubject(name, each) for name, each in made.items()]


def speedups(samples: Sequence[Sample]) -> dict[str, dict[str, list[float]]]:
    """Of every prompt, by category and over all, then by configuration. Raises SystemExit where an answer is missing or
    differs from plain decoding's."""
    plain = {(sample.task.id, sample.repeat): sample.answer for sample in samples if sample.configuration == PLAIN}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        answer, wanted = sample.answer, plain[sample.task.id, sample.repeat]
        if answer.error is not None or answer.token_ids != wanted.token_ids:
            sys.exit(f"{sample.configuration}, {sample.task.id}: {answer.error or 'other tokens than plain decoding'}")
        if sample.configuration != PLAIN:
            for category in (sample.task.category, ALL):
                found[category][sample.configuration].append(wanted.seconds / answer.seconds)
    return {name: dict(each) for name, each in found.items()}


def ratios(found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """A figure for each list of ``speedups``."""
    table = {name: {key: median(values) for key, values in each.items()} for name, each in found.items()}
    # Over the mix every prompt counts, however unusual: a median says nothing of the half beyond it.
    table[ALL] = {key: geometric_mean(values) for key, values in found[ALL].items()}
    return table


def verdict(table: Ratios) -> dict[str, Any]:
    """The bars, each by its worst case, and whether it is met."""
    fixed = [name for name in table[ALL] if name not in (AUTO, WRONG)]
    parts = {name: each for name, each in table.items() if name != ALL}
    figures = {
        "auto_least": min(each[AUTO] for each in parts.values()),
        "wrong_least": min(each[WRONG] for each in parts.values()),
        "auto_over_best_fixed_least": min(
            each[AUTO] / max(1.0, *(each[name] for name in fixed)) for each in parts.values()
        ),
        "auto_over_best_fixed_all": table[ALL][AUTO] / max(table[ALL][name] for name in fixed),
    }
    return figures | {"met": {name: figures[name] >= bar for name, bar in BARS.items()}}


def beside_foreseen(each: Mapping[str, Sequence[float]]) -> float:
    """Auto over the fixed configuration, or plain decoding, that was best on the other half of the prompts."""
    fixed = [name for name in each if name not in (AUTO, WRONG)]
    shares = []
    for half in (0, 1):
        best = max(fixed, key=lambda name: median(each[name][half::2]))
        chosen = 1.0 if median(each[best][half::2]) < 1 else median(each[best][1 - half :: 2])
        shares.append(median(each[AUTO][1 - half :: 2]) / chosen)
    return fmean(shares)


def print_table(table: Ratios) -> None:
    names = list(table[ALL])
    print(f"{'':16}" + "".join(f"{name:>14}" for name in names))
    for category, each in table.items():
        print(f"{category:16}" + "".join(f"{each[name]:14.2f}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization")
    parser.add_argument("--prompts", required=True, help="workload of `outrider bench` or JSON Lines file")
    parser.add_argument("--limit", type=int, help="prompts, spread over the categories")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1, help="of a batch, whose prompts all take as long")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--draft", help="folder of a SPIRe draft to add to the fixed configurations")
    args = parser.parse_args()
    llm = LLM(args.model, quantization=args.quantization, max_num_seqs=args.batch, max_model_len=4096)
    methods = [{"method": "ngram"}, *([{"method": "spire", "model": args.draft}] if args.draft else [])]
    settings = Settings(temperature=args.temperature, max_tokens=args.max_tokens, ignore_eos=True, seed=0)
    tasks = load_workload(args.prompts, limit=args.limit).tasks
    configurations = subjects(llm, args.lengths, methods)
    settle()
    samples = list(measure(configurations, tasks, [settings], batch=args.batch, repeats=args.repeats))
    each = speedups(samples)
    table = ratios(each)
    print_table(table)
    # Prompts of one batch share its time, and repeats their prompt: their halves would not be independent.
    alone = args.batch == 1 and args.repeats == 1
    parts = {name: values for name, values in each.items() if alone and name != ALL and len(values[AUTO]) > 1}
    foreseen = {name: beside_foreseen(values) for name, values in parts.items()}
    about = {"processor": asdict(processor()), "read_bandwidth": read_bandwidth(None), "tasks": len(tasks)}
    found = verdict(table)
    print(json.dumps({**vars(args), **about, **found, "ratios": table, "auto_over_foreseen": foreseen}))
    sys.exit(0 if all(found["met"].values()) else 1)


if __name__ == "__main__":
    main()
