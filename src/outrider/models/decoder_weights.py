"""From a stream of named tensors to a decoder's operations, holding no dense tensor longer than needed.

What the operations are is a backend's business: a ``Builder`` makes them, from tensors whose shapes were checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch

from outrider.errors import ModelError
from outrider.models.decoder_config import DecoderConfig
from outrider.models.gguf_file import PackedRows

Stored = torch.Tensor | PackedRows
Held = dict[str, Any]

Table = TypeVar("Table")
Product = TypeVar("Product")
Gated = TypeVar("Gated")
Norm = TypeVar("Norm")
Table_co = TypeVar("Table_co", covariant=True)
Product_co = TypeVar("Product_co", covariant=True)
Gated_co = TypeVar("Gated_co", covariant=True)
Norm_co = TypeVar("Norm_co", covariant=True)


@dataclass
class Layer(Generic[Product, Gated, Norm]):
    """Operations of one layer."""

    input_norm: Norm
    qkv: Product
    out: Product
    mlp_norm: Norm
    gate_up: Gated
    """``activation(gate) * up``, one operation."""
    down: Product
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    post_attention_norm: Norm | None = None
    post_mlp_norm: Norm | None = None


@dataclass
class Weights(Generic[Table, Product, Gated, Norm]):
    """A whole decoder."""

    embedding: Table
    head: Product
    norm: Norm
    layers: list[Layer[Product, Gated, Norm]]


class Builder(Protocol[Table_co, Product_co, Gated_co, Norm_co]):
    """Makes one backend's operations. Matrices are ``(outputs, inputs)``; biases are all there or none is."""

    @property
    def dtype(self) -> torch.dtype:
        """What dense tensors are converted to as they come."""
        ...

    def tied(self, table_VD: Stored) -> tuple[Table_co, Product_co]:
        """Embedding and head of one and the same matrix."""
        ...

    def table(self, table_VD: Stored) -> Table_co:
        """The embedding of a model whose head is another matrix."""
        ...

    def linear(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Product_co:
        """One matrix."""
        ...

    def qkv(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Product_co:
        """Projections of queries, keys and values as one operation, in the layout this backend attends with."""
        ...

    def gate_up(self, weights: Sequence[Stored], biases: Sequence[torch.Tensor]) -> Gated_co:
        """A gate and an up projection."""
        ...

    def norm(self, weight_D: torch.Tensor) -> Norm_co: ...
    def head_norm(self, weight_D: torch.Tensor, heads: int) -> Norm_co:
        """The norm of every q or k head, in the layout of ``qkv``."""
        ...


@dataclass
class _Bundle:
    """Tensors that become one operation, and what to do once all have arrived."""

    key: str
    shapes: dict[str, tuple[int, ...]]
    build: Callable[[Held], object]
    held: Held = field(default_factory=dict)


class WeightReader(Generic[Table, Product, Gated, Norm]):
    """Sorts tensors into bundles as they come and builds each bundle when it is complete."""

    def __init__(self, config: DecoderConfig, builder: Builder[Table, Product, Gated, Norm]) -> None:
        self._config, self._builder = config, builder
        self._built: dict[str, Any] = {}
        self._waiting = {name: bundle for bundle in self._bundles() for name in bundle.shapes}

    def read(self, tensors: Iterable[tuple[str, Stored]], model: str) -> Weights[Table, Product, Gated, Norm]:
        """Consume the stream. Raises ModelError for a tensor that is missing, unknown or of another shape."""
        for name, tensor in tensors:
            bundle = self._waiting.pop(name, None)
            if bundle is not None:
                self._take(bundle, name, tensor, model)
            elif not (name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and self._config.tied)):
                raise ModelError(f"{model}: tensor {name!r} does not belong to a {self._config.family} decoder")
        if self._waiting:
            raise ModelError(f"{model}: tensor {min(self._waiting)!r} is missing; the checkpoint is incomplete")
        return self._assemble()

    def _take(self, bundle: _Bundle, name: str, tensor: Stored, model: str) -> None:
        shape, wanted = tuple(tensor.shape), bundle.shapes[name]
        if shape != wanted:
            raise ModelError(
                f"{model}: tensors of {bundle.key!r} do not fit its configuration: {name!r} has shape {shape}, "
                f"not {wanted}"
            )
        if isinstance(tensor, torch.Tensor):
            tensor = tensor.detach().to(self._builder.dtype)
        bundle.held[name] = tensor
        if len(bundle.held) == len(bundle.shapes):
            self._built[bundle.key] = bundle.build(bundle.held)
            bundle.held.clear()

    def _bundles(self) -> Iterator[_Bundle]:
        c, b = self._config, self._builder
        name = "model.embed_tokens.weight"
        shapes: dict[str, tuple[int, ...]] = {name: (c.vocab_size, c.hidden_size)}
        if c.tied:
            yield _Bundle("tied", shapes, lambda held: b.tied(held[name]))
        else:
            yield _Bundle("embedding", shapes, lambda held: b.table(held[name]))
            yield _rows("head", {"lm_head": c.vocab_size}, c.hidden_size, False, b.linear)
        yield self._norm("norm", "model.norm")
        for layer in range(c.num_layers):
            yield from self._layer(f"model.layers.{layer}.")

    def _layer(self, at: str) -> Iterator[_Bundle]:
        c, b = self._config, self._builder
        width, inner, q, kv = c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        attention, mlp = at + "self_attn.", at + "mlp."
        projections = {attention + "q_proj": q, attention + "k_proj": kv, attention + "v_proj": kv}
        yield self._norm(at + "input_norm", at + "input_layernorm")
        yield _rows(at + "qkv", projections, width, c.qkv_bias, b.qkv)
        yield _rows(at + "out", {attention + "o_proj": width}, q, c.out_bias, b.linear)
        yield _rows(at + "gate_up", {mlp + "gate_proj": inner, mlp + "up_proj": inner}, width, c.mlp_bias, b.gate_up)
        yield _rows(at + "down", {mlp + "down_proj": width}, inner, c.mlp_bias, b.linear)
        if c.qk_norm:
            yield self._head_norm(at + "q_norm", attention + "q_norm", c.num_heads)
            yield self._head_norm(at + "k_norm", attention + "k_norm", c.num_kv_heads)
        if c.post_norms:
            yield self._norm(at + "post_attention_norm", at + "post_attention_layernorm")
            yield self._norm(at + "mlp_norm", at + "pre_feedforward_layernorm")
            yield self._norm(at + "post_mlp_norm", at + "post_feedforward_layernorm")
        else:
            yield self._norm(at + "mlp_norm", at + "post_attention_layernorm")

    def _norm(self, key: str, module: str) -> _Bundle:
        name = module + ".weight"
        return _Bundle(key, {name: (self._config.hidden_size,)}, lambda held: self._builder.norm(held[name]))

    def _head_norm(self, key: str, module: str, heads: int) -> _Bundle:
        name = module + ".weight"
        return _Bundle(key, {name: (self._config.head_dim,)}, lambda held: self._builder.head_norm(held[name], heads))

    def _assemble(self) -> Weights[Table, Product, Gated, Norm]:
        built = self._built

        def layer(at: str) -> Layer[Product, Gated, Norm]:
            return Layer(**{name.removeprefix(at): part for name, part in built.items() if name.startswith(at)})

        embedding, head = built["tied"] if self._config.tied else (built["embedding"], built["head"])
        layers = [layer(f"model.layers.{i}.") for i in range(self._config.num_layers)]
        return Weights(embedding, head, built["norm"], layers)


def _rows(
    key: str,
    modules: dict[str, int],
    inputs: int,
    bias: bool,
    build: Callable[[Sequence[Stored], Sequence[torch.Tensor]], object],
) -> _Bundle:
    """Linear modules with the same inputs, by name with their numbers of outputs."""
    weights = {name + ".weight": (outputs, inputs) for name, outputs in modules.items()}
    biases = {name + ".bias": (outputs,) for name, outputs in modules.items()} if bias else {}

    def take(held: Held) -> object:
        # Popped, so that the operation holds the only references while it is built.
        return build([held.pop(name) for name in weights], [held.pop(name) for name in biases])

    return _Bundle(key, {**weights, **biases}, take)
