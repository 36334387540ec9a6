"""Rules for values that come from outside, as tables: what each must be, in code and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from outrider.config import is_whole

Rule = tuple[Callable[[Any], bool], str]
"""Whether a value will do, and what it must be."""

_BEYOND = 1 << 32


def whole(least: int) -> Rule:
    """A whole number from ``least`` to what any size may be."""
    return lambda value: is_whole(value) and least <= value < _BEYOND, f"a whole number, {least} or more"


def optional(rule: Rule) -> Rule:
    """The same, or nothing."""
    return lambda value: value is None or rule[0](value), f"{rule[1]}, or null"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


ABOVE_0: Rule = (lambda value: _number(value) and value > 0, "a number above 0")
NOT_BELOW_0: Rule = (lambda value: _number(value) and value >= 0, "a number, 0 or more")
SHARE: Rule = (lambda value: _number(value) and 0 <= value <= 1, "a number between 0 and 1")
FLAG: Rule = (lambda value: isinstance(value, bool), "true or false")
LAYERS: Rule = (
    lambda value: isinstance(value, list | tuple) and all(is_whole(each) and 0 <= each < _BEYOND for each in value),
    "a list of whole numbers, 0 or more",
)


def complaint(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> str | None:
    """The first value that breaks its rule, as one line; None where all hold."""
    for name, (holds, wanted) in rules.items():
        if not holds(values[name]):
            return f"{name}={str(values[name])[:60]} must be {wanted}"
    return None
