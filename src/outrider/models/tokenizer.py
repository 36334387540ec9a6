"""Text to token ids and back, as the engine needs it, over a Hugging Face fast tokenizer."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelError, RequestError
from outrider.models.checkpoint import read_json, transformers_error
from outrider.models.gguf_config import gguf_eos_ids
from outrider.models.gguf_file import open_gguf
from outrider.models.gguf_tokenizer import gguf_tokenizer
from outrider.models.quiet import first_line, quiet_transformers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

    from outrider.models.resolve import ModelFiles

_NO_LIMIT = 1 << 62


class Tokenizer:
    """One model's tokenizer; ``name`` is used in messages, ``eos_ids`` adds ids that end a text."""

    def __init__(self, hugging_face: PreTrainedTokenizerFast, *, name: str, eos_ids: Iterable[int] = ()) -> None:
        self._hf = hugging_face
        # The engine checks lengths; the tokenizer's own limit only prints a warning.
        self._hf.model_max_length = _NO_LIMIT
        self._name = name
        own = () if self._hf.eos_token_id is None else (int(self._hf.eos_token_id),)
        self._eos_ids = frozenset((*own, *eos_ids))

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id after which the model has nothing more to say."""
        return self._eos_ids

    @cached_property
    def vocab(self) -> Mapping[str, int]:
        """Token string (not text: ``Ġthe``, ``▁the``) to id, added tokens included."""
        return dict(self._hf.get_vocab())

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the special tokens that the tokenizer adds by default.

        Raises ``RequestError`` for text that is no valid Unicode.
        """
        _check_unicode(text)
        return list(self._hf.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out, spaces as the model wrote them."""
        return str(self._hf.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def save(self, folder: Path) -> None:
        """Write it to a folder, in Hugging Face's files."""
        self._hf.save_pretrained(folder)

    def token_text(self, token: int) -> str:
        """One token for display: special tokens by name, part of a character as U+FFFD, unused ids empty."""
        if token not in self._strings:
            return ""
        text = str(self._hf.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        # SentencePiece decoders drop the space that starts a text, but this token comes from the middle of one.
        lost_space = self._strings[token].startswith("▁") and not text.startswith(" ")
        return " " + text if lost_space else text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation up to where the assistant is to speak.

        Raises ``ModelError`` when the model has no chat template, ``RequestError`` when the template refuses the
        messages.
        """
        from jinja2 import TemplateError

        if self._hf.chat_template is None:
            raise ModelError(
                f"{self._name} has no chat template, so it cannot chat; use plain prompts or an instruct model"
            )
        for message in messages:
            for text in message.values():
                _check_unicode(text)
        try:
            ids = self._hf.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise RequestError(
                f"the chat template of {self._name} refuses the messages: {first_line(error)}"
            ) from error
        return list(ids)

    def same_vocabulary(self, other: Tokenizer) -> str | None:
        """None when every id that both tokenizers have is the same string, else the first difference.

        Sizes may differ: embeddings are often padded, and the padding never means anything.
        """
        for token, text in self._strings.items():
            theirs = other._strings.get(token, text)
            if theirs != text:
                return f"id {token} is {text!r} in {self._name} and {theirs!r} in {other._name}"
        return None

    @cached_property
    def _strings(self) -> Mapping[int, str]:
        return {token: text for text, token in sorted(self.vocab.items(), key=lambda item: item[1])}


def load_tokenizer(files: ModelFiles, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a model's files. Raises ``ModelError``."""
    if files.gguf is not None:
        file = open_gguf(files.gguf)
        return Tokenizer(
            gguf_tokenizer(file, trust_remote_code=trust_remote_code), name=files.name, eos_ids=gguf_eos_ids(file)
        )
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                files.folder, local_files_only=True, trust_remote_code=trust_remote_code
            )
    except Exception as error:
        # Conversions of other formats fail in as many ways as there are formats.
        raise transformers_error(files.name, "its tokenizer cannot be read", error) from error
    return Tokenizer(tokenizer, name=files.name, eos_ids=_configured_eos_ids(files))


def _configured_eos_ids(files: ModelFiles) -> frozenset[int]:
    """``eos_token_id`` (one id or several) of the generation settings and of the configuration."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = files.folder / name
        value: Any = read_json(path).get("eos_token_id") if path.is_file() else None
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"the text is not valid Unicode: a lone surrogate at character {error.start}") from error
