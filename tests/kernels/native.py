"""The module under test: the extension, or what ``OUTRIDER_TEST_NATIVE`` names instead.

``reference`` runs the tests on the numpy reference, which shows that the tests themselves are sound; a path loads a
build of the extension from elsewhere, for example one with sanitizers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from outrider.kernels import _native as kernels


def _load() -> ModuleType:
    chosen = os.environ.get("OUTRIDER_TEST_NATIVE", "")
    if chosen == "reference":
        return importlib.import_module("tests.kernels.reference")
    if chosen:
        spec = importlib.util.spec_from_file_location("outrider.kernels._native", chosen)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module("outrider.kernels._native")
    except ImportError as error:
        pytest.skip(f"the native kernels are not built: {error}", allow_module_level=True)


if not TYPE_CHECKING:
    kernels = _load()

__all__ = ["LEVELS", "THREADS", "kernels", "pool"]

LEVELS: list[str] = kernels.levels()
THREADS = (1, 2, 3)


@cache
def pool(level: str, threads: int = 1) -> kernels.Pool:
    """One pool a level and thread count for all tests."""
    return kernels.Pool(threads, level)
