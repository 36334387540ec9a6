"""A tokenizer without files: one token a byte, and one id that ends a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ByteTokenizer:
    """UTF-8 bytes 0..255 as tokens, 256 as end of text; the surface of ``models.tokenizer.Tokenizer``."""

    eos_id = 256
    vocab_size = 257

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({self.eos_id})

    @property
    def vocab(self) -> Mapping[str, int]:
        """Token string to id: ``<0x41>`` for a byte, ``</s>`` for the end."""
        return {_name(token): token for token in range(self.vocab_size)}

    def encode(self, text: str) -> list[int]:
        """Bytes of the text. Raises ``RequestError`` for a lone surrogate, which has none."""
        try:
            return list(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"the text is not valid Unicode: a lone surrogate at character {error.start}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 become U+FFFD, other ids vanish."""
        return bytes(token for token in ids if 0 <= token < 256).decode(errors="replace")

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """``role: content`` lines, ending where the assistant is to speak."""
        turns = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return self.encode(turns + "assistant:")

    def token_text(self, token: int) -> str:
        return self.decode([token]) if token < 256 else _name(token)

    def same_vocabulary(self, other: Any) -> str | None:
        """None when the ids both have mean the same strings, else the first difference."""
        theirs = {token: text for text, token in other.vocab.items()}
        for token in range(self.vocab_size):
            if token in theirs and theirs[token] != _name(token):
                return f"id {token} is {_name(token)!r} here and {theirs[token]!r} there"
        return None


def _name(token: int) -> str:
    return f"<0x{token:02X}>" if token < 256 else "</s>"
