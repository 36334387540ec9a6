"""A model's sizes as a GGUF file states them, each checked before anything is computed with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from outrider.errors import ModelError

if TYPE_CHECKING:
    from outrider.models.gguf_file import GGUFFile, Scalar


class Metadata:
    """Metadata under the architecture's prefix. Every reader raises ``ModelError`` naming the file and the key."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self._prefix = architecture + "."

    def optional(self, key: str) -> Scalar | None:
        """A single value of any type; None when the file has none."""
        if self._prefix + key in self.file.arrays:
            raise ModelError(f"{self.file.path}: {self._prefix + key} differs by layer, which is not supported")
        return self.file.metadata.get(self._prefix + key)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, 1 or more; without a ``default`` it must be there."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(key, value, "a whole number, 1 or more")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; without a ``default`` it must be there."""
        value = self._required(key, default)
        if isinstance(value, bool | str) or not (math.isfinite(value) and value > 0):
            raise self._wrong(key, value, "a finite number above 0")
        return float(value)

    def _required(self, key: str, default: float | None) -> Scalar:
        value = self.optional(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.file.path} is incomplete: metadata {self._prefix + key!r} is missing")
        return value

    def _wrong(self, key: str, value: Scalar, wanted: str) -> ModelError:
        shown = repr(value)[:60]
        return ModelError(f"{self.file.path}: metadata {self._prefix + key!r} is {shown}, not {wanted}")
