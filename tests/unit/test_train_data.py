"""From prompts to batches: what the target says, what it thought, and how both are cut for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.errors import ConfigError
from outrider.models.base import Feed
from outrider.models.decoder import DecoderRunner
from outrider.testing import ByteTokenizer
from outrider.train.capture import CaptureSettings, CaptureStore, from_bits
from outrider.train.continuations import Document, Sampling, continue_rows, read_documents
from outrider.train.prompts import Row, read_rows
from outrider.train.run import Text, Watcher, training_documents
from outrider.train.segments import Batch, SegmentSampler
from outrider.train.vocabulary import frequent_tokens
from tests.fake_model import FakeModels
from tests.unit.decoders import VOCAB, families, load, random_weights

LLAMA = families()["llama-tied"]
SETTINGS = CaptureSettings(layers=(0, 3), hidden_size=64, window=5, sink=2)


@pytest.fixture(scope="module")
def runner() -> DecoderRunner:
    return load(LLAMA, random_weights(LLAMA), max_model_len=640)


def documents(*sizes: tuple[int, int]) -> list[Document]:
    random = np.random.default_rng(0)
    return [Document(tuple(random.integers(0, VOCAB, length).tolist()), start) for length, start in sizes]


def quiet(*_: Any) -> None:
    pass


# --- rows ---------------------------------------------------------------------------------------------------


class Chat(ByteTokenizer):
    def chat(self, messages: Any) -> list[int]:
        return [1, *(byte for message in messages for byte in message["content"].encode()), 2]


def test_rows_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "a"}]}\n\n'
        '{"question": "b", "answer": "ignored"}\n'
        '{"template": "t", "prompt": "c", "completion": "ignored"}\n'
        '{"text": "d\\u2028e"}\n'
    )
    tokenizer: Any = Chat()
    rows = read_rows([path, path], tokenizer)
    assert rows[:3] == [Row((1, *content, 2), True) for content in (b"a", b"b", b"c")]
    assert rows[3] == Row(tuple(tokenizer.encode("d\u2028e")), False)
    assert rows[4:] == rows[:4]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("\xff", "line 2: not JSON in UTF-8"),
        ("[1]", "line 2: a row is"),
        ('{"turns": ["a"]}', "line 2: a row is"),
        ('{"question": "  "}', "'question' must be text that is not empty"),
        ('{"prompt": 3}', "'prompt' must be text"),
    ],
)
def test_a_bad_row_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line.encode("latin-1"))
    tokenizer: Any = Chat()
    with pytest.raises(ConfigError, match=message):
        read_rows([path], tokenizer)


def test_no_rows_and_no_file(tmp_path: Path) -> None:
    tokenizer: Any = Chat()
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="no rows"):
        read_rows([tmp_path / "empty.jsonl"], tokenizer)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows([tmp_path / "missing.jsonl"], tokenizer)


# --- continuations ------------------------------------------------------------------------------------------


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Any:
    import outrider.llm

    monkeypatch.setattr(outrider.llm, "load_runner", FakeModels().load)
    return outrider.llm.LLM("toy", speculative_config=None, max_num_seqs=2)


def prompts(count: int) -> list[Row]:
    return [Row(tuple(b"row %d" % i), True) for i in range(count)]


def test_continuations_go_on_where_they_stopped(llm: Any, tmp_path: Path) -> None:
    rows, sampling = prompts(19), Sampling(max_tokens=6)
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    continue_rows(llm, rows, sampling, whole, quiet)
    lines = whole.read_bytes().splitlines(keepends=True)
    assert len(lines) == 19
    # Killed in the middle of a line.
    broken.write_bytes(b"".join(lines[:5]) + lines[5][:9])
    seen: list[int] = []
    continue_rows(llm, rows, sampling, broken, lambda done, _: seen.append(done))
    assert broken.read_bytes() == whole.read_bytes()
    assert seen == [13, 19]
    continue_rows(llm, rows, sampling, broken, lambda *_: pytest.fail("all was there"))
    temperatures = [json.loads(line)["temperature"] for line in lines]
    assert temperatures == [0.0, 1.0] * 9 + [0.0]
    for row, document in zip(rows, read_documents(whole), strict=True):
        assert document.tokens[: document.answer_start] == row.tokens
        assert len(document.tokens) > document.answer_start


def test_continuations_of_other_prompts_are_not_taken(llm: Any, tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    continue_rows(llm, prompts(4), Sampling(max_tokens=3), path, quiet)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="line 1: made from other prompts"):
        continue_rows(llm, prompts(6)[1:], Sampling(max_tokens=3), path, quiet)
    assert path.read_bytes() == before
    path.write_bytes(b'{"prompt": [1]}\n')
    with pytest.raises(ConfigError, match="line 1: not a continuation"):
        list(read_documents(path))


def test_more_rows_add_texts_behind_those_of_fewer(llm: Any, tmp_path: Path) -> None:
    """Prompts and plain text mixed: what was captured before is found by its place."""
    path = tmp_path / "rows.jsonl"
    kinds = ({"text": f"text {i}"} if i % 3 else {"prompt": f"row {i}"} for i in range(12))
    path.write_text("".join(json.dumps(row) + "\n" for row in (*kinds, {"text": "x"}, {"text": "y" * 500})))
    llm.loaded.tokenizer.chat = lambda messages: list(messages[0]["content"].encode())
    found = []
    for limit in (4, 9, None):
        text = Text((path,), tmp_path, limit, Sampling(max_tokens=3))
        found.append(training_documents(llm, text, 0, Watcher(quiet, quiet)))
    assert [len(each) for each in found] == [4, 9, 12]
    assert found[1][:4] == found[0]
    assert found[2][:9] == found[1]
    assert {document.answer_start > 0 for document in found[0]} == {True, False}


# --- capture ------------------------------------------------------------------------------------------------


def test_captured_rows_are_the_targets(runner: DecoderRunner, tmp_path: Path) -> None:
    """The kept positions and no others, with the states, the law and the token of each."""
    texts = documents((30, 12), (9, 4), (20, 0), (600, 590))
    store = CaptureStore(tmp_path, SETTINGS)
    store.append(runner, texts, quiet)
    rows = store.rows()
    for text, place in zip(texts, store.documents, strict=True):
        start = max(1, text.answer_start - 1)
        first = max(0, start - 5)
        kept = [*range(min(2, first)), *range(first, len(text.tokens))]
        assert (place.start, place.first, place.rows, place.length) == (start, first, len(kept), len(text.tokens))
        runner.open(0)
        scores = runner.score([Feed(0, text.tokens, len(text.tokens))], hidden=True, layers=(0, 3))
        runner.close(0)
        own = rows[place.row : place.row + place.rows]
        assert own["token"].tolist() == [text.tokens[position] for position in kept]
        assert scores.states is not None
        assert scores.hidden is not None
        states = scores.states[0][:, kept].transpose(0, 1)
        assert torch.equal(from_bits(own["states"]), states.to(torch.bfloat16))
        tail = kept[place.sink :]
        assert torch.equal(from_bits(own["final"])[place.sink :], scores.hidden[0][tail].to(torch.bfloat16))
        lse = torch.logsumexp(scores.logits[0][tail], -1)
        torch.testing.assert_close(torch.from_numpy(own["lse"][place.sink :].copy()), lse, rtol=1e-5, atol=1e-5)


def test_capture_goes_on_after_a_kill(runner: DecoderRunner, tmp_path: Path) -> None:
    texts = documents((30, 12), (9, 4), (20, 3), (25, 20))
    whole = CaptureStore(tmp_path / "whole", SETTINGS)
    whole.append(runner, texts, quiet)
    broken = CaptureStore(tmp_path / "broken", SETTINGS)
    broken.append(runner, texts[:2], quiet)
    # Killed after the rows of a third text and half of its line.
    with (tmp_path / "broken" / "rows.bin").open("ab") as file:
        file.write(b"x" * 1000)
    with (tmp_path / "broken" / "documents.jsonl").open("a") as file:
        file.write("[53, 1")
    again = CaptureStore(tmp_path / "broken", SETTINGS)
    assert again.documents == whole.documents[:2]
    again.append(runner, texts[2:], quiet)
    assert again.documents == whole.documents
    for name in ("rows.bin", "documents.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_captures_of_other_settings_are_not_mixed(runner: DecoderRunner, tmp_path: Path) -> None:
    CaptureStore(tmp_path, SETTINGS).append(runner, documents((9, 4)), quiet)
    with pytest.raises(ConfigError, match="other settings"):
        CaptureStore(tmp_path, CaptureSettings((0, 2), 64, 5, 2))
    (tmp_path / "rows.bin").write_bytes(b"short")
    with pytest.raises(ConfigError, match="shorter than its index"):
        CaptureStore(tmp_path, SETTINGS)


# --- segments -----------------------------------------------------------------------------------------------


def sampler(store: CaptureStore, **given: Any) -> SegmentSampler:
    sizes = {"length": 8, "batch": 3, "k": 4, "seed": 0, **given}
    return SegmentSampler(store.rows(), store.documents, store.settings, **sizes)


@pytest.mark.parametrize("window", [5, None])
def test_an_epoch_learns_every_position_once(runner: DecoderRunner, tmp_path: Path, window: int | None) -> None:
    """And each comes with the tokens, the law and the context that the target had."""
    texts = documents((30, 12), (9, 4), (20, 0), (31, 25))
    store = CaptureStore(tmp_path, CaptureSettings((0, 3), 64, window, 2))
    store.append(runner, texts, quiet)
    cuts = sampler(store)
    by_text = {text.tokens: text for text in texts}
    seen: list[tuple[int, int]] = []
    places_in_a_block = set()
    # The last batch is filled from the start of the epoch.
    for batch in (cuts.batch(0, i) for i in range(cuts.steps_per_epoch)):
        for row in range(3):
            text = _text_of(batch, row, by_text)
            number = texts.index(text)
            for i in range(8):
                if batch.valid_BS[row, i]:
                    position = int(batch.positions_BS[row, i])
                    seen.append((number, position))
                    places_in_a_block.add(i % 4)
                    assert int(batch.tokens_BS[row, i]) == text.tokens[position]
                    assert float(batch.lse_BS[row, i]) != 0
            _check_context(batch, row, store, number)
    learnt = {(n, p) for n, text in enumerate(texts) for p in range(max(1, text.answer_start - 1), len(text.tokens))}
    whole_batches = cuts.steps_per_epoch * 3
    assert len(seen) == len(set(seen)), "a position came twice"
    assert set(seen) <= learnt
    assert len(learnt - set(seen)) < 8 * 3 or whole_batches == len(learnt)
    assert places_in_a_block == {0, 1, 2, 3}


def _text_of(batch: Batch, row: int, by_text: dict[tuple[int, ...], Document]) -> Document:
    valid = batch.valid_BS[row]
    positions, tokens = batch.positions_BS[row][valid].tolist(), batch.tokens_BS[row][valid].tolist()
    (found,) = [
        text
        for text in by_text.values()
        if positions[-1] < len(text.tokens) and [text.tokens[p] for p in positions] == tokens
    ]
    return found


def _check_context(batch: Batch, row: int, store: CaptureStore, number: int) -> None:
    """Every state is that of the position it claims to be, and all that a query may see are there."""
    place, rows = store.documents[number], store.rows()
    keys = batch.key_positions_BT[row].tolist()
    for at, position in enumerate(keys):
        if position >= 0:
            record = position if position < place.sink else place.sink + position - place.first
            stored = from_bits(rows[place.row + record]["states"])
            assert torch.equal(batch.states_LBTD[:, row, at], stored)
    window = store.settings.window
    for position in batch.positions_BS[row][batch.valid_BS[row]].tolist():
        seen = {p for p in range(position) if window is None or p < 2 or position - p <= window}
        assert seen <= set(keys)
        assert len(keys) - keys.count(-1) == len(set(keys) - {-1})


def test_a_batch_follows_from_its_number(runner: DecoderRunner, tmp_path: Path) -> None:
    store = CaptureStore(tmp_path, SETTINGS)
    store.append(runner, documents((60, 12), (90, 4)), quiet)
    one, other = sampler(store), sampler(store)
    for epoch, index in ((0, 1), (2, 0), (0, 1), (1, 2)):
        assert torch.equal(one.batch(epoch, index).positions_BS, other.batch(epoch, index).positions_BS)
    assert not torch.equal(one.batch(0, 0).positions_BS, one.batch(1, 0).positions_BS)
    assert not torch.equal(one.batch(0, 0).positions_BS, sampler(store, seed=1).batch(0, 0).positions_BS)


# --- vocabulary ---------------------------------------------------------------------------------------------


def test_frequent_tokens_are_the_targets_own() -> None:
    texts = [Document((7, 7, 7, 1, 2, 2, 3), 3), Document((7, 5, 1, 2), 2)]
    ids, covered = frequent_tokens(texts, 9, 3)
    assert ids.tolist() == [1, 2, 3]
    assert covered == 1.0
    ids, covered = frequent_tokens(texts, 9, 2)
    assert ids.tolist() == [1, 2]
    assert covered == pytest.approx(5 / 6)
    assert frequent_tokens(texts, 9, 2, always=[8])[0].tolist() == [2, 8]
    with pytest.raises(ConfigError, match="draft_vocab_size=10"):
        frequent_tokens(texts, 9, 10)
