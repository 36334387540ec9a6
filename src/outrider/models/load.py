"""From a model reference to a runner and its tokenizer, choosing our decoder where it knows the family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider import kernels
from outrider.config import Quantization, check_dtype, check_quantization, is_whole
from outrider.errors import CapabilityError, ConfigError, ModelError, OutriderError
from outrider.models.quiet import first_line
from outrider.models.resolve import ModelFiles, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    import torch
    from transformers import PretrainedConfig

    from outrider.models.base import TargetRunner
    from outrider.models.decoder import DecoderConfig
    from outrider.models.gguf_file import PackedRows
    from outrider.models.tokenizer import Tokenizer

__all__ = ["LoadedModel", "ModelFiles", "load_runner"]

DEFAULT_MODEL_LEN = 8192
"""Longest slot planned without being asked: every slot is reserved whole, and models now claim far longer contexts."""


@dataclass(frozen=True)
class LoadedModel:
    """A runner ready for sequences, with what belongs to it."""

    runner: TargetRunner
    tokenizer: Tokenizer
    files: ModelFiles


def load_runner(
    ref: str | PathLike[str],
    *,
    dtype: str = "bfloat16",
    max_num_seqs: int = 8,
    max_model_len: int | None = None,
    longest: int | None = None,
    quantization: str | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a demo name, folder, GGUF file or Hub id; ``max_model_len`` defaults to the model's own, up to ``longest``
    (``DEFAULT_MODEL_LEN`` unless given; when given, it also serves a model that does not say how long it is).
    ``quantization``: see ``LLM``. Raises ``ConfigError`` (``CapabilityError`` for what this runner cannot do),
    ``ModelError`` or ``FetchError``; settings are checked before weights are read.
    """
    import torch

    from outrider.models.checkpoint import read_config
    from outrider.models.tokenizer import load_tokenizer

    torch_dtype: torch.dtype = getattr(torch, check_dtype(dtype))
    packing = check_quantization(quantization)
    check_kernels(packing)
    files = resolve(ref, trust_remote_code=trust_remote_code)
    if packing == "gguf" and files.gguf is None:
        raise ConfigError(f"quantization='gguf': {files.name} is no GGUF file; use a GGUF file, or quantization='int8'")
    config = read_config(files, trust_remote_code=trust_remote_code)
    length = model_length(config, max_model_len, files.name, longest)
    tokenizer = load_tokenizer(files, trust_remote_code=trust_remote_code)
    runner = _runner(
        files,
        config,
        dtype=torch_dtype,
        quantization=packing,
        max_num_seqs=max_num_seqs,
        max_model_len=length,
        trust_remote_code=trust_remote_code,
    )
    return LoadedModel(runner, tokenizer, files)


def check_kernels(quantization: Quantization | None) -> None:
    """Raises ``CapabilityError`` for a quantization without native kernels, ``ConfigError`` for unusable settings of
    them."""
    if quantization is None:
        kernels.load()
    else:
        kernels.require(f"quantization={quantization!r}")


def model_length(config: PretrainedConfig, wanted: int | None, name: str, longest: int | None = None) -> int:
    """The slot length to use. Raises ``ConfigError`` when more is wanted than the model was made for."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and (not is_whole(limit) or limit < 1):
        raise ModelError(f"{name}: max_position_embeddings={limit!r} is no context length; mend its config.json")
    if wanted is None:
        if limit is None and longest is None:
            raise ModelError(f"{name} does not say how long its context is; set max_model_len")
        ceiling = DEFAULT_MODEL_LEN if longest is None else longest
        return ceiling if limit is None else min(int(limit), ceiling)
    if not is_whole(wanted) or wanted < 1:
        raise ConfigError(f"max_model_len={wanted!r} must be a whole number, 1 or more")
    if limit is not None and wanted > limit:
        raise ConfigError(f"max_model_len={wanted} is more than the {limit} positions of {name}; use {limit} or less")
    return wanted


def _runner(
    files: ModelFiles,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype,
    quantization: Quantization | None,
    max_num_seqs: int,
    max_model_len: int,
    trust_remote_code: bool,
) -> TargetRunner:
    from outrider.models import decoder

    own = _decoder_config(config, files.name)
    if own is not None:
        return decoder.DecoderRunner.load(
            own,
            _tensors(files, dtype, quantization),
            dtype=dtype,
            quantization=quantization,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            name=files.name,
        )
    if quantization is not None:
        raise CapabilityError(
            f"quantization={quantization!r}: {files.name} runs on Transformers, and only Outrider's own decoder has "
            "quantizations; leave it out"
        )
    from outrider.models.hf import HFRunner

    return HFRunner.load(
        files,
        dtype=dtype,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        trust_remote_code=trust_remote_code,
        name=files.name,
    )


def _tensors(
    files: ModelFiles, dtype: torch.dtype, quantization: Quantization | None
) -> Iterator[tuple[str, torch.Tensor | PackedRows]]:
    import torch

    from outrider.models import checkpoint

    if quantization == "gguf":
        yield from checkpoint.read_packed_tensors(files, dtype)
    else:
        # What is quantised here is quantised from the file's own values.
        yield from checkpoint.read_tensors(files, dtype if quantization is None else torch.float32)


def _decoder_config(config: PretrainedConfig, name: str) -> DecoderConfig | None:
    """What our decoder needs; None when another runner must serve the model. Raises ``ModelError``."""
    from outrider.models import decoder

    # Quantised checkpoints hold packed integers that only Transformers' own modules understand.
    if getattr(config, "quantization_config", None) is not None:
        return None
    try:
        return decoder.DecoderConfig.from_hf(config) if decoder.supports(config) else None
    except OutriderError:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        # Transformers checks only some of the types that config.json may get wrong.
        detail = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"{name}: its configuration has an unusable value ({detail}); mend its config.json") from error
