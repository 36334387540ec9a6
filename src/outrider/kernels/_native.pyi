"""The C++ extension: packed matrices and a whole decoder step, bit-exact per row.

Arrays are C-contiguous numpy arrays, bfloat16 travels as ``uint16`` bits. A wrong dtype raises TypeError, a wrong
shape, range or state ValueError; nothing has changed after either. Calls release the GIL.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Gate = Literal["", "silu", "gelu_tanh"]
Activations = Literal["float32", "bfloat16", "int8"]

def levels() -> list[str]:
    """Instruction-set levels that this processor runs, best first: "avx512bf16", "avx512", "avx2vnni", "avx2",
    "portable"."""

class Pool:
    """Threads of our own; the caller is the first. One step at a time runs on a pool."""

    def __init__(self, threads: int, level: str) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def level(self) -> str: ...

class Matrix:
    """A weight packed for one pool. ``gate``: the rows are a gate's followed by as many of an up projection, and the
    product is ``activation(gate) * up``, half as wide. ``activations``: what inputs are rounded to before products;
    "int8" quantises every row (or every group of 32 of a row) symmetrically when it is used. Accumulation is fp32.
    """

    @staticmethod
    def dense(
        pool: Pool,
        weight_OI: NDArray[np.float32] | NDArray[np.uint16],
        bias_O: NDArray[np.float32] | None = None,
        *,
        gate: Gate = "",
    ) -> Matrix:
        """fp32 weights with fp32 activations, or bfloat16 weights with bfloat16 activations."""

    @staticmethod
    def int8(
        pool: Pool,
        weight_OI: NDArray[np.float32],
        bias_O: NDArray[np.float32] | None = None,
        *,
        group: int,
        activations: Activations,
        gate: Gate = "",
    ) -> Matrix:
        """Quantise symmetrically to int8; a scale for each output (``group`` 0) or each 32 inputs (``group`` 32)."""

    @staticmethod
    def gguf(
        pool: Pool,
        blocks: NDArray[np.uint8],
        bias_O: NDArray[np.float32] | None = None,
        *,
        kind: Literal["Q8_0", "Q4_0", "Q4_1"],
        activations: Activations,
        gate: Gate = "",
    ) -> Matrix:
        """GGUF blocks ``(outputs, bytes of a row)`` repacked as they are, never expanded."""

    @property
    def outputs(self) -> int:
        """Width of a product: half the rows for a gated matrix."""
    @property
    def inputs(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def multiply(self, x_NI: NDArray[np.float32]) -> NDArray[np.float32]:
        """The product ``(N, outputs)``, bias and gate included."""

    def rows(self, indices: NDArray[np.int32]) -> NDArray[np.float32]:
        """Weights of these outputs as the products see them, ``(len(indices), inputs)``: an embedding lookup."""

class Decoder:
    """Weights of a decoder by layer, and its key/value slots."""

    def __init__(
        self,
        pool: Pool,
        *,
        vocab_size: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_layers: int,
        norm_eps: float,
        attention_scale: float,
        window: int,
        embedding_scale: float,
        slots: int,
        positions: int,
        kv_dtype: Literal["float32", "bfloat16"],
        embedding: Matrix,
        head: Matrix,
        norm_D: NDArray[np.float32],
        cos_SP: NDArray[np.float32],
        sin_SP: NDArray[np.float32],
        local_cos_SP: NDArray[np.float32],
        local_sin_SP: NDArray[np.float32],
    ) -> None:
        """``window`` 0: none. Norm weights include any offset. Rotations are ``(positions, head_dim / 2)``, for global
        and for local (sliding-window) layers; pairs are (i, i + head_dim / 2), Transformers' convention."""

    def add_layer(
        self,
        *,
        local: bool,
        input_norm_D: NDArray[np.float32],
        qkv: Matrix,
        q_norm: NDArray[np.float32] | None,
        k_norm: NDArray[np.float32] | None,
        out: Matrix,
        post_attention_norm_D: NDArray[np.float32] | None,
        mlp_norm_D: NDArray[np.float32],
        gate_up: Matrix,
        down: Matrix,
        post_mlp_norm_D: NDArray[np.float32] | None,
    ) -> None:
        """Append a layer. ``qkv``: rows of q, k and v heads in that order, not permuted."""

    @property
    def nbytes(self) -> int:
        """Bytes of packed weights, each matrix once."""
    def open(self, slot: int) -> None:
        """Take a slot that is closed. ValueError when it is open."""

    def close(self, slot: int) -> None:
        """Free a slot; its keys and values are erased. ValueError when it is not open."""

    def step(
        self,
        tokens_N: NDArray[np.int32],
        slots_F: NDArray[np.int32],
        starts_F: NDArray[np.int32],
        counts_F: NDArray[np.int32],
        wanted_M: NDArray[np.int32],
        logits_MV: NDArray[np.float32],
        *,
        hidden_MD: NDArray[np.float32] | None = None,
        layers_L: NDArray[np.int32] | None = None,
        states_LND: NDArray[np.float32] | None = None,
        parents_N: NDArray[np.int32] | None = None,
    ) -> None:
        """One packed forward of F feeds, N rows in all; feed f appends ``counts[f]`` rows at position ``starts[f]`` of
        its slot (at most the rows written so far). Logits, and final normed hidden states, of the wanted packed rows;
        ``states``: the residual stream after ``layers`` layers (0: the embeddings) of every packed row.
        ``parents``: within its feed, the row that each row follows (-1: the committed tokens), smaller than itself;
        a row sees the committed tokens, its ancestors and itself, and its position is its depth. Default: a chain.
        """

    def move(self, slot: int, sources: NDArray[np.int32], target: int) -> None:
        """Copy keys and values of positions ``sources`` (ascending, none below its target) to ``target`` and on."""

