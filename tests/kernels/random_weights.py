"""Random matrices and norms, built alike by the module under test and by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels import reference
from tests.kernels.recipes import Format, make_recipe

Floats = NDArray[np.float32]


class RandomWeights:
    """A stream of random matrices and norms that is the same for every module."""

    def __init__(self, module: Any, form: Format, seed: int, pool: Any) -> None:
        self.module, self.pool = module, pool
        self._form, self._drawn = form, 1000 * seed

    def norm(self, width: int) -> Floats:
        norm_D: Floats = (1 + 0.1 * self._random(1, width)[0]).astype(np.float32)
        return norm_D

    def matrix(self, outputs: int, inputs: int, *, bias: bool = False, gate: reference.Gate = "") -> Any:
        recipe = make_recipe(self._form, outputs, inputs, self._seed(), bias=bias, gate=gate)
        return recipe.built_by(self.module, self.pool)

    def poisoned_table(self, vocab: int, hidden: int) -> Any:
        """An embedding whose token 0 is NaN and token 1 infinity."""
        table_VD = self._random(vocab, hidden)
        table_VD[:2] = np.array([[np.nan], [np.inf]])
        return self.module.Matrix.dense(self.pool, table_VD)

    def _random(self, *shape: int) -> Floats:
        return np.random.default_rng(self._seed()).normal(size=shape).astype(np.float32)

    def _seed(self) -> int:
        self._drawn += 1
        return self._drawn
