"""The tokenizer wrapper over small tokenizers made here, and the store of converted GGUF tokenizers."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outrider.errors import ModelError, RequestError
from outrider.models import gguf_tokenizer as store
from outrider.models.resolve import ModelFiles
from outrider.models.tokenizer import Tokenizer, load_tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<unk>", "<s>", "</s>", "<end>"]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<s>{{ m.role }}: {{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def hugging_face(extra: tuple[str, ...] = (), **options: Any) -> PreTrainedTokenizerFast:
    vocab = {text: i for i, text in enumerate([*SPECIAL, *BYTES, "Ġhi", *extra])}
    backend = Backend(models.BPE(vocab=vocab, merges=[("h", "i")] if "hi" in extra else [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", **options
    )


def make(extra: tuple[str, ...] = (), name: str = "toy", **options: Any) -> Tokenizer:
    return Tokenizer(hugging_face(extra, **options), name=name)


@pytest.mark.parametrize("text", ["hi there", "  two  spaces .", "it 's", "naïve 🙂 日本", "\n\t", ""])
def test_text_survives_a_round_trip(text: str) -> None:
    tokenizer = make()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_read_but_not_written() -> None:
    tokenizer = make()
    ids = tokenizer.encode("a</s>b")
    assert ids[1] == SPECIAL.index("</s>")
    assert tokenizer.decode(ids) == "ab"


def test_token_text_shows_what_decode_hides() -> None:
    tokenizer = make()
    assert tokenizer.token_text(SPECIAL.index("</s>")) == "</s>"
    assert tokenizer.token_text(tokenizer.vocab["Ġhi"]) == " hi"
    assert tokenizer.token_text(tokenizer.encode("🙂")[0]) == "�"
    assert tokenizer.token_text(10**6) == ""


def test_token_text_keeps_the_space_of_a_sentencepiece_token() -> None:
    backend = Backend(models.BPE(vocab={"▁the": 0, "the": 1}, merges=[]))
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), name="toy")
    assert [tokenizer.token_text(0), tokenizer.token_text(1)] == [" the", "the"]
    assert tokenizer.eos_ids == frozenset()


def test_lone_surrogate_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="lone surrogate at character 1"):
        make().encode("a\ud800")
    with pytest.raises(RequestError, match="lone surrogate"):
        make(chat_template=TEMPLATE).chat([{"role": "user", "content": "\ud800"}])


def test_long_text_gives_no_warning() -> None:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        assert len(make(model_max_length=4).encode("a" * 50)) == 50
    finally:
        logger.removeHandler(handler)
    assert messages == []


def test_chat_ends_where_the_assistant_speaks() -> None:
    tokenizer = make(chat_template=TEMPLATE)
    ids = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert ids == tokenizer.encode("<s>user: hi</s><s>assistant: ")


def test_chat_without_template_and_with_refused_role() -> None:
    with pytest.raises(ModelError, match="toy has no chat template"):
        make().chat([{"role": "user", "content": "hi"}])
    with pytest.raises(RequestError, match="the chat template of toy refuses the messages: no system role"):
        make(chat_template=TEMPLATE).chat([{"role": "system", "content": "x"}])


def test_same_vocabulary_ignores_ids_that_only_one_side_has() -> None:
    assert make().same_vocabulary(make(("hi", "more"))) is None
    assert make(("hi", "more")).same_vocabulary(make()) is None


def test_same_vocabulary_names_the_first_difference() -> None:
    ours, theirs = make(("one", "same"), name="big"), make(("two", "same"), name="small")
    token = ours.vocab["one"]
    assert ours.same_vocabulary(theirs) == f"id {token} is 'one' in big and 'two' in small"


# --- from files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "config", "expected"), [(None, 3, {2, 3}), ([2, 3], 2, {2, 3}), (3, None, {2, 3}), (None, None, {2})]
)
def test_eos_ids_of_all_sources(tmp_path: Path, generation: Any, config: Any, expected: set[int]) -> None:
    hugging_face().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": config}))
    assert load_tokenizer(ModelFiles("toy", tmp_path)).eos_ids == expected


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="toy: its tokenizer cannot be read") as caught:
        load_tokenizer(ModelFiles("toy", tmp_path))
    assert "\n" not in str(caught.value)


@pytest.fixture
def gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFiles:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "toy.gguf")


def write_gguf(path: Path, tokens: bool = True) -> ModelFiles:
    writer = GGUFWriter(path, "llama")
    if tokens:
        vocab = [*SPECIAL, *BYTES, "hi"]
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(vocab)
        writer.add_token_types([3] * len(SPECIAL) + [1] * (len(vocab) - len(SPECIAL)))
        writer.add_token_merges(["h i"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(3)
        writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles("toy", path.parent, path)


def stored_files(files: ModelFiles) -> list[str]:
    return sorted(path.name for path in (files.folder / "cache").rglob("*") if path.is_file())


def forbid_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("converted again")

    monkeypatch.setattr(store, "_convert", fail)


def test_gguf_tokenizer_is_converted_once(gguf_files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_tokenizer(gguf_files)
    assert first.eos_ids == {2, 3}
    assert first.decode(first.encode("hi there 🙂")) == "hi there 🙂"
    assert "tokenizer.json" in stored_files(gguf_files)
    forbid_conversion(monkeypatch)
    second = load_tokenizer(gguf_files)
    assert second.vocab == first.vocab
    assert second.encode("<s>hi hi") == first.encode("<s>hi hi")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", "{}", "null", "3"])
def test_unreadable_stored_tokenizer_is_made_again(gguf_files: ModelFiles, name: str, content: str) -> None:
    vocab = load_tokenizer(gguf_files).vocab
    (stored,) = (gguf_files.folder / "cache").rglob(name)
    stored.write_text(content)
    assert load_tokenizer(gguf_files).vocab == vocab


def test_code_beside_a_gguf_never_runs_unasked(gguf_files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    folder = gguf_files.folder
    (folder / "own.py").write_text(f"open({str(folder / 'marker')!r}, 'w').close()\nclass Own: pass\n")
    auto_map = {"AutoTokenizer": ["own.Own", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Own", "auto_map": auto_map}))
    with pytest.raises(ModelError, match="--trust-remote-code"):
        load_tokenizer(gguf_files)
    assert not (folder / "marker").exists()


def test_cache_folder_name_too_long_costs_only_time(gguf_files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(gguf_files.folder / ("x" * 300)))
    assert load_tokenizer(gguf_files).eos_ids == {2, 3}


def test_cache_that_cannot_be_written_costs_only_time(gguf_files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(gguf_files.gguf))
    assert load_tokenizer(gguf_files).eos_ids == {2, 3}


def test_gguf_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"toy.gguf holds no tokenizer"):
        load_tokenizer(write_gguf(tmp_path / "toy.gguf", tokens=False))
