"""How do other engines do with the same weights, prompts and threads, and do they keep their own plain output?

    benchmarks/peers.sh FOLDER        # installs them, exports the weights, then runs this; see there

Engine x precision x mode, greedy, batch 1, one engine at a time, every prompt once a mode in a fresh process: pools
that outlive a request make a second identical one look fast. All get the same prompt text, the chat template filled
in. Outrider and Transformers run in this process, the others behind HTTP on the same machine, as they are served. An
engine that fails is a row that says why. Prints a card, a table and one JSON line. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peers_contenders import Contender, Place, contenders, versions
from peers_servers import PeerError
from peers_table import Row, all_figures, number, speed, table

from outrider.bench.harness import warm_up
from outrider.bench.record import Answer, Settings, Task
from outrider.bench.subject import Request, Subject
from outrider.bench.workloads import load_workload
from outrider.cli.bench_results import write_atomically
from outrider.errors import OutriderError
from outrider.hardware import processor
from outrider.kernels import THREADS_VARIABLE
from outrider.models.quiet import first_line
from outrider.provenance import provenance

# Spec-Bench counts the eight categories of MT-Bench as one of its six.
MULTI_TURN = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})


def as_texts(tasks: Sequence[Task], tokenizer: Any) -> list[Task]:
    """Chats as the text that the tokenizer's template makes of them, so that every engine reads the same."""

    def text(task: Task) -> str:
        messages = [{"role": "user", "content": task.prompt}]
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    groups = dict.fromkeys(MULTI_TURN, "multi-turn")
    return [
        replace(
            task,
            prompt=text(task) if task.chat else task.prompt,
            chat=False,
            category=groups.get(task.category, task.category),
        )
        for task in tasks
    ]


def measure(contender: Contender, tasks: Sequence[Task], settings: Settings) -> Row:
    """Start it, warm it up on another prompt, and ask everything once."""
    row = Row(contender.engine, contender.precision, contender.mode)
    try:
        with contender.start() as subject:
            warm_up(subject, settings, chat=False)
            load = os.getloadavg()[0]
            answers = {task.id: ask(subject, task, settings) for task in tasks}
            details = dict(subject.details())
            if "model" in details:
                # A server names its weights by where they lie.
                details["model"] = Path(str(details["model"])).name
            return replace(row, answers=answers, details=details, load=load)
    except (PeerError, OutriderError) as error:
        return replace(row, error=str(error))
    except Exception as error:
        # Foreign engines fail in ways of their own; whoever comes next is measured all the same.
        return replace(row, error=f"{type(error).__name__}: {first_line(error)}")


def ask(subject: Subject, task: Task, settings: Settings) -> Answer:
    """One request on its own."""
    return subject.serve([Request(task)], settings)[0]


def card(record: Mapping[str, Any]) -> str:
    """What was measured, and on what."""
    cpu = processor()
    return "\n".join(
        [
            f"- model {record['model']}, {record['prompts']} prompts of {record['workload']} ({record['version']}), "
            f"up to {record['max_tokens']} tokens, greedy, batch 1",
            f"- {cpu.model}, {cpu.isa}, {record['threads']} threads each; load {os.getloadavg()[0]:.1f}",
            f"- {', '.join(f'{name} {version}' for name, version in record['versions'].items())}",
            "- tok/s: all tokens over all time, reading the prompt included; x plain: mean of the prompts' own ratios; "
            "tau: tokens that arrive together, a round's",
            "- Outrider and Transformers in process, the others over HTTP on the same machine",
        ]
    )


def run(args: argparse.Namespace) -> None:
    """Measure everybody and print; with ``--results``, write as well."""
    from transformers import AutoTokenizer

    os.environ[THREADS_VARIABLE] = str(args.threads)
    torch.set_num_threads(args.threads)
    place = Place(args.folder.resolve(), args.model, args.threads)
    workload = load_workload(args.prompts, limit=args.limit)
    tokenizer = AutoTokenizer.from_pretrained(place.weights / "transformers")
    tasks = as_texts(workload.tasks, tokenizer)
    lengths = {task.id: len(tokenizer.encode(task.prompt)) for task in tasks}
    settings = Settings(max_tokens=args.max_tokens, seed=None)
    rows = []
    chosen = [
        each for each in contenders(place) if args.only is None or each.engine.lower().startswith(tuple(args.only))
    ]
    for contender in chosen:
        began = time.perf_counter()
        rows.append(measure(contender, tasks, settings))
        said = rows[-1].error or f"{number(speed(list(rows[-1].answered.values())))} tok/s"
        print(f"{contender.name}: {said} ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
    record = {
        "benchmark": "peers",
        "model": args.model,
        "workload": workload.name,
        "version": workload.version,
        "prompts": len(tasks),
        "max_tokens": args.max_tokens,
        "threads": args.threads,
        "versions": versions(place),
        "rows": all_figures(rows, tasks, lengths),
        "provenance": provenance(),
    }
    report = f"{card(record)}\n\n{table(record['rows'], sorted({task.category for task in tasks}))}\n"
    print(report)
    print(json.dumps(record))
    if args.results is not None:
        args.results.mkdir(parents=True, exist_ok=True)
        stem = f"{time.strftime('%Y-%m-%d')}-peers"
        write_atomically(args.results / f"{stem}.json", json.dumps(record, indent=1) + "\n")
        write_atomically(
            args.results / f"{stem}.md", f"# Engines on the same weights, {time.strftime('%Y-%m-%d')}\n\n{report}"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where peers.sh installed the engines")
    parser.add_argument("--model", default="smollm2-135m", help="demo model or GGUF file")
    parser.add_argument("--prompts", default="chat", help="workload or JSONL file; the limit is spread over categories")
    parser.add_argument("--limit", type=int, default=26)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=processor().cores)
    parser.add_argument("--only", action="append", type=str.lower, help="engines whose name begins so; may be repeated")
    parser.add_argument("--results", type=Path, help="folder for a dated JSON file and table")
    args = parser.parse_args()
    # Told to stop, it leaves through every `finally`: no server stays behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        run(args)
    except OutriderError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
