"""`outrider train`: make a draft for a target, measure what it earns, write it for use."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.progress import progress_bar
from outrider.config import DEFAULT_DTYPE, DEFAULT_MODEL, check_dtype
from outrider.errors import ConfigError
from outrider.sampling.params import MOST_REQUESTED
from outrider.train.methods import METHODS

if TYPE_CHECKING:
    from outrider.train.config import TrainConfig
    from outrider.train.evaluate import Evaluation
    from outrider.train.run import Watcher

_GENERATED_TOGETHER = 16


def train_app() -> typer.Typer:
    """`train` with its subcommands; built on call."""
    app = typer.Typer(
        rich_markup_mode=None, no_args_is_help=True, help="Train draft models for a target, and measure them."
    )
    for command in (run, evaluate, export):
        app.command(command.__name__)(command)
    return app


def run(
    output: Annotated[Path, typer.Option(help="Folder of the run: checkpoint, and what the target said and thought.")],
    data: Annotated[
        list[Path], typer.Option(help="JSON lines with messages, question, prompt or text; may be repeated.")
    ],
    method: Annotated[str, typer.Option(help=f"Kind of draft: {', '.join(METHODS)}.")] = "spire",
    target: options.Model = DEFAULT_MODEL,
    dtype: options.Dtype = DEFAULT_DTYPE,
    text: Annotated[
        Path | None, typer.Option(help="Folder of the target's continuations and activations, shared by runs.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most rows of data.")] = None,
    max_tokens: options.MaxTokens = 256,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps in all; more than before goes on training.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting such as 'blocks=[9,19,29]' or 'omega=1'; may be repeated."),
    ] = None,
    max_model_len: options.MaxModelLen = 2048,
) -> None:
    """Train a draft. Interrupted or killed, the same command goes on where it stopped.

    Prompts are continued by the target, its activations are kept on disk, then the draft is trained on them.
    """
    from outrider.llm import LLM
    from outrider.provenance import provenance
    from outrider.train.continuations import Sampling
    from outrider.train.run import Text
    from outrider.train.run import run as train
    from outrider.train.team import launched_team

    config = read_settings(target, method, steps, setting or [])
    _check_folders(output, *([] if text is None else [text]))
    team = launched_team(lambda text: print(f"outrider: {text}", file=sys.stderr))
    llm = LLM(
        target,
        dtype=check_dtype(dtype),
        speculative_config=None,
        max_num_seqs=_GENERATED_TOGETHER,
        max_model_len=max_model_len,
    )
    source = Text(tuple(data), text or output / "text", limit, Sampling(max_tokens))
    with _watcher(config, main=team.rank == 0) as watcher:
        train(config, llm, source, output, watcher, provenance(), team)
    if team.rank == 0:
        print(f"outrider: trained {config.steps} steps; next: outrider train export {output} DRAFT", file=sys.stderr)


def export(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of `outrider train run`.")],
    draft: Annotated[Path, typer.Argument(metavar="DRAFT", help="Folder to write the draft to.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Matrices in int8, a scale a row: a quarter of the size.")
    ] = False,
) -> None:
    """Write the draft of a run's checkpoint, for `--speculative-config '{"method": "spire", "model": DRAFT}'`.

    Of `--method small` and `pruned` it is a Hugging Face folder, for `"method": "draft_model"`, Transformers and vLLM.
    """
    from outrider.train.export import export_draft

    _check_folders(draft)
    if draft.resolve() == run_folder.resolve():
        raise ConfigError(f"{draft} is the run's own folder; give another one for the draft")
    about = export_draft(run_folder, draft, int8=int8)
    size = sum(file.stat().st_size for file in draft.iterdir())
    print(f"{draft}: {about}, {size / 1e6:.1f} MB")


def evaluate(
    drafts: Annotated[
        list[str], typer.Argument(metavar="DRAFT...", help="Folders of drafts, 'ngram' or 'sparse_self'.")
    ],
    prompts: Annotated[Path, typer.Option(help="JSON lines as for bench.")],
    target: options.Model = DEFAULT_MODEL,
    dtype: options.Dtype = DEFAULT_DTYPE,
    k: Annotated[int, typer.Option(min=1, max=MOST_REQUESTED, help="Draft tokens of a round.")] = 4,
    temperature: Annotated[list[float] | None, typer.Option(help="May be repeated. [default: 0 and 1]")] = None,
    context: Annotated[
        list[int] | None, typer.Option(min=1, help="Cut prompts to so many tokens; may be repeated. [default: whole]")
    ] = None,
    max_tokens: options.MaxTokens = 64,
    limit: Annotated[int | None, typer.Option(min=1, help="Most prompts, over their categories.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the requests.")] = 0,
    max_model_len: options.MaxModelLen = 2048,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure tau and survival by position through the engine, with 95 % intervals over prompts."""
    from outrider.bench.subject import prompt_tokens
    from outrider.bench.workloads import load_workload
    from outrider.llm import LLM
    from outrider.provenance import provenance
    from outrider.train.evaluate import Setting, evaluation_json, speculation
    from outrider.train.evaluate import evaluate as measure

    tasks = load_workload(f"{prompts.parent}/{prompts.name}", seed=seed, limit=limit).tasks
    llm = LLM(target, dtype=check_dtype(dtype), speculative_config=None, max_model_len=max_model_len)
    ids = [prompt_tokens(task, llm.loaded.tokenizer) for task in tasks]
    lengths: list[int | None] = list(context) if context else [None]
    found: list[Evaluation] = []
    with progress_bar() as progress:
        for draft in drafts:
            speculating = llm.with_speculation({**speculation(draft), "num_speculative_tokens": k})
            for heat in temperature or [0.0, 1.0]:
                for length in lengths:
                    found.append(
                        measure(
                            speculating,
                            Setting(draft, k, heat, length),
                            ids,
                            new_tokens=max_tokens,
                            seed=seed,
                            progress=lambda done, total, name=draft: progress(name, done, total),  # type: ignore[misc]
                        )
                    )
    if as_json:
        about = {"max_tokens": max_tokens, "provenance": provenance()}
        print(json.dumps({"evaluations": [evaluation_json(each) for each in found], **about}))
    else:
        print("\n".join(_table(found)))


