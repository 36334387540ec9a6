"""Does the cost model foretell what speculation brings? Predicted over measured speedup, for every fixed draft length.

    python benchmarks/prediction.py --prompts spec_bench.jsonl --limit 26 --batch 1 --draft drafts/spire

Passes are timed first and once more at the end, as a machine drifts; in between every prompt is answered plainly and
with every drafter at every length, in turn. The prediction takes survival from the very rounds that were measured, so
what is tested is the arithmetic of costs: (1 + survivals) tokens for a pass of k + 1 rows, k draft tokens and what a
drafter remembers of the pass, against one token for a pass of one row. What must hold: within 15 %. Speedups are those
after the first token, as reading the prompt is not the model's business.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from statistics import fmean
from typing import Any

from outrider import LLM
from outrider.bench.engine_subject import EngineSubject
from outrider.bench.harness import measure
from outrider.bench.record import Answer, Settings
from outrider.bench.workloads import load_workload
from outrider.calibrate.timing import Grid, calibrate
from outrider.plan.curves import CostCurve

PLAIN = "plain"
CONTEXT = 256


def decoding_seconds(answers: Sequence[Answer]) -> float:
    """Per token after the first arrival; a batch's steps are shared, so each answer counts its own share of tokens."""
    seconds = fsum(answer.arrivals[-1].seconds - answer.arrivals[0].seconds for answer in answers)
    return seconds / sum(answer.tokens - answer.arrivals[0].tokens for answer in answers)


def predicted(
    curves: Sequence[CostCurve], answers: Sequence[Answer], plain_answers: Sequence[Answer], k: int, batch: int
) -> float:
    """Speedup by survival of these rounds, the curves' passes and the drafting that was measured."""
    rounds = drafted = 0
    kept = [0.0] * k
    for answer in answers:
        acceptance = answer.acceptance
        assert acceptance is not None
        rounds, drafted = rounds + acceptance.rounds, drafted + acceptance.drafted
        for i, share in enumerate(acceptance.survival):
            kept[i] += acceptance.rounds * share
    tokens = 1 + fsum(kept) / rounds
    rows = batch * (1 + drafted / rounds)
    plain, verify = (fmean(curve.seconds(round(each), CONTEXT, batch) for curve in curves) for each in (batch, rows))
    drafting = drafting_seconds(answers) - drafting_seconds(plain_answers)
    return tokens / ((verify + drafting) / plain)


def drafting_seconds(answers: Sequence[Answer]) -> float:
    """A round's, in the phases in which a drafter works; rounds behind those that read a prompt.

    A step's time is in the figures of each of its requests, so a round's share of drafting is that of its step.
    """
    seconds, rounds = 0.0, 0
    for answer in answers:
        phases, acceptance = answer.decode_phases, answer.acceptance
        assert phases is not None
        assert acceptance is not None
        seconds, rounds = seconds + phases.draft + phases.commit, rounds + acceptance.rounds - 1
    return seconds / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", required=True, help="workload of `outrider bench` or JSON Lines file")
    parser.add_argument("--limit", type=int, help="prompts, spread over the categories")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--draft", help="folder of a SPIRe draft")
    args = parser.parse_args()
    llm = LLM(args.model, speculative_config=None, max_num_seqs=args.batch, max_model_len=4096)
    grid = Grid(batches=(args.batch,), contexts=(CONTEXT,), rows=tuple(args.batch * rows for rows in range(1, 11)))
    curves = calibrate([llm.loaded.runner], lambda *_: None, grid)
    methods: list[dict[str, Any]] = [{"method": "ngram"}]
    if args.draft:
        methods.append({"method": "spire", "model": args.draft})
    named = {f"{m['method']} k={k}": (m, k) for m in methods for k in args.lengths}
    subjects = [EngineSubject(PLAIN, llm)]
    for name, (method, k) in named.items():
        subjects.append(EngineSubject(name, llm.with_speculation({**method, "num_speculative_tokens": k})))
    settings = Settings(temperature=0.0, max_tokens=args.max_tokens, ignore_eos=True)
    answers: Mapping[str, list[Answer]] = defaultdict(list)
    for sample in measure(subjects, load_workload(args.prompts, limit=args.limit).tasks, [settings], batch=args.batch):
        answers[sample.configuration].append(sample.answer)
    curves += calibrate([llm.loaded.runner], lambda *_: None, grid)
    plain, ratios = decoding_seconds(answers[PLAIN]), {}
    for name, (_, k) in named.items():
        measured = plain / decoding_seconds(answers[name])
        foretold = predicted(curves, answers[name], answers[PLAIN], k, args.batch)
        ratios[name] = foretold / measured
        print(f"{name:12} predicted {foretold:5.2f}  measured {measured:5.2f}  ratio {ratios[name]:5.2f}")
    print(json.dumps({**vars(args), "least": min(ratios.values()), "most": max(ratios.values()), "ratios": ratios}))


if __name__ == "__main__":
    main()
