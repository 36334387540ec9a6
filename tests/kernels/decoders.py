"""Small random decoders of every family, built alike by the module under test and by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from tests.kernels import reference
from tests.kernels.random_weights import Floats, RandomWeights
from tests.kernels.recipes import DENSE, Format

if TYPE_CHECKING:
    from outrider.kernels import _native as kernels


@dataclass(frozen=True)
class Shape:
    """What a decoder is like; ``local`` has an entry a layer."""

    form: Format = DENSE
    kv_dtype: Literal["float32", "bfloat16"] = "float32"
    vocab: int = 50
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    inner: int = 64
    local: tuple[bool, ...] = (False, False)
    window: int = 0
    positions: int = 96
    slots: int = 3
    bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    gate: reference.Gate = "silu"
    embedding_scale: float = 1.0
    tied: bool = False
    poisoned: bool = False
    """Tokens 0 and 1 are NaN and infinity, for tests of what reaches whom (with a head of its own)."""
    seed: int = 1


LLAMA = Shape(tied=True)
QWEN2 = Shape(bias=True, heads=3, kv_heads=1, head_dim=10, hidden=30, inner=50)
QWEN3 = Shape(qk_norm=True, heads=6, kv_heads=2, head_dim=32, hidden=96)
GEMMA = Shape(
    local=(True, False, True),
    window=9,
    qk_norm=True,
    post_norms=True,
    gate="gelu_tanh",
    embedding_scale=5.66,
    tied=True,
    heads=2,
    kv_heads=1,
    head_dim=64,
)
FAMILIES = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "gemma": GEMMA}


@dataclass(frozen=True)
class Feed:
    """Rows appended to one slot."""

    slot: int
    start: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None


@dataclass(frozen=True)
class Out:
    """Results of a step, wanted rows only."""

    logits_MV: Floats
    hidden_MD: Floats
    states_LND: Floats


@dataclass
class Subject:
    """A decoder and short ways to use it."""

    decoder: Any
    shape: Shape
    opened: set[int] = field(default_factory=set)

    def open(self, *slots: int) -> Subject:
        """Open slots; returns itself."""
        for slot in slots:
            self.decoder.open(slot)
            self.opened.add(slot)
        return self

    def reset(self, *slots: int) -> None:
        """Close and open again."""
        for slot in slots:
            self.decoder.close(slot)
            self.decoder.open(slot)

    def step(self, *feeds: Feed, wanted: Sequence[int] | None = None, layers: Sequence[int] = ()) -> Out:
        """One packed forward; all rows are wanted unless told otherwise."""
        arrays = step_arrays(self.shape, feeds, wanted, layers)
        self.decoder.step(**arrays)
        return Out(arrays["logits_MV"], arrays["hidden_MD"], arrays["states_LND"])

    def feed(self, slot: int, start: int, tokens: Sequence[int], parents: Sequence[int] | None = None) -> Floats:
        """Logits of one feed, all rows."""
        return self.step(Feed(slot, start, tokens, parents)).logits_MV

    def chunks(self, slot: int, tokens: Sequence[int], sizes: Sequence[int], start: int = 0) -> Floats:
        """Logits of all rows, fed in pieces of these sizes, over and over."""
        parts: list[Floats] = []
        done = 0
        while done < len(tokens):
            size = sizes[len(parts) % len(sizes)]
            parts.append(self.feed(slot, start + done, tokens[done : done + size]))
            done += size
        return np.concatenate(parts)

    def plain(self, slot: int, tokens: Sequence[int], start: int = 0) -> Floats:
        """Logits of all rows, one token a step."""
        return self.chunks(slot, tokens, (1,), start)


def step_arrays(
    shape: Shape, feeds: Sequence[Feed], wanted: Sequence[int] | None = None, layers: Sequence[int] = ()
) -> dict[str, Any]:
    """Keyword arguments of ``Decoder.step``, with results to be filled."""

    def ints(values: Sequence[int]) -> NDArray[np.int32]:
        return np.array(values, np.int32)

    tokens = [token for each in feeds for token in each.tokens]
    wanted_M = ints(range(len(tokens)) if wanted is None else wanted)
    arrays: dict[str, Any] = {
        "tokens_N": ints(tokens),
        "slots_F": ints([each.slot for each in feeds]),
        "starts_F": ints([each.start for each in feeds]),
        "counts_F": ints([len(each.tokens) for each in feeds]),
        "wanted_M": wanted_M,
        "logits_MV": np.full((len(wanted_M), shape.vocab), np.nan, np.float32),
        "hidden_MD": np.full((len(wanted_M), shape.hidden), np.nan, np.float32),
        "layers_L": ints(layers),
        "states_LND": np.full((len(layers), len(tokens), shape.hidden), np.nan, np.float32),
    }
    if any(each.parents is not None for each in feeds):
        chains = [range(-1, len(each.tokens) - 1) if each.parents is None else each.parents for each in feeds]
        arrays["parents_N"] = ints([parent for chain in chains for parent in chain])
    return arrays


def build(shape: Shape, pool: kernels.Pool) -> Subject:
    """A decoder of the module under test, all its slots closed."""
    from tests.kernels.native import kernels as module

    return Subject(_build(module, shape, pool), shape)


def build_reference(shape: Shape) -> Subject:
    """The same decoder in fp64."""
    return Subject(_build(reference, shape, reference.Pool(1, "portable")), shape)


def _build(module: Any, shape: Shape, pool: Any) -> Any:
    matrices = Weights(module, shape, pool)
    decoder = module.Decoder(pool, **decoder_arguments(shape), **matrices.ends())
    for local in shape.local:
        decoder.add_layer(local=local, **matrices.layer())
    return decoder


def decoder_arguments(shape: Shape) -> dict[str, Any]:
    """Everything that the constructor takes but matrices and the last norm."""
    angles_SP = np.arange(shape.positions)[:, None] * 100.0 ** -np.linspace(0, 1, shape.head_dim // 2)
    slow_SP = angles_SP / 3
    return {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_layers": len(shape.local),
        "norm_eps": 1e-5,
        "attention_scale": 1.5 * shape.head_dim**-0.5,
        "window": shape.window,
        "embedding_scale": shape.embedding_scale,
        "slots": shape.slots,
        "positions": shape.positions,
        "kv_dtype": shape.kv_dtype,
        "cos_SP": np.cos(slow_SP).astype(np.float32),
        "sin_SP": np.sin(slow_SP).astype(np.float32),
        "local_cos_SP": np.cos(angles_SP).astype(np.float32),
        "local_sin_SP": np.sin(angles_SP).astype(np.float32),
    }


class Weights(RandomWeights):
    """What a model of this shape is made of."""

    def __init__(self, module: Any, shape: Shape, pool: Any) -> None:
        super().__init__(module, shape.form, shape.seed, pool)
        self.shape = shape

    def ends(self) -> dict[str, Any]:
        """Embedding, head and the norm between them."""
        shape = self.shape
        if shape.poisoned:
            assert not shape.tied, "a poisoned head would spoil every row"
            return {
                "embedding": self.poisoned_table(shape.vocab, shape.hidden),
                "head": self.matrix(shape.vocab, shape.hidden),
                "norm_D": self.norm(shape.hidden),
            }
        embedding = self.matrix(shape.vocab, shape.hidden)
        head = embedding if shape.tied else self.matrix(shape.vocab, shape.hidden)
        return {"embedding": embedding, "head": head, "norm_D": self.norm(shape.hidden)}

    def layer(self) -> dict[str, Any]:
        """Arguments of ``add_layer`` but ``local``."""
        shape = self.shape
        width, dim = shape.hidden, shape.head_dim
        return {
            "input_norm_D": self.norm(width),
            "qkv": self.matrix((shape.heads + 2 * shape.kv_heads) * dim, width, bias=shape.bias),
            "q_norm": self.norm(dim) if shape.qk_norm else None,
            "k_norm": self.norm(dim) if shape.qk_norm else None,
            "out": self.matrix(width, shape.heads * dim, bias=shape.bias),
            "post_attention_norm_D": self.norm(width) if shape.post_norms else None,
            "mlp_norm_D": self.norm(width),
            "gate_up": self.matrix(shape.inner, width, bias=shape.bias, gate=shape.gate),
            "down": self.matrix(width, shape.inner, bias=shape.bias),
            "post_mlp_norm_D": self.norm(width) if shape.post_norms else None,
        }


def with_form(shape: Shape, form: Format) -> Shape:
    """The shape in another format, widened to what its blocks need, keys and values as its activations."""
    if form.packed:
        shape = replace(shape, hidden=-(-shape.hidden // 32) * 32, inner=-(-shape.inner // 32) * 32)
        if shape.heads * shape.head_dim % 32:
            shape = replace(shape, heads=4, kv_heads=2, head_dim=8)
    kv: Literal["float32", "bfloat16"] = "float32" if form.activations == "float32" else "bfloat16"
    return replace(shape, form=form, kv_dtype=kv)


def random_tokens(shape: Shape, count: int, seed: int) -> list[int]:
    """Tokens that are not poisoned."""
    return cast("list[int]", np.random.default_rng(seed).integers(2, shape.vocab, count).tolist())


def random_tree(count: int, rng: np.random.Generator) -> list[int]:
    """Parents of ``count`` rows: several roots, long chains and wide forks."""
    return [i - 1 if i == 0 or rng.random() < 0.5 else int(rng.integers(-1, i)) for i in range(count)]
