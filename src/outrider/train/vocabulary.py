"""Which tokens a draft may propose: the most frequent ones of its training text (FR-Spec); the rest have q = 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.train.continuations import Document

_OWN_WORDS = 4
"""A token that the target wrote counts this often beside one of its prompt."""


def frequent_tokens(
    documents: Iterable[Document], vocab_size: int, count: int, always: Iterable[int] = ()
) -> tuple[torch.Tensor, float]:
    """The ids ``(count,)``, ascending, and the share of the target's own words they cover; ``always`` are among them.

    Raises ConfigError for more ids than there are.
    """
    if not 1 <= count <= vocab_size:
        raise ConfigError(f"draft_vocab_size={count} must be between 1 and the target's {vocab_size}")
    seen, own = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for document in documents:
        np.add.at(seen, list(document.tokens), 1)
        np.add.at(own, list(document.tokens[document.answer_start :]), 1)
    rank = seen + (_OWN_WORDS - 1) * own
    rank[list(always)] = rank.max() + 1
    ids = np.sort(np.argsort(-rank, kind="stable")[:count])
    return torch.from_numpy(ids), float(own[ids].sum() / max(1, own.sum()))
