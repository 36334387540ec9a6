"""Does anything grow? Resident memory over hundreds of requests, against what loading planned.

    python benchmarks/memory.py               # SmolLM2-135M, 200 requests, n-gram drafts, a minute

Requests of mixed length and kind run eight at a time; resident memory is read after a warm-up of as many requests
as there are slots, and after the last. Prints a card and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from outrider import LLM, SamplingParams


def resident_bytes() -> int:
    """Memory of this process that is really there (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def serve(llm: LLM, first: int, count: int, max_tokens: int) -> None:
    """Requests ``first`` to ``first + count``: prompts of 20 to 320 tokens, greedy and sampled in turn."""
    vocab = llm.loaded.runner.vocab_size
    prompts = [[(i * 7919 + j * 31) % vocab for j in range(20 + i * 53 % 300)] for i in range(first, first + count)]
    params = [
        SamplingParams(temperature=(i % 2) * 0.8, seed=i, max_tokens=max_tokens, ignore_eos=True, logprobs=i % 3)
        for i in range(first, first + count)
    ]
    llm.generate(prompts, params)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=16)
    args = parser.parse_args()
    llm = LLM(args.model, max_model_len=512)
    readings = {"loaded": resident_bytes()}
    serve(llm, 0, 40, args.max_tokens)
    readings["after 40 requests"] = resident_bytes()
    serve(llm, 40, args.requests - 40, args.max_tokens)
    readings[f"after {args.requests} requests"] = resident_bytes()
    for name, value in readings.items():
        print(f"{name:<22} {value / 1e6:8.1f} MB")
    growth = readings[f"after {args.requests} requests"] - readings["after 40 requests"]
    print(json.dumps({"benchmark": "memory", "requests": args.requests, "growth_mb": round(growth / 1e6, 1)}))


if __name__ == "__main__":
    main()
