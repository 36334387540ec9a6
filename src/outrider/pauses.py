"""Python's garbage collector beside a loaded model."""

from __future__ import annotations

import gc


def settle() -> None:
    """Leave all that is loaded out of garbage collection: looking through it takes 0.13 s, amid somebody's answer.

    For programs, which know when they have loaded what they need; a library leaves this to its caller.
    """
    gc.collect()
    gc.freeze()
