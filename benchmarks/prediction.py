"""Does the cost model foretell what speculation brings? Predicted over measured speedup, for every fixed draft length.

    python benchmarks/prediction.py --prompts spec_bench.jsonl --limit 26 --batch 1 --draft drafts/spire

Passes are timed first and once more at the end, as a machine drifts; in between every prompt is answered plainly and
with every drafter at every length, in turn. The prediction takes rounds and rows from the very answers that were
measured, so what is tested is the arithmetic of costs: every step takes a pass over the rows of all requests still at
it, their draft tokens, and what a drafter remembers of the pass. What must hold: within 15 %. Speedups are those once
the prompts of a batch are read, which is not the model's business.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from math import fsum
from statistics import fmean
from typing import Any

from outrider import LLM
from outrider.bench.engine_subject import EngineSubject
from outrider.bench.harness import measure
from outrider.bench.record import Acceptance, Answer, Arrival, Settings
from outrider.bench.workloads import load_workload
from outrider.calibrate.timing import Grid, calibrate
from outrider.pauses import settle
from outrider.plan.curves import CostCurve

PLAIN = "plain"
CONTEXTS = (64, 384, 1024)


def groups_of(answers: Sequence[Answer], batch: int) -> list[Sequence[Answer]]:
    """Answers that were given together."""
    return [answers[first : first + batch] for first in range(0, len(answers), batch)]


def decoding(group: Sequence[Answer]) -> list[list[Arrival]]:
    """Of each answer what came once all prompts of its group were read: before, steps are also the neighbours'."""
    read = _all_read(group)
    return [[arrival for arrival in answer.arrivals if arrival.seconds > read] for answer in group]


def decoding_seconds(answers: Sequence[Answer], batch: int) -> float:
    """Per token; a batch's steps are shared, so each answer counts its own share of tokens."""
    seconds, tokens = 0.0, 0
    for group in groups_of(answers, batch):
        for arrivals in filter(None, decoding(group)):
            seconds += arrivals[-1].seconds - _all_read(group)
            tokens += sum(arrival.tokens for arrival in arrivals)
    return seconds / tokens


def predicted_seconds(curves: Sequence[CostCurve], answers: Sequence[Answer], batch: int, drafting: float) -> float:
    """The same by these rounds and the curves' passes: every step costs what its rows do, of the requests still at it.

    Requests whose drafts are kept end sooner, and leave their batch smaller.
    """
    seconds, tokens = 0.0, 0
    for group in groups_of(answers, batch):
        arrived = decoding(group)
        rows = [1 + _acceptance(answer).drafted / _acceptance(answer).rounds for answer in group]
        for step in range(max(map(len, arrived))):
            going = [i for i, arrivals in enumerate(arrived) if len(arrivals) > step]
            width, context = round(fsum(rows[i] for i in going)), fmean(_context(group[i]) for i in going)
            passing = fmean(curve.seconds(width, context, len(going)) for curve in curves)
            seconds += len(going) * (passing + drafting)
        tokens += sum(arrival.tokens for arrivals in arrived for arrival in arrivals)
    return seconds / tokens


def drafting_seconds(answers: Sequence[Answer]) -> float:
    """A round's, in the phases in which a drafter works; rounds behind those that read a prompt.

    A step's time is in the figures of each of its requests, so a round's share of drafting is that of its step.
    """
    seconds, rounds = 0.0, 0
    for answer in answers:
        phases = answer.decode_phases
        assert phases is not None
        seconds, rounds = seconds + phases.drafter, rounds + _acceptance(answer).rounds - 1
    return seconds / rounds


def _all_read(group: Sequence[Answer]) -> float:
    return max(answer.arrivals[0].seconds for answer in group)


def _acceptance(answer: Answer) -> Acceptance:
    assert answer.acceptance is not None
    return answer.acceptance


def _context(answer: Answer) -> float:
    """Tokens behind which the answer was given, halfway through."""
    assert answer.prompt_tokens is not None
    return answer.prompt_tokens + answer.tokens / 2


def _grid(batch: int) -> Grid:
    """Batches up to this one, which shrinks as requests end, and up to nine rows of each request."""
    batches = tuple(sorted({max(1, batch >> halved) for halved in range(4)}))
    return Grid(batches, CONTEXTS, tuple(sorted({each * rows for each in batches for rows in (1, 2, 3, 5, 7, 9)})))


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
    curves = calibrate([llm.loaded.runner], lambda *_: None, _grid(args.batch))
    methods: list[dict[str, Any]] = [{"method": "ngram"}]
    if args.draft:
        methods.append({"method": "spire", "model": args.draft})
    named = {f"{m['method']} k={k}": (m, k) for m in methods for k in args.lengths}
    subjects = [EngineSubject(PLAIN, llm)]
    for name, (method, k) in named.items():
        subjects.append(EngineSubject(name, llm.with_speculation({**method, "num_speculative_tokens": k})))
    settings = Settings(temperature=0.0, max_tokens=args.max_tokens, ignore_eos=True)
    settle()
    answers: dict[str, list[Answer]] = defaultdict(list)
    for sample in measure(subjects, load_workload(args.prompts, limit=args.limit).tasks, [settings], batch=args.batch):
        answers[sample.configuration].append(sample.answer)
    curves += calibrate([llm.loaded.runner], lambda *_: None, _grid(args.batch))
    plain, ratios = answers.pop(PLAIN), {}
    decoded, foreseen = decoding_seconds(plain, args.batch), predicted_seconds(curves, plain, args.batch, 0.0)
    for name, given in answers.items():
        measured = decoded / decoding_seconds(given, args.batch)
        drafting = drafting_seconds(given) - drafting_seconds(plain)
        foretold = foreseen / predicted_seconds(curves, given, args.batch, drafting)
        ratios[name] = foretold / measured
        print(f"{name:12} predicted {foretold:5.2f}  measured {measured:5.2f}  ratio {ratios[name]:5.2f}")
    print(json.dumps({**vars(args), "least": min(ratios.values()), "most": max(ratios.values()), "ratios": ratios}))


if __name__ == "__main__":
    main()
