"""Weights packed for the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from outrider.config import Quantization
from outrider.models.decoder_config import DecoderConfig
from outrider.models.decoder_weights import Stored, Weights
from outrider.models.gguf_file import PackedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from outrider.kernels import Native
    from outrider.kernels._native import Activations, Gate, Matrix

    Array = NDArray[np.float32]
    NativeWeights = Weights[Matrix, Matrix, Matrix, Array]


class NativeBuilder:
    """Packs matrices with their rows as they come: q, k and v, and gate and up, one below the other.

    Without ``quantization`` matrices are in ``dtype``. "int8" and "int8-dynamic" quantise every one of them, but for
    an embedding that is not the head as well: it is only looked up, so its size costs no time. "gguf" keeps the rows
    that come packed, where all rows of a matrix come so and alike.
    """

    def __init__(
        self, config: DecoderConfig, native: Native, dtype: torch.dtype, quantization: Quantization | None
    ) -> None:
        self.pool = native.pool()
        # Codes and scales are of the weights as they were, not as rounded to bfloat16.
        self.dtype = torch.float32 if quantization in ("int8", "int8-dynamic") else dtype
        self._matrix = native.module.Matrix
        self._config, self._model_dtype, self._quantization = config, dtype, quantization

    def tied(self, table_VD: Stored) -> tuple[Matrix, Matrix]:
        both = self.linear([table_VD], ())
        return both, both

    def table(self, table_VD: Stored) -> Matrix:
        if isinstance(table_VD, PackedRows):
            return self._packed([table_VD], None, "")
        return self._dense(table_VD, None, "")

    def linear(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Matrix:
        return self._rows(weights, biases, "")

    def qkv(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Matrix:
        return self._rows(weights, biases, "")

    def gate_up(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Matrix:
        return self._rows(weights, biases, self._config.activation)

    def norm(self, weight_D: torch.Tensor) -> Array:
        return _float32(weight_D) + np.float32(self._config.norm_offset)

    def head_norm(self, weight_D: torch.Tensor, heads: int) -> Array:
        del heads  # all heads share one weight
        return self.norm(weight_D)

    def _rows(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor], gate: Gate) -> Matrix:
        bias_O = _float32(torch.cat(list(biases))) if biases else None
        packed = [weight for weight in weights if isinstance(weight, PackedRows)]
        if len(packed) == len(weights) and len({rows.kind for rows in packed}) == 1:
            return self._packed(packed, bias_O, gate)
        dense = [weight.dense(self.dtype) if isinstance(weight, PackedRows) else weight for weight in weights]
        weight_OI = torch.cat(dense) if len(dense) > 1 else dense[0]
        if self._quantization in ("int8", "int8-dynamic"):
            return self._matrix.int8(
                self.pool, _float32(weight_OI), bias_O, group=0, activations=self._activations, gate=gate
            )
        return self._dense(weight_OI, bias_O, gate)

    def _packed(self, rows: Sequence[PackedRows], bias_O: Array | None, gate: Gate) -> Matrix:
        blocks = torch.cat([part.blocks for part in rows]).numpy()
        return self._matrix.gguf(self.pool, blocks, bias_O, kind=rows[0].kind, activations=self._activations, gate=gate)

    def _dense(self, weight_OI: torch.Tensor, bias_O: Array | None, gate: Gate) -> Matrix:
        values = weight_OI.to(self._model_dtype).contiguous()
        if self._model_dtype == torch.bfloat16:
            bits: NDArray[np.uint16] = values.view(torch.int16).numpy().view(np.uint16)
            return self._matrix.dense(self.pool, bits, bias_O, gate=gate)
        return self._matrix.dense(self.pool, _float32(values), bias_O, gate=gate)

    @property
    def _activations(self) -> Activations:
        return "int8" if self._quantization == "int8-dynamic" else dtype_name(self._model_dtype)


def dtype_name(dtype: torch.dtype) -> Literal["float32", "bfloat16"]:
    """The native kernels' word for a model's dtype."""
    return "bfloat16" if dtype == torch.bfloat16 else "float32"


def _float32(tensor: torch.Tensor) -> Array:
    values: Array = tensor.float().contiguous().numpy()
    return values
