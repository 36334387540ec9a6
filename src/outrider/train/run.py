"""One training run from prompts to a draft: continue, capture, choose a vocabulary, train. Every part resumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outrider.errors import CapabilityError, ConfigError
from outrider.models.checkpoint import read_tensors
from outrider.models.decoder import DecoderRunner
from outrider.train.capture import CaptureSettings, CaptureStore
from outrider.train.config import TrainConfig
from outrider.train.continuations import Document, Sampling, continue_rows
from outrider.train.loop import Progress, train
from outrider.train.methods import method_named
from outrider.train.methods.base import Material
from outrider.train.prompts import Row, read_rows
from outrider.train.team import ALONE, Team
from outrider.train.vocabulary import frequent_tokens

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.train.methods.base import Method


@dataclass(frozen=True)
class Watcher:
    """Who is told how far a run is."""

    part: Callable[[str, int, int], None]
    """What is being done, how much of it is done, and of how much."""
    step: Callable[[Progress], None]


@dataclass(frozen=True)
class Text:
    """Where training text comes from, and where what the target makes of it is kept."""

    files: tuple[Path, ...]
    folder: Path
    limit: int | None = None
    """Most rows, of all files shuffled together."""
    sampling: Sampling = field(default_factory=Sampling)


def run(
    config: TrainConfig,
    llm: LLM,
    text: Text,
    output: Path,
    watcher: Watcher,
    provenance: dict[str, Any],
    team: Team = ALONE,
) -> None:
    """Train a draft for ``llm``, which decodes plainly; the checkpoint is in ``output``. Raises OutriderError.

    The main process of ``team`` continues and captures, and tells the others what; the rows they read from
    ``text.folder``, which machines share.
    """
    runner, method = llm.engine.runner, method_named(config.method)
    if not isinstance(runner, DecoderRunner):
        raise CapabilityError(f"drafts learn from what Outrider's own decoder computes, which {runner.name} is not")
    _refuse_unused(config, method)
    config = config.for_depth(runner.config.num_layers)
    method.check(config, runner)
    documents = team.from_main(lambda: training_documents(llm, text, config.seed, watcher))
    store = team.from_main(lambda: _capture(runner, documents, config, text.folder, watcher))
    eos_ids = llm.loaded.tokenizer.eos_ids
    draft_ids, coverage = frequent_tokens(documents, runner.vocab_size, config.draft_vocab_size, eos_ids)
    own_words = sum(len(document.tokens) - document.answer_start for document in documents)
    about = {**provenance, "texts": len(documents), "own_words": own_words, "vocabulary_covers": coverage}
    tensors = dict(read_tensors(llm.loaded.files, torch.bfloat16))
    task, sampler = method.begin(config, Material(runner, documents, store, tensors, draft_ids, about))
    train(config, task, sampler, output, watcher.step, team=team)


def _refuse_unused(config: TrainConfig, method: Method) -> None:
    usual = TrainConfig()
    for name in method.unused:
        value = getattr(config, name)
        if value != getattr(usual, name):
            raise ConfigError(f"{name}={value!r} means nothing with method={config.method!r}; leave it out")


def training_documents(llm: LLM, text: Text, seed: int, watcher: Watcher) -> list[Document]:
    """Texts in the order of their rows, shuffled: more rows add texts behind those of fewer.

    What was captured is found again by its place, so this order is kept.
    """
    rows = read_rows(text.files, llm.loaded.tokenizer)
    random.Random(seed).shuffle(rows)
    room = llm.engine.runner.max_model_len
    fitting = [row for row in rows if _fits(row, text.sampling.max_tokens, room)]
    if not fitting:
        raise ConfigError(f"no row leaves room for its answer in max_model_len={room} tokens; raise max_model_len")
    chosen = fitting[: text.limit]
    open_rows = [row for row in chosen if row.open]
    path = text.folder / "continuations.jsonl"
    continued = continue_rows(
        llm, open_rows, text.sampling, path, lambda done, _: watcher.part("continuing", done, len(open_rows))
    )
    answered = iter(continued)
    return [next(answered) if row.open else Document(row.tokens, 0) for row in chosen]


def _fits(row: Row, answer: int, room: int) -> bool:
    # From a single token of plain text nothing is learnt.
    return len(row.tokens) + answer <= room if row.open else 1 < len(row.tokens) <= room


def _capture(
    runner: DecoderRunner, documents: Sequence[Document], config: TrainConfig, folder: Path, watcher: Watcher
) -> CaptureStore:
    layers = tuple(sorted(set(config.reads)))
    name = "captured-" + "-".join(map(str, layers))
    settings = CaptureSettings(layers, runner.config.hidden_size, config.window, config.sink)
    store = CaptureStore(folder / name, settings)
    missing = documents[len(store.documents) :]
    store.append(runner, missing, lambda done: watcher.part("capturing", done, len(documents)))
    return store
