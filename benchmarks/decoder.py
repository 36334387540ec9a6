"""How close is a decoding step to the memory limit, and what do extra rows cost?

    python benchmarks/decoder.py            # all kinds of weights, engine and Transformers; about three minutes
    python benchmarks/decoder.py --quick    # fewer rounds, steps only

Steps of 1, 5, 9 and 17 tokens and a batch of 8, at 256 tokens of context with logits for all rows, measured in turn
together with memory bandwidth, so that a noisy machine disturbs all alike; medians. The limit is the time to read
every weight once. With native kernels also: int8 weights, a prompt of 512 tokens against torch ops, and a step right
after a torch operation. Prints a card, a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from runners import DENSE, QUANTISED, load

from outrider import LLM, SamplingParams, kernels
from outrider.bench.transformers_subject import load_model
from outrider.hardware import processor, read_bandwidth
from outrider.models.base import Feed
from outrider.models.load import LoadedModel

CONTEXT = 256
BATCH = 8
STEPS = {"1 token": (1, 1), "5 tokens": (5, 1), "9 tokens": (9, 1), "17 tokens": (17, 1), "8 x 1 token": (1, BATCH)}
PROMPT = 512
NEW_TOKENS = 64


@dataclass(frozen=True)
class StepTimes:
    """Medians of one dtype: milliseconds a step, bytes of weights a step reads, bytes a second memory gives."""

    milliseconds: dict[str, float]
    weight_bytes: int
    bandwidth: float

    @property
    def limit(self) -> float:
        return self.weight_bytes / self.bandwidth * 1e3

    def over_one(self, step: str) -> float:
        return self.milliseconds[step] / self.milliseconds["1 token"]


def prompt_of(vocab: int) -> tuple[int, ...]:
    """Tokens without meaning: the time of a step does not depend on what they say."""
    return tuple((i * i * 7 + 3 * i + 1) % vocab for i in range(CONTEXT))


def weight_count(model: str) -> int:
    """Weights that a one-token step must read: every one once (a tied table serves as the head), no table lookups."""
    from outrider.models.checkpoint import read_config, read_tensors
    from outrider.models.resolve import resolve

    files = resolve(model)
    tied = read_config(files).tie_word_embeddings
    sizes = {name: tensor.numel() for name, tensor in read_tensors(files, torch.bfloat16)}
    table = sizes.pop("model.embed_tokens.weight")
    return sum(sizes.values()) + (table if tied else 0)


def measure_steps(loaded: LoadedModel, size: int, rounds: int) -> StepTimes:
    """Run every kind of step once a round, and read memory once a round."""
    runner = loaded.runner
    prompt = prompt_of(runner.vocab_size)
    for sequence_id in range(BATCH):
        runner.open(sequence_id)
        runner.score([Feed(sequence_id, prompt, 0)])

    def step(tokens: int, batch: int) -> None:
        runner.score([Feed(i, prompt[:tokens], tokens) for i in range(batch)])
        for i in range(batch):
            runner.commit(i, CONTEXT)

    times: dict[str, list[float]] = {name: [] for name in STEPS}
    bandwidths = []
    for _ in range(rounds):
        bandwidths.append(read_bandwidth(torch.get_num_threads(), repeats=1))
        for name, (tokens, batch) in STEPS.items():
            step(tokens, batch)
            times[name].append(_milliseconds(partial(step, tokens, batch)))
    for sequence_id in range(BATCH):
        runner.close(sequence_id)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return StepTimes(medians, size, statistics.median(bandwidths))


def measure_prompt(model: str, rounds: int) -> dict[str, float]:
    """Milliseconds to read a prompt of 512 tokens, bf16, native kernels and torch ops in turn."""
    times: dict[str, list[float]] = {"native": [], "torch": []}
    runners = {
        "native": load(model, DENSE["bf16"], PROMPT, batch=1),
        "torch": load(model, DENSE["bf16"], PROMPT, batch=1, torch_ops=True),
    }
    prompt = prompt_of(runners["native"].runner.vocab_size) * (PROMPT // CONTEXT)
    for loaded in runners.values():
        loaded.runner.open(0)
    for turn in range(rounds + 1):
        for name, loaded in runners.items():
            loaded.runner.commit(0, 0)
            milliseconds = _milliseconds(partial(loaded.runner.score, [Feed(0, prompt, 1)]))
            if turn > 0:
                times[name].append(milliseconds)
    native, torch_ops = (statistics.median(times[name]) for name in runners)
    return {"prompt_512_ms": native, "prompt_512_torch_ops_ms": torch_ops, "prompt_vs_torch_ops": torch_ops / native}


def measure_after_torch(model: str, rounds: int) -> dict[str, float]:
    """A step right after a torch operation, on one of torch's threads and on all, against one after none."""
    runner = load(model, DENSE["bf16"], CONTEXT + 64, BATCH).runner
    prompt = prompt_of(runner.vocab_size)
    logits_TV = torch.randn(4, runner.vocab_size)
    runner.open(0)
    runner.score([Feed(0, prompt, 0)])
    threads = torch.get_num_threads()
    operations = {"none": 0, "serial": 1, "parallel": threads}
    times: dict[str, list[float]] = {name: [] for name in operations}
    try:
        for _ in range(rounds * 2):
            for name, count in operations.items():
                for _ in range(3):
                    if count:
                        torch.set_num_threads(count)
                        logits_TV.softmax(-1)
                    times[name].append(_milliseconds(partial(runner.score, [Feed(0, prompt[:1], 1)])))
                    runner.commit(0, CONTEXT)
                # The last step's neighbours must not be the next kind's.
                time.sleep(0.02)
    finally:
        torch.set_num_threads(threads)
    alone, serial, parallel = (statistics.median(times[name]) for name in operations)
    return {"after_serial_torch_op": serial / alone, "after_parallel_torch_op": parallel / alone}