class SpireDraft:
    """A SPIRe draft: queries come from its own residual stream, keys and values from memory vectors: states that are
    given for committed positions, and for its own positions a mixture over the depth of its stream.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norm_eps: float,
        window: int,
        sink: int,
        sees_itself: bool,
        slots: int,
        ring: int,
        embedding: Matrix,
        head: Matrix,
        norm_D: NDArray[np.float32],
        mix_LS: NDArray[np.float32],
        cos_SP: NDArray[np.float32],
        sin_SP: NDArray[np.float32],
    ) -> None:
        """``window`` 0: everything earlier is seen; with ``sees_itself`` the position too, by its layer's input.

        The first ``sink`` positions of a slot have places of their own, later ones share ``ring`` places: at least the
        window and the most draft tokens, and without a window the longest text. ``embedding`` is looked up by rows and
        may be another model's, of another pool. ``mix_LS`` ``(L, L + 1)``: shares of the stream before the first layer
        and after each in a layer's memory of an own position. Rotations are as ``Decoder`` has them; they are the
        positions there are.
        """

    def add_layer(
        self,
        *,
        input_norm_D: NDArray[np.float32],
        q: Matrix,
        kv: Matrix,
        out: Matrix,
        mlp_norm_D: NDArray[np.float32],
        gate_up: Matrix,
        down: Matrix,
    ) -> None:
        """Append a layer. ``kv``: rows of k heads, then of v heads. ``gate_up``: gated."""

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights that a step multiplies with: without the embedding."""
    def open(self, slot: int) -> None:
        """Take a slot that is closed. ValueError when it is open."""

    def close(self, slot: int) -> None:
        """Free a slot and forget its positions. ValueError when it is not open."""

    def remember(
        self, slots_N: NDArray[np.int32], positions_N: NDArray[np.int32], states_LND: NDArray[np.float32]
    ) -> None:
        """Make layer l's keys and values of these positions from ``states[l]``, normed by its input norm, in place of
        what their places held; of rows that share a place the last stays."""

    def step(
        self,
        tokens_N: NDArray[np.int32],
        slots_N: NDArray[np.int32],
        positions_N: NDArray[np.int32],
        logits_NV: NDArray[np.float32],
    ) -> None:
        """Run and remember one own position of each of N different slots. It sees the earlier positions that are
        remembered, in the sink or at most ``window`` before it; attention to none is zero."""
