"""Ways to make a draft: one folder each, and one line here. Their modules are imported on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.train.methods.base import Method

METHODS: Final = {
    "spire": "SpireMethod",
    # A plain small language model, the article's vanilla draft.
    "small": "SmallMethod",
    # A SPIRe draft's blocks without target activations and feedback memory.
    "pruned": "PrunedMethod",
}
"""Folder of each method, and the class in its ``method.py``."""


def check_method(name: str) -> None:
    """Refuse a name that is none."""
    if name not in METHODS:
        raise ConfigError(f"method={name!r} is unknown; use one of: {', '.join(METHODS)}")


def method_named(name: str) -> Method:
    """The method of that name. Raises ConfigError."""
    check_method(name)
    module = importlib.import_module(f"outrider.train.methods.{name}.method")
    return cast("Method", getattr(module, METHODS[name])())
