"""The target drafts for itself over a sparse cache: the text's first token and the last 64 (MagicDec, StreamingLLM).

It is a SPIRe draft of all the target's blocks that reads the state before each: the keys and values it makes of a
committed position are the target's own, so nothing is trained. Positions are those of the text, where MagicDec counts
places of its cache. The step is plain torch in float32, with the target's weights as they are: made to measure how many
tokens such drafts earn, not for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.drafter import SpireDrafter
from outrider.draft.spire.step_torch import TorchSpireStep
from outrider.draft.spire.weights import SpireWeights
from outrider.draft.target_blocks import block_of_target, decoder_of, head_rows
from outrider.models.checkpoint import read_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outrider.models.decoder import DecoderRunner
    from outrider.models.decoder_config import DecoderConfig
    from outrider.models.load import LoadedModel

WINDOW, SINK = 64, 1
"""The article's."""


class SparseSelfDrafter(SpireDrafter):
    """Drafts with the target's weights over few of its keys."""

    name = "sparse_self"


def build_sparse_self(target: LoadedModel, most: int, dtype: str) -> SparseSelfDrafter:
    """The drafter for this target, for drafts of at most ``most`` tokens; ``dtype`` is what the target runs in.

    Raises CapabilityError for a target that Outrider's own decoder does not run, ModelError for one whose blocks are
    not plain Llama's.
    """
    runner = decoder_of(target, SparseSelfDrafter.name)
    # First, so that a family that cannot be had is refused before its weights are read.
    own_config(runner.config)
    tensors = dict(read_tensors(target.files, getattr(torch, dtype)))
    return sparse_self(runner, tensors, most, target.tokenizer.eos_ids)


def sparse_self(
    runner: DecoderRunner, tensors: Mapping[str, torch.Tensor], most: int, eos_ids: frozenset[int] = frozenset()
) -> SparseSelfDrafter:
    """The same from the target's weights by their Hugging Face names."""
    config = own_config(runner.config)
    sizes = {"max_model_len": runner.max_model_len}
    step = TorchSpireStep(
        own_weights(config, tensors), _lookup(tensors), slots=runner.max_num_seqs, ring=WINDOW + most, **sizes
    )
    ids = torch.arange(config.vocab_size)
    return SparseSelfDrafter(config, step, ids, most=most, max_num_seqs=runner.max_num_seqs, eos_ids=eos_ids, **sizes)


def own_config(target: DecoderConfig) -> SpireConfig:
    """All blocks, each reading the state before it; an own position is remembered by each layer's input alone."""
    every = tuple(range(target.num_layers))
    return SpireConfig.of_target(
        target,
        blocks=every,
        reads=every,
        draft_vocab_size=target.vocab_size,
        window=WINDOW,
        sink=SINK,
        feedback=False,
        sees_itself=True,
    )


def own_weights(config: SpireConfig, tensors: Mapping[str, torch.Tensor]) -> SpireWeights:
    """The target's weights under a draft's names."""
    ids = torch.arange(config.vocab_size)
    layers = {
        f"layers.{layer}.{name}": tensor
        for layer in config.blocks
        for name, tensor in block_of_target(tensors, layer).items()
    }
    ends = {"norm": tensors["model.norm.weight"].float(), "head": head_rows(tensors, ids)}
    return SpireWeights(config, {**layers, **ends, "mix": torch.zeros(config.num_layers, config.num_layers + 1)}, ids)


def _lookup(tensors: Mapping[str, torch.Tensor]) -> Callable[[Sequence[int]], torch.Tensor]:
    table_VD = tensors["model.embed_tokens.weight"]
    return lambda ids: table_VD[list(ids)]