def _check_folders(*folders: Path) -> None:
    """Refuse, before hours of work, what is no folder and cannot become one."""
    for folder in folders:
        taken = next((each for each in (folder, *folder.parents) if each.exists()), None)
        if taken is not None and not taken.is_dir():
            raise ConfigError(f"{folder} cannot be a folder: {taken} is a file; give another one")


def read_settings(target: str, method: str, steps: int | None, pairs: Sequence[str]) -> TrainConfig:
    """The configuration that the options describe. Raises ConfigError."""
    from outrider.train.config import TrainConfig

    values: dict[str, Any] = {"target": target, "method": method}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            values[name] = json.loads(value)
        except ValueError:
            raise ConfigError(
                f"--set {pair!r}: give name=value, the value as JSON, such as 'blocks=[9,19,29]'"
            ) from None
    if steps is not None:
        values["steps"] = steps
    return TrainConfig.from_dict(values)


@contextmanager
def _watcher(config: TrainConfig, *, main: bool) -> Iterator[Watcher]:
    """Bars on a terminal; a line now and then where there is none, so that a log says how a run goes.

    Of several processes the main one alone tells.
    """
    from outrider.train.loop import Progress
    from outrider.train.run import Watcher
    from outrider.train.smooth import Smoothed

    if not main:
        yield Watcher(lambda *_: None, lambda _: None)
        return
    smoothed = Smoothed()
    with progress_bar() as bar:

        def step(progress: Progress) -> None:
            line = smoothed.line(progress, config.steps)
            bar(line, progress.step, config.steps)
            if not sys.stderr.isatty() and progress.step % 50 == 0:
                print(line, file=sys.stderr, flush=True)

        yield Watcher(bar, step)


def _table(found: Sequence[Evaluation]) -> Iterator[str]:
    yield f"{'draft':32} {'T':>4} {'context':>8} {'prompts':>8} {'tau':>6}  {'95 %':13} survival by position"
    for each in found:
        setting, interval = each.setting, each.interval
        ends = "" if interval is None else f"{interval.low:.2f} - {interval.high:.2f}"
        shares = " ".join(f"{share:.2f}" for share in each.survival)
        context = "whole" if setting.context is None else str(setting.context)
        name = setting.draft[-32:]
        yield f"{name:32} {setting.temperature:>4g} {context:>8} {each.prompts:>8} {each.tau:>6.2f}  {ends:13} {shares}"
