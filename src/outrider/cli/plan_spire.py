"""Trained SPIRe drafts as a plan takes them: sizes of an exported folder, the target it fits, and what is shipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.plan.architecture import Storage
    from outrider.plan.memory import Model
    from outrider.plan.search import Method

_QUANTIZATION = "int8-dynamic"
"""How the engine holds the matrices of a SPIRe draft, whatever the target's."""


def is_trained(values: Mapping[str, Any]) -> bool:
    """Whether a folder's configuration is that of a SPIRe draft, as `outrider train export` writes it."""
    from outrider.draft.spire.config import FORMAT

    return bool(values.get("format") == FORMAT)


def trained_model(values: Mapping[str, Any], folder: Path, held: Storage) -> Model:
    """The draft in a folder; the rows of the embedding table that it reads are its target's. Raises ModelError."""
    from outrider.draft.spire.config import SpireConfig
    from outrider.plan.architecture import Architecture, Storage
    from outrider.plan.memory import Model, Reads

    c = SpireConfig.from_dict({key: value for key, value in values.items() if key != "provenance"}, str(folder))
    architecture = Architecture(
        layers=c.num_layers,
        hidden=c.hidden_size,
        heads=c.num_heads,
        kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        intermediate=c.intermediate_size,
        vocab=c.draft_vocab_size,
        tied=True,
        local_layers=0 if c.window is None else c.num_layers,
        window=0 if c.window is None else c.sink + c.window,
    )
    reads = Reads(c.vocab_size, c.hidden_size, max(c.reads))
    return Model(str(folder), str(folder), architecture, Storage(held.dtype, _QUANTIZATION), reads)


def check_trained(target: Model, drafters: Iterable[tuple[Method, str | None]], models: Mapping[str, Model]) -> None:
    """Raise ConfigError for a trained draft that is to decode alone, or was made for another target."""
    from outrider.draft.spire.config import Fit, misfit

    if target.reads is not None:
        raise ConfigError(f"--target {target.name} is a SPIRe draft: give it as --draft, with its target as --target")
    for method, ref in drafters:
        draft = models[ref] if ref is not None else None
        if draft is None or draft.reads is None:
            continue
        if method != "spire":
            raise ConfigError(f"--draft {draft.name} is a SPIRe draft: give --method spire for it, not {method}")
        reads, sizes = draft.reads, target.architecture
        mine = Fit(reads.vocab, reads.hidden, reads.layers)
        wrong = misfit(mine, Fit(sizes.vocab, sizes.hidden, sizes.layers), target.name)
        if wrong is not None:
            raise ConfigError(f"--draft {draft.name} {wrong}")


def with_shipped(target: Model, drafters: Iterable[tuple[Method, str | None]]) -> Iterator[tuple[Method, str | None]]:
    """Drafters, where a SPIRe draft that is not named is the one that comes with the package, if one fits."""
    for method, ref in drafters:
        yield method, _shipped(target) if method == "spire" and ref is None else ref


def _shipped(target: Model) -> str | None:
    from outrider.draft.shipped import shipped_for

    sizes = target.architecture
    folder = shipped_for(sizes.layers, sizes.hidden, sizes.vocab)
    return None if folder is None else str(folder)
