"""The decoder's operations in C++, where they were built and are not turned off.

``OUTRIDER_KERNELS`` forces an instruction-set level by name, or ``torch``: no native kernels. ``OUTRIDER_NUM_THREADS``
is the number of threads, torch's own number unless given.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from outrider.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from outrider.kernels import _native

    class NativeModule(Protocol):
        """What of the extension is used."""

        levels: Callable[[], list[str]]
        Pool: type[_native.Pool]
        Matrix: type[_native.Matrix]
        Decoder: type[_native.Decoder]
        SpireDraft: type[_native.SpireDraft]


LEVEL_VARIABLE = "OUTRIDER_KERNELS"
THREADS_VARIABLE = "OUTRIDER_NUM_THREADS"
TORCH = "torch"
MOST_THREADS = 1024
_EXTENSION = "outrider.kernels._native"


@dataclass(frozen=True)
class Native:
    """The extension, to be run at one instruction-set level."""

    module: NativeModule
    level: str
    threads: int

    def pool(self) -> _native.Pool:
        """This process's threads for the level. Raises ConfigError for a number of threads that cannot be had."""
        module: Any = self.module
        return _pool(module, self.level, self.threads)


@dataclass(frozen=True)
class Kernels:
    """What there is to run a decoder: native kernels, or why there are none."""

    levels: tuple[str, ...]
    """Levels that were built and that this processor runs, best first."""
    native: Native | None = None
    reason: str | None = None
    """One line: why ``native`` is None."""


def load() -> Kernels:
    """Find the extension and choose a level. Raises ConfigError for an environment variable that cannot be obeyed."""
    wanted = os.environ.get(LEVEL_VARIABLE, "")
    module, missing = _extension()
    levels = tuple(module.levels()) if module is not None else ()
    if wanted not in ("", TORCH, *levels):
        why = f" ({missing})" if missing else ""
        raise ConfigError(f"{LEVEL_VARIABLE}={wanted!r} is not available here{why}; use {', '.join((*levels, TORCH))}")
    if wanted == TORCH:
        return Kernels(levels, reason=f"turned off by {LEVEL_VARIABLE}={TORCH}")
    if module is None:
        return Kernels(levels, reason=missing)
    return Kernels(levels, Native(module, wanted or levels[0], _thread_count()))


def require(what: str) -> Native:
    """The native kernels. Raises CapabilityError, saying that ``what`` needs them, where there are none."""
    kernels = load()
    if kernels.native is None:
        raise CapabilityError(f"{what} needs the native kernels: {kernels.reason}")
    return kernels.native


def _thread_count() -> int:
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text:
        import torch

        return min(torch.get_num_threads(), MOST_THREADS)
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text) or int(text) > MOST_THREADS:
        raise ConfigError(f"{THREADS_VARIABLE}={text[:60]!r} must be a whole number from 1 to {MOST_THREADS}")
    return int(text)


def _extension() -> tuple[NativeModule | None, str | None]:
    """The extension, or one line that says why it cannot be used."""
    try:
        return cast("NativeModule", importlib.import_module(_EXTENSION)), None
    except ModuleNotFoundError as error:
        if error.name != _EXTENSION:
            raise
        return None, "the native kernels were not built when Outrider was installed"
    except ImportError as error:
        return None, f"the native kernels cannot be loaded: {' '.join(str(error).split())}"


@cache
def _pool(module: Any, level: str, threads: int) -> _native.Pool:
    # One pool for all models of a level and number of threads: two would wait for work on the same cores.
    try:
        pool: _native.Pool = module.Pool(threads, level)
    except (ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"{THREADS_VARIABLE}={threads} threads cannot be had: {error}; use fewer") from error
    return pool
