"""Sees torch operations that are shared out to threads, which spin afterwards on cores that the next pass needs."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# torch starts threads above 32,768 elements.
WIDE = 40_000


class WideOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names the torch operations, views left out, that take or make more elements than one thread is given; with
    dimensions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[tuple[str, int]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, made)):
            if isinstance(each, torch.Tensor) and each.numel() >= WIDE and not func.is_view:
                self.names.add((func.overloadpacket.__name__, each.dim()))
        return made
