"""The SPIRe article's Table 1 and headline multipliers for our own drafts, from what evaluation measured.

    outrider train evaluate drafts/spire drafts/small sparse_self --prompts spec_bench.jsonl --context 64 \\
        --context 256 --json > evaluated.json
    python benchmarks/draft_tables.py evaluated.json --spire drafts/spire --vanilla drafts/small --magicdec sparse_self

Tau by context with its 95 % interval, at every temperature that was measured; then throughput over plain decoding by
the article's cost model on this pair of models at batch 64 and context 512, tau held at what was measured over whole
prompts (or the longest context). Tables are Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.plan.architecture import Architecture
from outrider.plan.article import BATCH, CONTEXT, Setup

TARGET = Architecture(30, 576, 9, 3, 64, 1536, vocab=0)
VANILLA = Architecture(15, 288, 9, 3, 32, 768, vocab=0)
SPIRE_LAYERS = 3

Rows = Sequence[Mapping[str, Any]]


def tau_table(rows: Rows, names: Mapping[str, str], temperature: float) -> Iterator[str]:
    yield f"| context, T = {temperature:g} | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for context in dict.fromkeys(row["context"] for row in rows):
        cells = [_cell(rows, draft, temperature, context) for draft in names.values()]
        yield f"| {'whole prompts' if context is None else context} | " + " | ".join(cells) + " |"


def _cell(rows: Rows, draft: str, temperature: float, context: int | None) -> str:
    found = _find(rows, draft, temperature, context)
    if found is None:
        return "-"
    low, high = found["interval"] or (found["tau"], found["tau"])
    return f"{found['tau']:.3f} ({low:.2f} to {high:.2f}, n {found['prompts']})"


def multipliers(rows: Rows, names: Mapping[str, str], temperature: float) -> Iterator[str]:
    pair, k = Setup(TARGET, VANILLA, TARGET.trunk(SPIRE_LAYERS)), rows[0]["k"]
    contexts = sorted({row["context"] for row in rows}, key=lambda context: context or 1 << 30)
    found = {name: _find(rows, draft, temperature, contexts[-1]) for name, draft in names.items()}
    values = {name: pair.multiplier(name, BATCH, CONTEXT, row["tau"], k) for name, row in found.items() if row}
    yield f"| batch {BATCH}, context {CONTEXT}, k {k}, T = {temperature:g} | over plain | SPIRe over it |"
    yield "|---|---|---|"
    for name, value in values.items():
        share = f"{values['SPIRe'] / value:.2f} x" if "SPIRe" in values else "-"
        yield f"| {name} | {value:.2f} x | {share} |"


def _find(rows: Rows, draft: str, temperature: float, context: int | None) -> Mapping[str, Any] | None:
    wanted = (draft, temperature, context)
    return next((row for row in rows if (row["draft"], row["temperature"], row["context"]) == wanted), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("evaluations", type=Path, help="output of `outrider train evaluate --json`")
    parser.add_argument("--spire", help="the draft as it is called there")
    parser.add_argument("--vanilla")
    parser.add_argument("--magicdec")
    args = parser.parse_args()
    rows = json.loads(args.evaluations.read_text(encoding="utf-8"))["evaluations"]
    given = {"vanilla": args.vanilla, "MagicDec": args.magicdec, "SPIRe": args.spire}
    names = {name: draft for name, draft in given.items() if draft is not None}
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        print("\n".join([*tau_table(rows, names, temperature), "", *multipliers(rows, names, temperature), ""]))


if __name__ == "__main__":
    main()
