"""The ways in which benchmarks load a model: by dtype, quantization, and on native kernels or torch ops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outrider import kernels
from outrider.config import Quantization
from outrider.models.load import LoadedModel, load_runner


@dataclass(frozen=True)
class Kind:
    """How weights are held: what ``load_runner`` is asked for, and bytes a weight."""

    dtype: str
    quantization: Quantization | None
    itemsize: int


DENSE = {"bf16": Kind("bfloat16", None, 2), "fp32": Kind("float32", None, 4)}
QUANTISED = {"int8_dynamic": Kind("bfloat16", "int8-dynamic", 1), "int8": Kind("bfloat16", "int8", 1)}


def load(model: str, kind: Kind, length: int, batch: int, torch_ops: bool = False) -> LoadedModel:
    """A model of one kind, on native kernels where there are any unless torch ops are asked for."""
    with environment(kernels.LEVEL_VARIABLE, kernels.TORCH if torch_ops else os.environ.get(kernels.LEVEL_VARIABLE)):
        return load_runner(
            model, dtype=kind.dtype, quantization=kind.quantization, max_num_seqs=batch, max_model_len=length
        )


@contextmanager
def environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable, and put it back."""
    before = os.environ.get(name)
    try:
        if value is not None:
            os.environ[name] = value
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
