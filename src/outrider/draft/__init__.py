"""Drafters. Import the one you need from its module: nothing here loads a model library."""

from __future__ import annotations

from typing import Any, Protocol

from outrider.errors import CapabilityError


class ComparableTokenizer(Protocol):
    """What of a tokenizer decides whether two models may be paired."""

    def same_vocabulary(self, other: Any) -> str | None:
        """None when equal ids mean equal strings, else a message naming the first difference."""
        ...


def check_pair(target: ComparableTokenizer, draft: ComparableTokenizer) -> None:
    """Refuse a draft model whose ids mean other strings than the target model's (``CapabilityError``).

    Padded vocabularies are fine: only the ids that both have are compared.
    """
    difference = target.same_vocabulary(draft)
    if difference is not None:
        raise CapabilityError(
            f"speculative_config: the draft model's tokenizer is not the target model's ({difference}); "
            "use a draft of the same family, or method='ngram'"
        )