def measure_engine(model: str, rounds: int) -> dict[str, float]:
    """Plain decoding through the public API against Transformers' ``generate``, in turn, bf16, batch 1."""
    llm = LLM(model, dtype="bfloat16", speculative_config=None, max_num_seqs=1)
    reference = load_model(llm.loaded.files, "bfloat16")
    prompt = list(prompt_of(llm.loaded.runner.vocab_size))
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    ours, theirs = [], []
    for turn in range(rounds + 1):
        seconds, _ = _timed(lambda: llm.generate([prompt], params))
        reference_seconds, _ = _timed(
            lambda: reference.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS
            )
        )
        if turn > 0:
            ours.append(seconds)
            theirs.append(reference_seconds)
    return {
        "plain_tokens_per_second_bf16": NEW_TOKENS / statistics.median(ours),
        "plain_vs_transformers_bf16": statistics.median(theirs) / statistics.median(ours),
    } | measure_overhead(llm)


def measure_overhead(llm: LLM) -> dict[str, float]:
    """The part of decoding rounds (prefill left out) that is not the target model: drafting, policy, verifier, commit.

    Greedy and seeded, plain and with five n-gram drafts; ``overhead_share`` is the largest of the temperature's four.
    """
    shares = {}
    sampled = SamplingParams(temperature=0.8, seed=1, max_tokens=NEW_TOKENS, ignore_eos=True)
    kinds = {
        "greedy": replace(sampled, temperature=0.0, seed=None),
        "seeded": sampled,
        "seeded_top_p": replace(sampled, top_p=0.95),
    }
    for drafter, config in (("plain", None), ("ngram", {"method": "ngram", "num_speculative_tokens": 5})):
        each = llm.with_speculation(config)
        for kind, params in kinds.items():
            shares[f"overhead_{drafter}_{kind}"] = _overhead(each, params)
    return {"overhead_share": max(v for k, v in shares.items() if "top_p" not in k)} | shares


def _overhead(llm: LLM, params: SamplingParams) -> float:
    prompt = llm.loaded.tokenizer.encode("the red fox and the blue fox met the red fox and " * 12)
    request = llm.engine.add(prompt, params)
    shares = []
    while llm.engine.has_work:
        seconds, trace = _timed(llm.engine.step)
        shares.append(1 - trace.seconds.target / seconds)
    llm.engine.collect([request])
    return float(statistics.median(shares[2:]))


def _milliseconds(call: Callable[[], object]) -> float:
    return _timed(call)[0] * 1e3


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def print_card(model: str, rounds: int) -> None:
    """What was measured, and on what."""
    cpu = processor()
    print(f"model      {model}, context {CONTEXT}, logits for all rows")
    print(f"processor  {cpu.model}, {cpu.isa}, {cpu.threads} threads, oneDNN bf16: {cpu.bf16}")
    native = kernels.load().native
    print(f"kernels    {f'native, {native.level}, {native.threads} threads' if native else 'torch ops'}")
    print(f"torch      {torch.__version__}; medians of {rounds} rounds, all kinds of step in turn")


def print_table(kind: str, times: StepTimes) -> None:
    """Milliseconds, and how they compare with one token and with the limit."""
    print(f"\n{kind}: {times.weight_bytes / 1e6:.0f} MB of weights, {times.bandwidth / 1e9:.1f} GB/s, ", end="")
    print(f"limit {times.limit:.2f} ms")
    print(f"  {'step':<12} {'ms':>8} {'/ 1 token':>10} {'/ limit':>8}")
    for name, value in times.milliseconds.items():
        print(f"  {name:<12} {value:8.2f} {times.over_one(name):10.2f} {value / times.limit:8.2f}")


def figures(times: dict[str, StepTimes]) -> dict[str, float]:
    """The figures that are watched from one version to the next."""
    result = {}
    for kind, each in times.items():
        result[f"limit_ratio_{kind}"] = each.milliseconds["1 token"] / each.limit
        for count in (5, 9, 17):
            result[f"ratio_{count}_{kind}"] = each.over_one(f"{count} tokens")
    return result | {"batch8_gain": BATCH / times["bf16"].over_one("8 x 1 token")}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--quick", action="store_true", help="7 rounds, without the engine and Transformers")
    args = parser.parse_args()
    rounds = 7 if args.quick else args.rounds
    print_card(args.model, rounds)
    native = kernels.load().native is not None
    count = weight_count(args.model)
    times = {}
    for name, kind in (DENSE | QUANTISED if native else DENSE).items():
        loaded = load(args.model, kind, CONTEXT + 64, BATCH)
        times[name] = measure_steps(loaded, count * kind.itemsize, rounds)
        print_table(name, times[name])
    result = figures(times)
    if native:
        result |= measure_prompt(args.model, max(3, rounds // 5)) | measure_after_torch(args.model, rounds)
    if not args.quick:
        result |= measure_engine(args.model, max(3, rounds // 5))
    record = {
        "benchmark": "decoder",
        "model": args.model,
        "rounds": rounds,
        "processor": asdict(processor()),
        "milliseconds": {name: value.milliseconds for name, value in times.items()},
        "bandwidth": {name: value.bandwidth for name, value in times.items()},
    }
    print(json.dumps(record | {name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
