"""What the target says to training prompts: generated once, in batches, and kept on disk a line at a time.

A line is ``{"prompt": [ids], "answer": [ids], "temperature": t}``. Interrupted anywhere, it goes on where it stopped; a
torn last line is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import ConfigError
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.train.prompts import Row

_TOGETHER = 4
"""Batches asked for at a time, so that slots that end early find a next prompt."""


@dataclass(frozen=True)
class Document:
    """Token ids of one text; ``answer_start`` is where the target's own words begin (0 for plain text)."""

    tokens: tuple[int, ...]
    answer_start: int


@dataclass(frozen=True)
class Sampling:
    """How prompts are continued; temperatures take turns over the prompts."""

    max_tokens: int = 256
    temperatures: tuple[float, ...] = (0.0, 1.0)
    seed: int = 0

    def of(self, index: int) -> SamplingParams:
        temperature = self.temperatures[index % len(self.temperatures)]
        return SamplingParams(max_tokens=self.max_tokens, temperature=temperature, seed=self.seed + index)


def continue_rows(
    llm: LLM, rows: Sequence[Row], sampling: Sampling, path: Path, progress: Callable[[int, int], None]
) -> list[Document]:
    """Append to ``path`` an answer for every row that has none yet; ``progress(rows done, tokens of this call)``.

    Returns every row with its answer. Raises ConfigError for a file that was made from other rows.
    """
    _mend(path)
    documents = list(read_documents(path))
    for index, (row, document) in enumerate(zip(rows, documents, strict=False)):
        if document.tokens[: document.answer_start] != row.tokens:
            raise ConfigError(f"{path}, line {index + 1}: made from other prompts; remove it or use another folder")
    tokens, together = 0, _TOGETHER * llm.engine.runner.max_num_seqs
    with path.open("a", encoding="utf-8") as file:
        for start in range(len(documents), len(rows), together):
            batch = rows[start : start + together]
            params = [sampling.of(start + i) for i in range(len(batch))]
            for row, each, output in zip(
                batch, params, llm.generate([list(row.tokens) for row in batch], params), strict=True
            ):
                answer = output.outputs[0].token_ids
                tokens += len(answer)
                documents.append(Document((*row.tokens, *answer), len(row.tokens)))
                line = {"prompt": row.tokens, "answer": answer, "temperature": each.temperature}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            progress(start + len(batch), tokens)
    return documents[: len(rows)]


def read_documents(path: Path) -> Iterator[Document]:
    """Every whole line of a file of continuations."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
                prompt, answer = value["prompt"], value["answer"]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}, line {number}: not a continuation ({error}); remove the file") from None
            yield Document((*prompt, *answer), len(prompt))


def _mend(path: Path) -> None:
    """Make the file where there is none yet, and cut off a torn last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
