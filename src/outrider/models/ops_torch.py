"""The decoder's arithmetic in torch. Nothing outside this file knows which matrix kernel runs.

Kernels here were chosen for one property before speed: a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

from outrider.models.invariance import rows_are_independent

if TYPE_CHECKING:
    from outrider.models.decoder_config import Activation

MIN_ROWS = 4
"""Fewest rows a step may have: one row takes another kernel, and four run faster than two (prefetching)."""
_MAX_ROWS = 256
_HEAD_WIDTH = 32768
_HEAD_ROWS = 32
_ROW_STEP = 16
_TILE_ROWS = 8
_VECTOR = 64
_SERIAL_ELEMENTS = 32768


class Linear(Protocol):
    """``x W' + b`` with what follows it fused in; inputs ``(rows, in)``, outputs ``(rows, out)``, rows >= MIN_ROWS."""

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor: ...
    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        """The product plus another tensor (a residual)."""
        ...

    def times(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        """The product times another tensor (a gate)."""
        ...

    def activated(self, x_NI: torch.Tensor) -> torch.Tensor:
        """The product through the model's activation."""
        ...


class OneDNNLinear:
    """Weights repacked once into oneDNN's blocked layout; reads them at nearly memory speed for few rows."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None, activation: Activation) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), None)
        self._bias = bias_O
        self._most = _most_rows(weight_OI)
        self._activation = ("swish", "") if activation == "silu" else ("gelu", "tanh")
        self._linear = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        if len(x_NI) > self._most:
            return _by_blocks(self._most, self, x_NI)
        return self._linear(x_NI, self._weight, self._bias, "none", [], "")  # type: ignore[no-any-return]

    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        if len(x_NI) > self._most:
            return _by_blocks(self._most, self.plus, x_NI, other_NO)
        return self._binary(x_NI, other_NO, self._weight, self._bias, "add")  # type: ignore[no-any-return]

    def times(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        if len(x_NI) > self._most:
            return _by_blocks(self._most, self.times, x_NI, other_NO)
        return self._binary(x_NI, other_NO, self._weight, self._bias, "mul")  # type: ignore[no-any-return]

    def activated(self, x_NI: torch.Tensor) -> torch.Tensor:
        if len(x_NI) > self._most:
            return _by_blocks(self._most, self.activated, x_NI)
        name, algorithm = self._activation
        return self._linear(x_NI, self._weight, self._bias, name, [], algorithm)  # type: ignore[no-any-return]


class TiledLinear:
    """Ordinary ``F.linear``, always on exactly eight rows, so that one and the same kernel serves every row."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None, activation: Activation) -> None:
        self._weight = weight_OI
        self._bias = bias_O
        self._activate: Callable[[torch.Tensor], torch.Tensor] = (
            F.silu if activation == "silu" else lambda x: F.gelu(x, approximate="tanh")
        )

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        rows = len(x_NI)
        padded = F.pad(x_NI, (0, 0, 0, -rows % _TILE_ROWS))
        return torch.cat([F.linear(tile, self._weight, self._bias) for tile in torch.split(padded, _TILE_ROWS)])[:rows]

    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        return self(x_NI).add_(other_NO)

    def times(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        return self(x_NI).mul_(other_NO)

    def activated(self, x_NI: torch.Tensor) -> torch.Tensor:
        # An elementwise exp rounds the last few elements of a call, or of a thread's share, in another way; rows of
        # whole vectors in calls too small for a second thread leave no such elements.
        product_NO = self(x_NI)
        width = product_NO.shape[1]
        padded = F.pad(product_NO, (0, -width % _VECTOR))
        blocks = torch.split(padded, max(1, (_SERIAL_ELEMENTS - 1) // padded.shape[1]))
        return torch.cat([self._activate(block) for block in blocks])[:, :width]


def _most_rows(weight_OI: torch.Tensor) -> int:
    """Rows of one product: never more than were tried. A head's products are slow to try, so it is tried on few."""
    return _HEAD_ROWS if weight_OI.shape[0] > _HEAD_WIDTH else _MAX_ROWS


def _by_blocks(most: int, product: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """Run a product on at most ``most`` rows at a time; a padded number of rows leaves padded blocks."""
    return torch.cat([product(*parts) for parts in zip(*(torch.split(t, most) for t in tensors), strict=True)])


def padded_rows(rows: int) -> int:
    """Rows to run for ``rows`` wanted: few sizes in all, since a kernel is compiled and kept for every size."""
    return max(rows, MIN_ROWS) if rows <= _ROW_STEP else -(-rows // _ROW_STEP) * _ROW_STEP


class LinearFactory:
    """Builds linears with the fastest kernel that passed the test on this machine, shape by shape.

    ``deterministic`` turns false when no kernel for some shape keeps rows independent.
    """

    def __init__(self, dtype: torch.dtype, activation: Activation) -> None:
        self.deterministic = True
        self._activation = activation
        self._kind: type[OneDNNLinear | TiledLinear] = OneDNNLinear if onednn_runs(dtype) else TiledLinear
        self._kinds: dict[tuple[int, int, bool], type[OneDNNLinear | TiledLinear]] = {}

    def build(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Linear:
        """Take over a dense weight ``(out, in)``; the caller drops its own reference."""
        shape = (*weight_OI.shape, bias_O is not None)
        linear = self._kinds.get(shape, self._kind)(weight_OI, bias_O, self._activation)
        if shape in self._kinds:
            return linear
        if not _independent(linear, weight_OI):
            linear = TiledLinear(weight_OI, bias_O, self._activation)
            self.deterministic &= _independent(linear, weight_OI)
        self._kinds[shape] = type(linear)
        return linear


def onednn_runs(dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed linears exist here and run this dtype at full speed."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not (available and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _independent(linear: Linear, weight_OI: torch.Tensor) -> bool:
    rows = _most_rows(weight_OI)
    inputs_NI = torch.randn(rows, weight_OI.shape[1], generator=torch.Generator().manual_seed(0))
    x_NI = inputs_NI.to(weight_OI.dtype)
    if rows == _HEAD_ROWS:
        # Nothing is fused to a head.
        return rows_are_independent(linear, (x_NI,), [4, 5, 7, 9, 17, 31])
    counts = [*range(MIN_ROWS, 13), 16, 17, 33, 128]
    gate_NO = linear(x_NI)
    return (
        rows_are_independent(linear, (x_NI,), counts)
        and rows_are_independent(linear.activated, (x_NI,), counts)
        and rows_are_independent(linear.plus, (x_NI, gate_NO), counts)
        and rows_are_independent(linear.times, (x_NI, gate_NO), counts)
    )


def norm_weight(weight_D: torch.Tensor, offset: float) -> torch.Tensor:
    """A norm's weight as ``rms_norm`` takes it: fp32, ``(2 * width,)``."""
    weight = weight_D.float() + offset
    return torch.cat((weight, weight))


def rms_norm(x_ND: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension, fp32 inside, rounded once (Zhang & Sennrich 2019).

    Computed as the layer norm of ``(x, -x)``, whose mean is 0 and whose variance is the mean square of x: one fused
    kernel, which treats every row alike, where torch's own RMS norm runs seven.
    """
    width = x_ND.shape[-1]
    both = torch.cat((x_ND, -x_ND), -1)
    return torch.native_layer_norm(both, [2 * width], weight, None, eps)[0][..., :width].contiguous()
