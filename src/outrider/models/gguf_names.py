"""From GGUF tensors to the names and values a Hugging Face checkpoint of the same model has.

Two things differ besides names: the llama converter interleaves the rows of q and k for its rotary kernel, and
the gemma converter stores norm weights with 1 added. Both are undone here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from outrider.errors import ModelError
from outrider.models.gguf_metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from outrider.models.gguf_file import GGUFFile, PackedRows

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Gemma norms the output of each sublayer as well, so its "ffn_norm" sits elsewhere than llama's.
_GEMMA_BLOCK = _BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP_NAME = re.compile(r"(\w+)\.(weight|bias)")
# Rotary frequency factors belong to the configuration (``gguf_config``), not to the weights.
_CONFIGURATION = frozenset({"rope_freqs.weight"})


def read_gguf_tensors(file: GGUFFile, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight under its Hugging Face name, dense, in ``dtype``.

    A model with tied embeddings has no ``lm_head.weight``. Raises ``ModelError`` for a tensor without a known place:
    leaving one out would be a different model.
    """
    for name, target in _places(file):
        yield target, _restore(file, name, dtype)


def read_packed_gguf_tensors(file: GGUFFile, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | PackedRows]]:
    """The same, but matrices in blocks of a ``PackedKind`` stay as they are stored."""
    for name, target in _places(file):
        packed = file.read_packed(name)
        if packed is None:
            yield target, _restore(file, name, dtype)
        else:
            heads = _paired_heads(file, name)
            # Blocks lie within rows, so rows can be put back in order without unpacking them.
            yield target, replace(packed, blocks=unpermute(packed.blocks, heads)) if heads else packed


def _places(file: GGUFFile) -> Iterator[tuple[str, str]]:
    """Names in the file and in a Hugging Face checkpoint."""
    architecture = str(file.metadata.get("general.architecture"))
    for name in file.tensors:
        if name in _CONFIGURATION:
            continue
        target = hugging_face_name(architecture, name)
        if target is None:
            raise ModelError(
                f"{file.path}: tensor {name!r} has no place in a {architecture!r} model; the file cannot be used"
            )
        yield name, target


def hugging_face_name(architecture: str, name: str) -> str | None:
    """``blk.3.attn_q.weight`` to ``model.layers.3.self_attn.q_proj.weight``; None when unknown."""
    if match := _BLOCK_NAME.fullmatch(name):
        layer, part, kind = match.groups()
        place = (_GEMMA_BLOCK if architecture == "gemma3" else _BLOCK).get(part)
        return place and f"model.layers.{layer}.{place}.{kind}"
    if match := _TOP_NAME.fullmatch(name):
        place = _TOP.get(match[1])
        return place and f"{place}.{match[2]}"
    return None


def _restore(file: GGUFFile, name: str, dtype: torch.dtype) -> torch.Tensor:
    if file.metadata.get("general.architecture") == "gemma3" and name.endswith("_norm.weight"):
        # in float32, as stored: bfloat16 near 1 has steps of 1/128, and the subtraction would keep that error
        return (file.read(name, _float32()) - 1).to(dtype)
    heads = _paired_heads(file, name)
    tensor = file.read(name, dtype)
    return unpermute(tensor, heads) if heads else tensor


def _paired_heads(file: GGUFFile, name: str) -> int | None:
    """Heads of a tensor whose rows the converter interleaved; None for every other tensor."""
    if file.metadata.get("general.architecture") != "llama" or not (".attn_q." in name or ".attn_k." in name):
        return None
    metadata = Metadata(file, "llama")
    heads = metadata.whole("attention.head_count")
    if ".attn_k." in name:
        heads = metadata.whole("attention.head_count_kv", heads)
    rows = file.tensors[name].shape[0]
    if rows % (2 * heads):
        raise ModelError(f"{file.path}: the {rows} rows of {name!r} are no pairs for {heads} heads")
    return heads


def unpermute(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from pairs (0, D/2, 1, D/2 + 1, ...) back to halves (0, 1, ..., D/2, D/2 + 1, ...)."""
    pairs_HD2 = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs_HD2.transpose(1, 2).reshape(tensor.shape)


def _float32() -> torch.dtype:
    import torch

    return torch.float32
