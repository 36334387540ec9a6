"""Random matrices of every format, built alike by the module under test and by the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from tests.kernels import reference
from tests.kernels.formats import GROUP, Activations, GgufKind, bfloat16_bits, random_gguf

if TYPE_CHECKING:
    from outrider.kernels import _native as kernels

# By name, and not the loaded profile: without the other tests' conftest (and its torch) there is none.
SETTINGS = settings(
    max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

SPECIAL = (np.nan, np.inf, -np.inf, 3e38, -1e30)


@dataclass(frozen=True)
class Format:
    """How weights are held and what inputs are rounded to."""

    weights: str
    activations: Activations

    @property
    def packed(self) -> bool:
        """Whether weights come as GGUF blocks, whose rows are multiples of 32."""
        return self.weights.startswith("Q")

    @property
    def group(self) -> int:
        return GROUP if self.packed or self.weights == "int8x32" else 0

    def __str__(self) -> str:
        return self.weights if self.weights == self.activations else f"{self.weights}-{self.activations}"


ACTIVATIONS: tuple[Activations, ...] = ("float32", "bfloat16", "int8")
FORMATS = [
    Format("float32", "float32"),
    Format("bfloat16", "bfloat16"),
    *(Format(weights, each) for weights in ("int8", "int8x32", "Q8_0", "Q4_0", "Q4_1") for each in ACTIVATIONS),
]
DENSE = FORMATS[0]


def named(name: str) -> Format:
    """The format that prints like this."""
    return next(each for each in FORMATS if str(each) == name)


@dataclass(frozen=True)
class Recipe:
    """A weight as a constructor takes it."""

    format: Format
    raw: NDArray[Any]
    bias_O: NDArray[np.float32] | None
    gate: reference.Gate

    def build(self, pool: kernels.Pool) -> kernels.Matrix:
        """By the module under test."""
        from tests.kernels.native import kernels as module

        return cast("kernels.Matrix", self.built_by(module, pool))

    def reference(self) -> reference.Matrix:
        """The same in fp64."""
        return cast("reference.Matrix", self.built_by(reference, reference.Pool(1, "portable")))

    def built_by(self, module: Any, pool: Any) -> Any:
        """By a module that has the extension's API, for one of its pools."""
        matrix = module.Matrix
        weights, activations = self.format.weights, self.format.activations
        if self.format.packed:
            return matrix.gguf(pool, self.raw, self.bias_O, kind=weights, activations=activations, gate=self.gate)
        if weights.startswith("int8"):
            group = self.format.group
            return matrix.int8(pool, self.raw, self.bias_O, group=group, activations=activations, gate=self.gate)
        return matrix.dense(pool, self.raw, self.bias_O, gate=self.gate)


def make_recipe(
    form: Format, outputs: int, inputs: int, seed: int, *, bias: bool = True, gate: reference.Gate = ""
) -> Recipe:
    """Weights about as large as trained ones; ``outputs`` is a product's width; inputs grow to fill GGUF blocks."""
    rng = np.random.default_rng(seed)
    rows = 2 * outputs if gate else outputs
    bias_O = rng.normal(size=rows).astype(np.float32) if bias else None
    if form.packed:
        kind = cast("GgufKind", form.weights)
        return Recipe(form, random_gguf(rng, (rows, -(-inputs // GROUP) * GROUP), kind), bias_O, gate)
    weight_OI = (rng.normal(size=(rows, inputs)) / np.sqrt(inputs)).astype(np.float32)
    return Recipe(form, bfloat16_bits(weight_OI) if form.weights == "bfloat16" else weight_OI, bias_O, gate)


def make_inputs(rows: int, inputs: int, seed: int) -> NDArray[np.float32]:
    """Rows of very different size, every fifth all zeros, every seventh halfway between bfloat16 numbers."""
    rng = np.random.default_rng(seed)
    x_NI = (rng.normal(size=(rows, inputs)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))).astype(np.float32)
    x_NI[4::5] = 0
    halfway = x_NI[2::7].view(np.uint32)
    halfway[:] = np.where(halfway == 0, 0, halfway & 0xFFFF0000 | 0x8000)
    return x_NI


def same_bits(got: NDArray[Any], want: NDArray[Any]) -> bool:
    """Equal shapes and bytes: zeros differ by sign, and NaNs count by their bits."""
    return got.shape == want.shape and got.dtype == want.dtype and got.tobytes() == want.tobytes()
