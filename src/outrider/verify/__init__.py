"""Accept rules: which draft tokens stay, and which token comes after them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.config import VerifierName
    from outrider.verify.base import Verifier

_HOMES: Final = {
    "greedy": ("greedy", "GreedyVerifier"),
    # vLLM's word for token-level rejection sampling.
    "standard": ("token", "TokenVerifier"),
    "block": ("block", "BlockVerifier"),
    "coupled": ("coupled", "CoupledVerifier"),
}


def verifier_named(name: str) -> Verifier:
    """The accept rule of that name, imported on use."""
    if name not in _HOMES:
        raise ConfigError(f"verifier {name!r} is unknown; use one of: {', '.join(_HOMES)}")
    module, class_name = _HOMES[name]
    return cast("Verifier", getattr(importlib.import_module(f"outrider.verify.{module}"), class_name)())


def choose_verifier(name: VerifierName, greedy: bool, seeded: bool) -> Verifier:
    """The rule for one request.

    Temperature 0 has only one exact rule. "auto" means coupled for a request with a seed, whose text then depends on
    nothing else, and block otherwise, which keeps the most tokens.
    """
    if greedy:
        return verifier_named("greedy")
    if name == "auto":
        return verifier_named("coupled" if seeded else "block")
    return verifier_named(name)
