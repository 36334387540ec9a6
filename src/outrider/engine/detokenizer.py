"""Tokens to text, one at a time, holding back what is not yet certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

# A few prompt tokens stand before the first output token, so that its leading space survives decoding.
_CONTEXT = 5
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# No character needs this many tokens: beyond it the bytes are invalid, not incomplete.
_MOST_HELD = 16
_LONGEST_CHARACTER = 4


class TextDecoder(Protocol):
    """The one thing a detokenizer asks of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str: ...


class Detokenizer:
    """Incremental text of one sequence.

    ``text`` is everything certain so far, cut before a stop string once one is found. Bytes that do not yet form
    a character are held until they do or until ``finish``.
    """

    def __init__(self, decoder: TextDecoder, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stop = stop
        #   [ context | already in text | pending: held back ]
        #     ^0        ^_read            ^len(_window)
        self._window = list(prompt[-_CONTEXT:])
        self._read = len(self._window)
        self._read_text = decoder.decode(self._window)
        self.text = ""

    def push(self, token: int, watch: bool = True) -> str | None:
        """Take in one token; returns the stop string it completes, if any and if ``watch``ed for."""
        self._window.append(token)
        whole = self._decoder.decode(self._window)
        certain = len(self._window)
        if whole.endswith(_INCOMPLETE):
            if certain - self._read < _MOST_HELD:
                return None
            certain, whole = self._without_last_character(whole)
        before = len(self.text)
        self._take(certain, whole)
        return self._cut_at_stop(before) if watch else None

    def finish(self, watch: bool = False) -> str | None:
        """No more tokens will come: what is held back becomes text as it is. Returns as ``push`` does."""
        before = len(self.text)
        self._take(len(self._window), self._decoder.decode(self._window))
        return self._cut_at_stop(before) if watch else None

    def visible(self, finished: bool) -> int:
        """Length of the text a stream may show: a tail that could grow into a stop string waits."""
        if finished:
            return len(self.text)
        return len(self.text) - max((_overlap(self.text, stop) for stop in self._stop), default=0)

    def _take(self, certain: int, whole: str) -> None:
        """Make text of the window's first ``certain`` tokens, which decode to ``whole``."""
        self.text += whole[len(self._read_text) :]
        # The last span stays as context for the next one; older tokens cannot change it any more.
        self._window = self._window[self._read :]
        self._read = certain - self._read
        self._read_text = self._decoder.decode(self._window[: self._read])

    def _without_last_character(self, whole: str) -> tuple[int, str]:
        """The window up to the incomplete character at its end, which may become valid even after invalid bytes."""
        end = len(self._window)
        for at in range(end - 1, end - _LONGEST_CHARACTER, -1):
            if self._decoder.decode(self._window[:at]) == whole[:-1]:
                return at, whole[:-1]
        return end, whole

    def _cut_at_stop(self, before: int) -> str | None:
        found: tuple[int, str] | None = None
        for stop in self._stop:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0 and (found is None or at < found[0]):
                found = (at, stop)
        if found is None:
            return None
        self.text = self.text[: found[0]]
        return found[1]


def _overlap(text: str, stop: str) -> int:
    """Longest tail of ``text`` that is a proper prefix of ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
