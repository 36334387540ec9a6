"""What does a way to hold weights cost in quality? Perplexity over a text, each setting against bfloat16.

    python benchmarks/perplexity.py --text book.txt                   # first 50 kB, five settings, some minutes
    python benchmarks/perplexity.py --text book.txt --bytes 500000 --settings bfloat16 bfloat16/int8

A setting is a dtype, and after a slash a quantization. The text is read in windows of 1024 tokens, of which the first
256 are only context (except at the very beginning); log-sum-exp in fp64. Prints a card, a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from outrider.errors import ConfigError
from outrider.hardware import processor
from outrider.models.base import Feed, TargetRunner
from outrider.models.load import load_runner
from outrider.models.tokenizer import Tokenizer

WINDOW = 1024
CONTEXT = 256
ROWS = 128
"""Rows of logits held at once: a large vocabulary makes a whole window's too many."""
BASELINE = "bfloat16"
SETTINGS = (BASELINE, "float32", "bfloat16/int8", "bfloat16/int8-dynamic", "bfloat16/gguf")


@dataclass(frozen=True)
class Window:
    """Tokens ``begin`` to ``end`` are fed, those from ``scored`` on are predicted."""

    begin: int
    scored: int
    end: int


@dataclass(frozen=True)
class Row:
    """One setting's result: ``nats`` a token, or why there is none."""

    setting: str
    nats: float | None = None
    seconds: float = 0.0
    reason: str = ""

    @property
    def perplexity(self) -> float | None:
        return None if self.nats is None else math.exp(self.nats)

    def ratio(self, baseline: Row) -> float | None:
        """Perplexity over the baseline's."""
        if self.nats is None or baseline.nats is None:
            return None
        return math.exp(self.nats - baseline.nats)


def windows(length: int, first: int, size: int = WINDOW, context: int = CONTEXT) -> Iterator[Window]:
    """Windows over ``length`` tokens that predict each from ``first`` on once; later ones begin with ``context``."""
    scored = first
    while scored < length:
        begin = max(0, scored - context)
        end = min(length, begin + size)
        yield Window(begin, scored, end)
        scored = end


def nats_per_token(
    runner: TargetRunner, start: Sequence[int], tokens: Sequence[int], size: int = WINDOW, context: int = CONTEXT
) -> float:
    """Mean negative log-likelihood of the tokens; every window is fed after the ``start`` tokens, which are free.

    Without start tokens the first token has nothing to be predicted from, and is not counted.
    """
    first = 0 if start else 1
    total, count = 0.0, 0
    for window in windows(len(tokens), first, size - len(start), context):
        fed = [*start, *tokens[window.begin : window.end]]
        total += _nats(runner, fed, len(start) + window.scored - window.begin)
        count += window.end - window.scored
    if not count:
        raise ConfigError(f"the text has {len(tokens)} tokens; one more than the model starts with is needed")
    return total / count


def _nats(runner: TargetRunner, fed: Sequence[int], scored: int) -> float:
    """Negative log-likelihood of ``fed[scored:]``, each token from all before it."""
    total = 0.0
    runner.open(0)
    try:
        if scored > 1:
            runner.score([Feed(0, tuple(fed[: scored - 1]), 0)])
        for begin in range(scored - 1, len(fed) - 1, ROWS):
            end = min(begin + ROWS, len(fed) - 1)
            (logits_TV,) = runner.score([Feed(0, tuple(fed[begin:end]), end - begin)]).logits
            wide_TV = logits_TV.double()
            targets_T = torch.tensor(fed[begin + 1 : end + 1])
            chosen_T = wide_TV.gather(1, targets_T[:, None]).squeeze(1)
            total += float((wide_TV.logsumexp(1) - chosen_T).sum())
    finally:
        runner.close(0)
    return total


def read_text(path: Path, limit: int) -> str:
    """The first ``limit`` bytes of a file, without a character that the limit cuts."""
    if not path.is_file():
        raise ConfigError(f"--text {path}: no such file; give a UTF-8 text file")
    if limit < 1:
        raise ConfigError(f"--bytes {limit}: must be 1 or more")
    with path.open("rb") as file:
        return file.read(limit).decode("utf-8", errors="ignore")


def split_start(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Tokens that the tokenizer puts before any text, and the text's own."""
    tokens = tokenizer.encode(text)
    empty = tokenizer.encode("")
    # An empty text may end with a mark of its own, too.
    count = next((i for i, pair in enumerate(zip(empty, tokens, strict=False)) if pair[0] != pair[1]), len(empty))
    return tokens[:count], tokens[count:]


def measure(model: str, setting: str, text: str) -> tuple[Row, int]:
    """One setting's row, and how many tokens the text has."""
    dtype, _, quantization = setting.partition("/")
    begun = time.perf_counter()
    try:
        loaded = load_runner(model, dtype=dtype, quantization=quantization or None, max_num_seqs=1, longest=WINDOW)
    except ConfigError as error:
        return Row(setting, reason=str(error)), 0
    start, tokens = split_start(loaded.tokenizer, text)
    size = min(WINDOW, loaded.runner.max_model_len)
    nats = nats_per_token(loaded.runner, start, tokens, size, max(1, min(CONTEXT, size // 4)))
    return Row(setting, nats, time.perf_counter() - begun), len(tokens)


def print_row(row: Row, baseline: Row) -> None:
    """One line of the table."""
    ratio = row.ratio(baseline)
    if row.perplexity is None:
        print(f"  {row.setting:<24} {row.reason}", flush=True)
        return
    against = "" if ratio is None else f"{ratio:10.5f} {100 * (ratio - 1):+8.3f} %"
    print(f"  {row.setting:<24} {row.perplexity:11.4f} {against} {row.seconds:8.1f}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text that the model was not quantised on")
    parser.add_argument("--bytes", type=int, default=50_000, help="how much of the text to use")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="dtype, or dtype/quantization")
    args = parser.parse_args()
    text = read_text(args.text, args.bytes)
    cpu = processor()
    print(f"model      {args.model}; {args.text.name}, {len(text.encode())} bytes")
    print(f"processor  {cpu.model}, {cpu.isa}, {cpu.threads} threads; torch {torch.__version__}")
    print(f"\n  {'setting':<24} {'perplexity':>11} {'/ ' + BASELINE:>10} {'':>10} {'seconds':>8}")
    rows: list[Row] = []
    baseline, tokens = Row(BASELINE), 0
    # The baseline goes first, wherever it was named: the other rows are compared with it as they finish.
    for setting in sorted(args.settings, key=lambda name: name != BASELINE):
        row, count = measure(args.model, setting, text)
        rows.append(row)
        baseline, tokens = row if setting == BASELINE else baseline, max(tokens, count)
        print_row(row, baseline)
    record = {
        "benchmark": "perplexity",
        "model": args.model,
        "text": args.text.name,
        "bytes": len(text.encode()),
        "tokens": tokens,
        "window": WINDOW,
        "processor": asdict(cpu),
        "perplexity": {row.setting: row.perplexity for row in rows},
        "ratio": {row.setting: row.ratio(baseline) for row in rows},
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
