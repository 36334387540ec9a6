"""What the target thought at every position: activations and the law of the next token, computed once, kept on disk.

A folder holds ``rows.bin``, one record a position, and ``documents.jsonl``, one line a text, written after its rows; so
it can be interrupted anywhere and goes on where it stopped. Of a text only the rows that training can reach are kept:
its first positions (the sink), and from one window before the target's own words to the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from outrider.errors import ConfigError
from outrider.models.base import Feed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from outrider.models.decoder import DecoderRunner
    from outrider.train.continuations import Document

_CHUNK = 512
_SLOT = -1


@dataclass(frozen=True)
class CaptureSettings:
    """What is kept of every position."""

    layers: tuple[int, ...]
    """Target states: the residual stream after so many layers."""
    hidden_size: int
    window: int | None
    sink: int

    @property
    def record(self) -> np.dtype[Any]:
        """Token, target states and final normed state in bfloat16 bits, log of the partition function."""
        width = self.hidden_size
        return np.dtype(
            [("token", "i4"), ("lse", "f4"), ("final", "u2", (width,)), ("states", "u2", (len(self.layers), width))]
        )


@dataclass(frozen=True)
class Captured:
    """Where one text's rows are: ``rows`` records from ``row``; the first ``sink`` of them are positions 0, 1, ...,
    the others are positions from ``first`` on. ``start`` is the first position from which a token is learnt."""

    row: int
    rows: int
    sink: int
    first: int
    start: int

    @property
    def length(self) -> int:
        return self.first + self.rows - self.sink


class CaptureStore:
    """A folder of captured texts, for appending and for reading."""

    def __init__(self, folder: Path, settings: CaptureSettings) -> None:
        """Raises ConfigError where the folder holds captures of other settings."""
        self.folder, self.settings = folder, settings
        folder.mkdir(parents=True, exist_ok=True)
        card, wanted = folder / "settings.json", json.dumps(asdict(settings))
        if not card.exists():
            card.write_text(wanted, encoding="utf-8")
        if card.read_text(encoding="utf-8") != wanted:
            raise ConfigError(f"{folder} holds activations of other settings; remove it or use another folder")
        self.documents = self._read()

    def rows(self) -> NDArray[Any]:
        """All records, mapped from disk. Raises ConfigError on a machine that lacks them."""
        path = self.folder / "rows.bin"
        if not path.exists():
            raise ConfigError(f"{self.folder} is not on this machine; machines that train together share a text folder")
        return np.memmap(path, self.settings.record, mode="r")

    def append(self, runner: DecoderRunner, documents: Iterable[Document], progress: Callable[[int], None]) -> None:
        """Run the target over texts and keep their rows; ``progress(texts done)``."""
        count = sum(each.rows for each in self.documents)
        with (self.folder / "rows.bin").open("ab") as rows, (self.folder / "documents.jsonl").open("a") as index:
            for document in documents:
                records, place = self._capture(runner, document, count)
                rows.write(records.tobytes())
                rows.flush()
                index.write(json.dumps(list(asdict(place).values())) + "\n")
                index.flush()
                count += place.rows
                self.documents.append(place)
                progress(len(self.documents))

    def _capture(self, runner: DecoderRunner, document: Document, row: int) -> tuple[NDArray[Any], Captured]:
        s, tokens = self.settings, document.tokens
        start = max(1, document.answer_start - 1)
        first = 0 if s.window is None else max(0, start - s.window)
        sink = min(s.sink, first)
        records = np.zeros(len(tokens), s.record)
        records["token"] = tokens
        runner.open(_SLOT)
        try:
            for at in range(0, len(tokens), _CHUNK):
                chunk = tokens[at : at + _CHUNK]
                # Earlier rows need no logits, and a head is a third of the work.
                rows = max(0, min(len(chunk), at + len(chunk) - first))
                scores = runner.score([Feed(_SLOT, chunk, rows)], hidden=True, layers=s.layers)
                assert scores.states is not None
                assert scores.hidden is not None
                part = records[at : at + len(chunk)]
                part["states"] = _bits(scores.states[0].transpose(0, 1))
                part["final"][len(chunk) - rows :] = _bits(scores.hidden[0])
                part["lse"][len(chunk) - rows :] = torch.logsumexp(scores.logits[0].float(), -1).numpy()
        finally:
            runner.close(_SLOT)
        kept = np.concatenate([records[:sink], records[first:]])
        return kept, Captured(row, len(kept), sink, first, start)

    def _read(self) -> list[Captured]:
        """Whole lines of the index; what was written behind the last of them is cut off."""
        index, rows = self.folder / "documents.jsonl", self.folder / "rows.bin"
        index.touch()
        rows.touch()
        lines = index.read_bytes().split(b"\n")
        whole = [Captured(*json.loads(line)) for line in lines[:-1]]
        with index.open("r+b") as file:
            file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        size = sum(each.rows for each in whole) * self.settings.record.itemsize
        if rows.stat().st_size < size:
            raise ConfigError(f"{rows} is shorter than its index says; remove {self.folder} and capture again")
        with rows.open("r+b") as file:
            file.truncate(size)
        return whole


def _bits(values: torch.Tensor) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = values.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)
    return bits


def from_bits(bits: NDArray[np.uint16]) -> torch.Tensor:
    """bfloat16 values from their bits."""
    return torch.from_numpy(np.array(bits, order="C").view(np.int16)).view(torch.bfloat16)
