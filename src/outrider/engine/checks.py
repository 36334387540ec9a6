"""What an engine refuses before a request is queued: what it could never serve."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.sampling.params import SamplingParams


def check_prompt(prompt_ids: Sequence[int], max_model_len: int) -> None:
    """Raise RequestError for a prompt that is empty or leaves no room for an answer."""
    if not prompt_ids:
        raise RequestError("the prompt is empty: give at least one token of text")
    if len(prompt_ids) >= max_model_len:
        raise RequestError(
            f"the prompt has {len(prompt_ids)} tokens but max_model_len is {max_model_len} and at least one is needed "
            "for the answer: shorten the prompt or raise max_model_len"
        )


def check_tokens(prompt_ids: Sequence[int], params: SamplingParams, vocab_size: int, eos_ids: Collection[int]) -> None:
    """Raise RequestError for tokens that are none, or where all tokens would end an answer that must not end yet."""
    outside = next((t for t in (*prompt_ids, *params.stop_token_ids) if not 0 <= t < vocab_size), None)
    if outside is not None:
        raise RequestError(
            f"token id {outside} is outside the vocabulary of {vocab_size} tokens (0 to {vocab_size - 1})"
        )
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}
    if params.min_tokens and stops.issuperset(range(vocab_size)):
        raise RequestError(
            f"min_tokens={params.min_tokens} leaves nothing to generate: all {vocab_size} tokens are stop tokens"
        )


def check_speculation(params: SamplingParams, methods: Sequence[str]) -> None:
    """Raise RequestError for drafts of a method that is not loaded."""
    wanted = params.speculation
    if not methods and (wanted.method is not None or wanted.num_speculative_tokens):
        raise RequestError("speculative: this engine decodes plainly; load one with a speculative_config")
    if wanted.method is not None and wanted.method not in methods:
        raise RequestError(f"speculative: method={wanted.method!r} is not loaded here; use one of {', '.join(methods)}")
