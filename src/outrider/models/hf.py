"""Any causal LM of Transformers as a target runner: one cache and one forward per sequence, no promise on bits.

The path for architectures that have no decoder of ours. Correct first: rows of different sequences are not packed.
"""

from __future__ import annotations

import copy
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from outrider.errors import ModelError
from outrider.models.base import Capabilities, Feed, Scores
from outrider.models.checkpoint import transformers_error
from outrider.models.quiet import first_line, quiet_transformers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from outrider.models.resolve import ModelFiles

# Cache layers that keep one entry a token and can be cut anywhere; compared by name since some are recent.
_CROPPABLE = frozenset({"DynamicLayer", "DynamicIndexedLayer", "DummyLayer"})


@dataclass
class _Slot:
    cache: Any
    length: int = 0


class HFRunner:
    """A loaded ``PreTrainedModel`` behind the runner contract.

    Sliding-window layers keep their full history, since a window that was cut cannot be rewound; the model's own
    mask still hides what left it. Recurrent or otherwise compressed states make ``rollback`` "none".
    Raises ``ModelError`` when the model cannot be driven through a Transformers cache.
    """

    def __init__(self, model: Any, max_num_seqs: int, max_model_len: int, name: str = "transformers") -> None:
        self.name = name
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self._model = model.eval()
        self._device = next(model.parameters()).device
        accepted = inspect.signature(model.forward).parameters
        self._cache_word = next((word for word in ("cache", "past_key_values") if word in accepted), None)
        self._keeps_rows = "logits_to_keep" in accepted
        self._slots: dict[int, _Slot] = {}
        rollback, self.vocab_size = self._probe()
        self.capabilities = Capabilities(rollback=rollback, hidden_states=True, deterministic_shape=False)

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        *,
        dtype: torch.dtype,
        max_num_seqs: int,
        max_model_len: int,
        trust_remote_code: bool = False,
        name: str = "transformers",
    ) -> HFRunner:
        """Load safetensors (never pickles) or GGUF; code from the checkpoint runs only when trusted."""
        source = {"gguf_file": files.gguf.name} if files.gguf else {"use_safetensors": True}
        try:
            with quiet_transformers():
                from transformers import AutoModelForCausalLM

                model, report = AutoModelForCausalLM.from_pretrained(
                    files.folder,
                    dtype=dtype,
                    local_files_only=True,
                    trust_remote_code=trust_remote_code,
                    output_loading_info=True,
                    **source,
                )
        except Exception as error:
            # Checkpoints of other architectures fail in as many ways as there are architectures.
            raise transformers_error(name, "Transformers could not load it", error) from error
        _refuse_partial(name, report, model.state_dict())
        return cls(model, max_num_seqs, max_model_len, name)

    def open(self, sequence_id: int) -> None:
        assert sequence_id not in self._slots, f"sequence {sequence_id} is open already"
        assert len(self._slots) < self.max_num_seqs, f"more than {self.max_num_seqs} slots opened"
        self._slots[sequence_id] = _Slot(self._new_cache())

    def close(self, sequence_id: int) -> None:
        self._slots.pop(sequence_id, None)

    def length(self, sequence_id: int) -> int:
        return self._slots[sequence_id].length

    @torch.inference_mode()
    def score(self, feeds: Sequence[Feed], hidden: bool = False, layers: Sequence[int] = ()) -> Scores:
        assert not layers, "this runner gives no states of layers"
        # A forward that dies midway leaves some layers longer than others: put the old layers back as they were.
        before = [(self._slots[feed.sequence_id].cache, _copy_layers(self._slots[feed.sequence_id])) for feed in feeds]
        try:
            results = [self._feed(feed, hidden) for feed in feeds]
        except BaseException:
            for cache, held in before:
                cache.layers = held
            raise
        for feed in feeds:
            self._slots[feed.sequence_id].length += len(feed.tokens)
        logits = tuple(logits_TV for logits_TV, _ in results)
        return Scores(logits, tuple(states for _, states in results if states is not None) if hidden else None)

    def commit(self, sequence_id: int, length: int) -> None:
        slot = self._slots[sequence_id]
        assert 0 <= length <= slot.length, f"commit({length}) of a slot that holds {slot.length}"
        if length == slot.length:
            return
        assert self.capabilities.rollback == "truncate", f"{self.name} cannot roll back"
        slot.cache.crop(length - slot.length)
        slot.length = length

    def _feed(self, feed: Feed, hidden: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        slot = self._slots[feed.sequence_id]
        assert slot.length + len(feed.tokens) <= self.max_model_len, f"slot of {self.max_model_len} tokens overrun"
        parts = [self._forward(piece, slot.cache, rows, hidden) for piece, rows in self._pieces(feed, slot.length)]
        logits_TV = torch.cat([logits for logits, _ in parts])
        states = [state for _, state in parts if state is not None]
        return logits_TV, torch.cat(states) if states else None

    def _pieces(self, feed: Feed, length: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """A feed cut into forwards, each with the rows to keep of it."""
        # Recurrent layers take many tokens only from an empty state; later ones go one by one.
        step = 1 if length and self.capabilities.rollback == "none" else len(feed.tokens)
        for start in range(0, len(feed.tokens), step):
            piece = feed.tokens[start : start + step]
            left = len(feed.tokens) - start - len(piece)
            yield piece, min(len(piece), max(0, feed.rows - left))

    def _forward(
        self, tokens: Sequence[int], cache: Any, rows: int, hidden: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits (rows, V) and, when asked for, final hidden states (rows, width) of the last tokens."""
        assert self._cache_word is not None
        options: dict[str, Any] = {self._cache_word: cache, "use_cache": True}
        if self._keeps_rows:
            # Zero means "all" there.
            options["logits_to_keep"] = max(rows, 1)
        if hidden:
            options["output_hidden_states"] = True
        output = self._model(input_ids=torch.tensor([list(tokens)], device=self._device), **options)
        logits_TV = output.logits[0]
        states = output.hidden_states[-1][0, len(tokens) - rows :] if hidden else None
        return logits_TV[logits_TV.shape[0] - rows :], states

    def _new_cache(self) -> Any:
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache(config=self._model.config)
        cache.layers = [
            DynamicLayer() if type(layer).__name__ == "DynamicSlidingWindowLayer" else layer for layer in cache.layers
        ]
        return cache

    @torch.inference_mode()
    def _probe(self) -> tuple[Literal["truncate", "none"], int]:
        """Learn from a forward of two tokens whether the cache can be cut, and how wide the logits are."""
        if self._cache_word is None:
            raise ModelError(
                f"{self.name}: {type(self._model).__name__} takes no cache, so it cannot be decoded step by step"
            )
        cache = self._new_cache()
        try:
            logits_TV, _ = self._forward([0, 1], cache, 1)
        except Exception as error:
            raise ModelError(f"{self.name}: a trial forward with a cache failed: {first_line(error)}") from error
        croppable = all(type(layer).__name__ in _CROPPABLE for layer in cache.layers)
        stateful = bool(getattr(self._model, "_is_stateful", False))
        if stateful or not croppable:
            return "none", logits_TV.shape[-1]
        if cache.get_seq_length() != 2:
            raise ModelError(
                f"{self.name}: {type(self._model).__name__} does not keep its context in the cache it is given"
            )
        return "truncate", logits_TV.shape[-1]


def _is_one_more_layer(key: str, own: Collection[str]) -> bool:
    """Whether ``a.b.7.c`` stands beside layers ``a.b.N`` that the model has."""
    stack = re.match(r"(.*?\.)\d+\.", key)
    return stack is not None and any(re.match(re.escape(stack[1]) + r"\d+\.", name) for name in own)


def _refuse_partial(name: str, report: Mapping[str, Any], own: Collection[str]) -> None:
    """Weights made up, or layers left out, would be a different model. ``report`` knows of tied weights.

    Other extra tensors (a vision tower, say) are left aside, as Transformers does.
    """
    if missing := report["missing_keys"]:
        raise ModelError(f"{name} is incomplete: its files lack {_first(missing)}; fetch the model again")
    if unused := [key for key in report["unexpected_keys"] if _is_one_more_layer(key, own)]:
        raise ModelError(
            f"{name}: its files hold {_first(unused)}, which has no place in the model that config.json describes; "
            "use the config.json that belongs to the weights"
        )
    if mismatched := report["mismatched_keys"]:
        key, stored, expected = min(mismatched)
        raise ModelError(
            f"{name}: {key!r} has shape {tuple(stored)} in its files, but config.json asks for {tuple(expected)}; "
            "use the config.json that belongs to the weights"
        )


def _first(keys: Collection[str]) -> str:
    others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"tensor {min(keys)!r}{others}"


def _copy_layers(slot: _Slot) -> list[Any]:
    """The cache's layers as they are now, safe from what a forward does to them.

    Keys and values are replaced, never written to, so they are shared; recurrent states are written in place.
    """
    return [_copy_layer(layer) for layer in slot.cache.layers]


def _copy_layer(layer: Any) -> Any:
    twin = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(twin, name, {key: _cloned(item) for key, item in value.items()})
        elif name not in ("keys", "values"):
            setattr(twin, name, _cloned(value))
    return twin


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
