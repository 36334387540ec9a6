"""What users may pass as prompts, parameters and messages, made uniform; anything else is a RequestError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

from outrider.config import is_whole
from outrider.errors import RequestError
from outrider.sampling.params import SamplingParams

Prompt = str | Sequence[int]
Message = Mapping[str, str]


def as_prompts(given: object) -> list[Prompt]:
    """One prompt or a list of them; a list of whole numbers is one prompt of token ids."""
    if isinstance(given, str) or (_is_list(given) and given and is_whole(given[0])):
        return [cast("Prompt", given)]
    if not _is_list(given):
        raise RequestError(f"prompts must be text, token ids or a list of these, not {type(given).__name__}")
    return list(given)


def as_token_ids(prompt: object) -> list[int]:
    """A prompt that is not text."""
    if not _is_list(prompt) or not all(type(token) is int for token in prompt):
        raise RequestError("a prompt is text or a list of token ids (whole numbers)")
    return list(prompt)


def as_params(given: object, count: int) -> list[SamplingParams]:
    """Parameters for ``count`` prompts: one for all (None: the defaults), or one each."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if not _is_list(given) or not all(isinstance(each, SamplingParams) for each in given):
        raise RequestError("sampling_params must be a SamplingParams or a list of them")
    if len(given) != count:
        raise RequestError(f"{len(given)} sampling_params for {count} prompts: give one, or one per prompt")
    return list(given)


def as_conversations(given: object) -> list[list[Message]]:
    """One conversation or a list of them."""
    if not _is_list(given) or not given:
        raise RequestError("the conversation is empty: give at least one message")
    conversations = [given] if isinstance(given[0], Mapping) else given
    return [as_messages(conversation) for conversation in conversations]


def as_messages(given: object) -> list[Message]:
    """One conversation: dictionaries with a role and a content, both text."""
    if not _is_list(given) or not given:
        raise RequestError("the conversation is empty: give at least one message")
    for message in given:
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise RequestError(f"a message needs exactly 'role' and 'content', not {_shown(message)}")
        if not all(isinstance(value, str) for value in message.values()):
            raise RequestError(f"a message's role and content must be text, not {_shown(message.values())}")
    return list(given)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    # Text and bytes are sequences to Python, but never a list to a user.
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _shown(value: object) -> str:
    text = repr(sorted(value, key=repr) if isinstance(value, Mapping) else value)
    return text if len(text) <= 80 else text[:77] + "..."
