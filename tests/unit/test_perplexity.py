"""``benchmarks/perplexity.py``: every token predicted once, from the context it should have."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import perplexity
import pytest
import torch
from perplexity import Row, nats_per_token, read_text, split_start, windows

from outrider.errors import ConfigError
from outrider.models.toy import ToyModel, ToyRunner

VOCAB = 9
TOKENS = [(i * i + 3 * i) % VOCAB for i in range(100)]


def nats(model: ToyModel, before: list[int], token: int) -> float:
    return -float(torch.log_softmax(model.logits(before).double(), 0)[token])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 17, 18, 100])
@pytest.mark.parametrize(("size", "context"), [(10, 0), (10, 3), (10, 9)])
def test_windows_predict_every_token_once(length: int, first: int, size: int, context: int) -> None:
    every = list(windows(length, first, size, context))
    assert [i for each in every for i in range(each.scored, each.end)] == list(range(first, length))
    assert all(each.end - each.begin <= size for each in every)
    assert all(each.scored - each.begin == context for each in every[1:])


@pytest.mark.parametrize("rows", [1, 4, 128])
def test_windows_longer_than_the_memory_of_the_model_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that looks two tokens back predicts alike whole or in windows, however many rows are taken at once."""
    monkeypatch.setattr(perplexity, "ROWS", rows)
    model = ToyModel(VOCAB, 2, seed=1)
    runner = ToyRunner(model, 1, 128)
    expected = sum(nats(model, TOKENS[:i], TOKENS[i]) for i in range(1, 100)) / 99
    assert nats_per_token(runner, [], TOKENS, 128, 2) == pytest.approx(expected, rel=1e-12)
    assert nats_per_token(runner, [], TOKENS, 16, 4) == pytest.approx(expected, rel=1e-12)
    assert nats_per_token(runner, [], TOKENS, 16, 1) != pytest.approx(expected, rel=1e-6)
    runner.open(0)


def test_start_tokens_come_before_every_window_and_are_free() -> None:
    model = ToyModel(VOCAB, 2, seed=2)
    start = [8]
    total = 0.0
    for begin, scored, end in ((0, 0, 9), (7, 9, 16), (14, 16, 20)):
        total += sum(nats(model, start + TOKENS[begin:i], TOKENS[i]) for i in range(scored, end))
    got = nats_per_token(ToyRunner(model, 1, 10), start, TOKENS[:20], 10, 2)
    assert got == pytest.approx(total / 20, rel=1e-12)


def test_a_model_that_knows_nothing() -> None:
    model = ToyModel(VOCAB, 0, table={(): [1.0] * VOCAB})
    assert nats_per_token(ToyRunner(model, 1, 32), [], TOKENS, 32, 8) == pytest.approx(math.log(VOCAB))


@pytest.mark.parametrize("tokens", [[], [3]])
def test_nothing_to_predict(tokens: list[int]) -> None:
    with pytest.raises(ConfigError, match="tokens"):
        nats_per_token(ToyRunner(ToyModel(VOCAB), 1, 32), [], tokens)


def test_rows_compare_with_the_baseline() -> None:
    baseline = Row("bfloat16", 2.0)
    assert Row("bfloat16/int8", 2.01).ratio(baseline) == pytest.approx(math.exp(0.01))
    assert Row("bfloat16/gguf", reason="no").ratio(baseline) is None
    assert Row("float32", 2.0).ratio(Row("bfloat16")) is None


def test_text_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("aé" * 10, encoding="utf-8")
    assert [read_text(path, count) for count in (1, 2, 3, 4, 1000)] == ["a", "a", "aé", "aéa", "aé" * 10]
    with pytest.raises(ConfigError, match="no such file"):
        read_text(tmp_path / "other.txt", 5)
    with pytest.raises(ConfigError, match="--bytes 0"):
        read_text(path, 0)


class StartTokenizer:
    """Puts 7 before and 8 after every text."""

    def encode(self, text: str) -> list[int]:
        return [7, *(ord(letter) for letter in text), 8]


def test_start_tokens_are_what_an_empty_text_begins_with() -> None:
    assert split_start(StartTokenizer(), "ab") == ([7], [97, 98, 8])  # type: ignore[arg-type]


@pytest.mark.weights
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The baseline first, then the others; a setting that cannot be had says why and is null."""
    path = tmp_path / "text.txt"
    path.write_text("The sun rises in the east and sets in the west. " * 4, encoding="utf-8")
    settings = ["float32", "bfloat16/none", "bfloat16"]
    monkeypatch.setattr(sys, "argv", ["perplexity.py", "--text", str(path), "--settings", *settings])
    perplexity.main()
    *table, line = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert [row.split()[0] for row in table[-3:]] == ["bfloat16", "float32", "bfloat16/none"]
    assert record["ratio"]["bfloat16"] == 1
    assert 0.95 < record["ratio"]["float32"] < 1.05
    assert record["perplexity"]["bfloat16/none"] is None
    assert "none" in table[-1]
    # The sentence comes four times, so three quarters of it are easy.
    assert 1 < record["perplexity"]["bfloat16"] < 6
