"""From a stream of named tensors to packed layers, holding no dense tensor longer than needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from outrider.errors import ModelError
from outrider.models.attention import packed_width
from outrider.models.decoder_config import DecoderConfig
from outrider.models.ops_torch import Linear, LinearFactory, norm_weight
from outrider.models.rope import pair_order

Tensors = dict[str, torch.Tensor]


@dataclass
class Layer:
    """Operations of one layer; norms as ``ops_torch.norm_weight`` makes them."""

    input_norm: torch.Tensor
    qkv: Linear
    qk_norm_HD: torch.Tensor | None
    out: Linear
    post_attention_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear
    post_mlp_norm: torch.Tensor | None


@dataclass
class Weights:
    """A whole decoder. A tied head is packed on its own: it reads at memory speed, the table serves lookups."""

    embedding_VD: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: Linear


@dataclass
class _Bundle:
    """Tensors that become one operation, and what to do once all have arrived."""

    names: tuple[str, ...]
    build: Callable[[Tensors], object]


class WeightReader:
    """Sorts tensors into bundles as they come and packs each bundle when it is complete."""

    def __init__(self, config: DecoderConfig, factory: LinearFactory, dtype: torch.dtype) -> None:
        self._config, self._factory, self._dtype = config, factory, dtype
        self._built: dict[str, object] = {}
        self._waiting: dict[str, list[tuple[str, _Bundle]]] = {}
        self._pending: dict[str, Tensors] = {}
        for key, bundle in self._bundles():
            self._pending[key] = {}
            for name in bundle.names:
                self._waiting.setdefault(name, []).append((key, bundle))

    def read(self, tensors: Iterable[tuple[str, torch.Tensor]], model: str) -> Weights:
        """Consume the stream. Raises ModelError for a tensor that is missing, unknown or of another shape."""
        for name, tensor in tensors:
            if name not in self._waiting:
                if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and self._config.tied):
                    continue
                raise ModelError(f"{model}: tensor {name!r} does not belong to a {self._config.family} decoder")
            for key, bundle in self._waiting.pop(name):
                self._take(key, bundle, name, tensor, model)
        if self._waiting:
            raise ModelError(f"{model}: tensor {min(self._waiting)!r} is missing; the checkpoint is incomplete")
        return self._assemble()

    def _take(self, key: str, bundle: _Bundle, name: str, tensor: torch.Tensor, model: str) -> None:
        held = self._pending[key]
        held[name] = tensor.detach().to(self._dtype)
        if len(held) < len(bundle.names):
            return
        try:
            self._built[key] = bundle.build(self._pending.pop(key))
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"{model}: tensors of {key!r} do not fit its configuration: {reason}") from error

    def _bundles(self) -> Iterable[tuple[str, _Bundle]]:
        table = "model.embed_tokens.weight"
        yield (
            "embedding",
            _Bundle((table,), lambda t: t[table].view(self._config.vocab_size, self._config.hidden_size).clone()),
        )
        yield "norm", self._norm("model.norm.weight")
        yield (
            "head",
            self._linear(table.removesuffix(".weight") if self._config.tied else "lm_head", False, self._head_shape),
        )
        for layer in range(self._config.num_layers):
            yield from self._layer_bundles(f"model.layers.{layer}.")

    def _layer_bundles(self, at: str) -> Iterable[tuple[str, _Bundle]]:
        c = self._config
        width, inner, attention = c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim
        yield at + "input_norm", self._norm(at + "input_layernorm.weight")
        yield at + "qkv", self._qkv(at + "self_attn.")
        yield at + "out", self._linear(at + "self_attn.o_proj", c.out_bias, (width, attention))
        for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            yield at + name, self._linear(f"{at}mlp.{name}_proj", c.mlp_bias, shape)
        if c.qk_norm:
            yield at + "qk_norm", self._qk_norm(at + "self_attn.")
        if c.post_norms:
            yield at + "post_attention_norm", self._norm(at + "post_attention_layernorm.weight")
            yield at + "mlp_norm", self._norm(at + "pre_feedforward_layernorm.weight")
            yield at + "post_mlp_norm", self._norm(at + "post_feedforward_layernorm.weight")
        else:
            yield at + "mlp_norm", self._norm(at + "post_attention_layernorm.weight")

    @property
    def _head_shape(self) -> tuple[int, int]:
        return self._config.vocab_size, self._config.hidden_size

    def _norm(self, name: str) -> _Bundle:
        return _Bundle((name,), lambda t: norm_weight(t[name].view(self._config.hidden_size), self._config.norm_offset))

    def _linear(self, name: str, bias: bool, shape: tuple[int, int]) -> _Bundle:
        names = (name + ".weight", name + ".bias") if bias else (name + ".weight",)

        def build(t: Tensors) -> Linear:
            held = t[name + ".bias"].view(shape[0]).clone() if bias else None
            return self._factory.build(t.pop(name + ".weight").view(shape), held)

        return _Bundle(names, build)

    def _qkv(self, at: str) -> _Bundle:
        c = self._config
        heads = {"q": c.num_heads, "k": c.num_kv_heads, "v": c.num_kv_heads}
        kinds = ("weight", "bias") if c.qkv_bias else ("weight",)
        order = pair_order(c.head_dim)

        def fuse(t: Tensors, kind: str) -> torch.Tensor:
            columns = (c.hidden_size,) if kind == "weight" else ()
            fused = torch.zeros(packed_width(c), *columns, dtype=self._dtype)
            row = 0
            for name, count in heads.items():
                part = t.pop(f"{at}{name}_proj.{kind}").view(count, c.head_dim, *columns)
                part = part if name == "v" else part[:, order]
                fused[row : row + count * c.head_dim] = part.reshape(-1, *columns)
                row += count * c.head_dim
            return fused

        names = tuple(f"{at}{name}_proj.{kind}" for kind in kinds for name in heads)
        return _Bundle(names, lambda t: self._factory.build(*(fuse(t, kind) for kind in kinds)))

    def _qk_norm(self, at: str) -> _Bundle:
        c = self._config
        order = pair_order(c.head_dim)

        def build(t: Tensors) -> torch.Tensor:
            q, k = (t[f"{at}{name}_norm.weight"].float()[order] + c.norm_offset for name in "qk")
            return torch.cat((q.expand(c.num_heads, -1), k.expand(c.num_kv_heads, -1)))

        return _Bundle((at + "q_norm.weight", at + "k_norm.weight"), build)

    def _assemble(self) -> Weights:
        built = self._built

        def layer(at: str) -> Layer:
            fields = (name.removeprefix(at) for name in list(built) if name.startswith(at))
            parts = {name: built.pop(at + name) for name in list(fields)}
            parts["qk_norm_HD"] = parts.pop("qk_norm", None)
            for optional in ("post_attention_norm", "post_mlp_norm"):
                parts.setdefault(optional, None)
            return Layer(**parts)  # type: ignore[arg-type]

        layers = [layer(f"model.layers.{i}.") for i in range(self._config.num_layers)]
        return Weights(layers=layers, norm=built["norm"], head=built["head"], embedding_VD=built["embedding"])  # type: ignore[arg-type]
