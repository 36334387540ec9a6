"""Which kernels are taken: the extension found or not, the level and the threads that the environment asks for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from outrider import kernels
from outrider.errors import CapabilityError, ConfigError


class FakePool:
    """A pool of at most four threads."""

    def __init__(self, threads: int, level: str) -> None:
        if threads > 4:
            raise ValueError("at most 4 threads")
        self.threads, self.level = threads, level


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_KERNELS", raising=False)
    monkeypatch.delenv("OUTRIDER_NUM_THREADS", raising=False)


def install(monkeypatch: pytest.MonkeyPatch, found: Sequence[str] | Exception) -> None:
    """Make the extension one of these levels, or impossible to import."""
    true_import = importlib.import_module

    def find(name: str, package: str | None = None) -> ModuleType:
        if name != "outrider.kernels._native":
            return true_import(name, package)
        if isinstance(found, Exception):
            raise found
        module: Any = ModuleType(name)
        module.levels, module.Pool = lambda: list(found), FakePool
        return cast("ModuleType", module)

    monkeypatch.setattr(importlib, "import_module", find)


NOT_BUILT = ModuleNotFoundError("no module", name="outrider.kernels._native")


def test_the_best_level_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ["avx2", "portable"])
    found = kernels.load()
    assert found.levels == ("avx2", "portable")
    assert found.reason is None
    assert found.native is not None
    assert (found.native.level, found.native.threads) == ("avx2", torch.get_num_threads())


@pytest.mark.parametrize("level", ["avx2", "portable"])
def test_a_level_can_be_forced(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    install(monkeypatch, ["avx2", "portable"])
    monkeypatch.setenv("OUTRIDER_KERNELS", level)
    native = kernels.load().native
    assert native is not None
    assert native.level == level
    assert native.pool().level == level


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        (["avx2"], "torch", "turned off by OUTRIDER_KERNELS=torch"),
        (NOT_BUILT, "", "the native kernels were not built when Outrider was installed"),
        (NOT_BUILT, "torch", "turned off by OUTRIDER_KERNELS=torch"),
        (ImportError("libc:\n too old"), "", "the native kernels cannot be loaded: libc: too old"),
    ],
)
def test_why_there_are_none(
    monkeypatch: pytest.MonkeyPatch, found: list[str] | Exception, wanted: str, reason: str
) -> None:
    install(monkeypatch, found)
    monkeypatch.setenv("OUTRIDER_KERNELS", wanted)
    assert kernels.load().native is None
    assert kernels.load().reason == reason
    with pytest.raises(CapabilityError, match=f"^what I do needs the native kernels: {reason}$"):
        kernels.require("what I do")


def test_a_missing_module_of_somebody_else_is_a_bug_and_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ModuleNotFoundError("no numpy", name="numpy"))
    with pytest.raises(ModuleNotFoundError, match="no numpy"):
        kernels.load()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (["avx2", "portable"], "OUTRIDER_KERNELS='avx9' is not available here; use avx2, portable, torch"),
        (NOT_BUILT, r"OUTRIDER_KERNELS='avx9' is not available here \(.*not built.*\); use torch"),
    ],
)
def test_a_level_that_is_not_there(monkeypatch: pytest.MonkeyPatch, found: list[str] | Exception, message: str) -> None:
    install(monkeypatch, found)
    monkeypatch.setenv("OUTRIDER_KERNELS", "avx9")
    with pytest.raises(ConfigError, match=message):
        kernels.load()


def test_threads_are_one_pool_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ["portable"])
    monkeypatch.setenv("OUTRIDER_NUM_THREADS", "3")
    native = kernels.load().native
    assert native is not None
    assert native.pool().threads == 3
    assert native.pool() is native.pool()


@pytest.mark.parametrize("threads", ["0", "-1", "1.5", "two", " 2", "٣", "9" * 5000, "+1", "1025"])
def test_what_is_no_number_of_threads(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    install(monkeypatch, ["portable"])
    monkeypatch.setenv("OUTRIDER_NUM_THREADS", threads)
    with pytest.raises(ConfigError, match=r"^OUTRIDER_NUM_THREADS='.{1,60}' must be a whole number from 1 to 1024$"):
        kernels.load()


def test_threads_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ["portable"])
    monkeypatch.setenv("OUTRIDER_NUM_THREADS", "5")
    native = kernels.load().native
    assert native is not None
    with pytest.raises(ConfigError, match="OUTRIDER_NUM_THREADS=5 threads cannot be had: at most 4 threads; use fewer"):
        native.pool()


def test_the_extension_itself_where_it_was_built() -> None:
    found = kernels.load()
    if found.native is None:
        pytest.skip(str(found.reason))
    assert found.levels[-1] == "portable", "what runs on every processor is there, and is the last choice"
    assert found.native.pool().level == found.native.level
    assert found.native.pool().threads == found.native.threads
