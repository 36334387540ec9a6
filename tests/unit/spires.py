"""Small SPIRe drafts, and what they should compute, written out position by position."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.weights import SpireWeights
from outrider.train.methods.spire.model import Segments, SpireModule

TINY = SpireConfig(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    norm_eps=1e-5,
    rope_theta=1e4,
    blocks=(1, 2, 3),
    reads=(1, 2, 3),
    draft_vocab_size=11,
    window=6,
    sink=2,
)
VARIANTS = {
    "full": TINY,
    "strictly earlier": replace(TINY, sees_itself=False),
    "no feedback": replace(TINY, feedback=False),
    "dense": replace(TINY, window=None),
    "no sink, one layer": replace(TINY, sink=0, blocks=(0,), reads=(4,)),
}
POSITIONS = 64


def module_of(config: SpireConfig, seed: int = 0) -> SpireModule:
    """Random weights, float64; norms and shares differ from their start too."""
    torch.manual_seed(seed)
    module = SpireModule(config, POSITIONS).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0))
    return module


def weights_of(module: SpireModule) -> SpireWeights:
    """The same weights as the drafter reads them, float32."""
    tensors = {name.removesuffix(".weight"): tensor.detach().float() for name, tensor in module.named_parameters()}
    return SpireWeights(module.config, tensors, torch.arange(module.config.draft_vocab_size) * 2)


def segments_of(config: SpireConfig, start: int, length: int, seed: int = 0) -> tuple[torch.Tensor, Segments]:
    """One text of ``start + length`` positions with random states, its last ``length`` to learn; and their inputs."""
    generator = torch.Generator().manual_seed(seed)
    context = start if config.window is None else min(start, config.window)
    sink = [] if config.window is None else list(range(min(config.sink, start - context)))
    keys = [*sink, *range(start - context, start + length)]
    # A place where there is no position, as a batch of texts of several lengths has.
    keys_BT = torch.tensor([[-1, *keys]])
    states_LTD = torch.randn(config.num_layers, start + length, config.hidden_size, generator=generator).double()
    tokens_BS = torch.randint(0, config.vocab_size, (1, length), generator=generator)
    positions_BS = torch.arange(start, start + length)[None]
    segments = Segments(tokens_BS, positions_BS, states_LTD[:, None, keys_BT[0].clamp(min=0)], keys_BT)
    return torch.randn(1, length, config.hidden_size, generator=generator).double(), segments


def sequential(module: SpireModule, embedded_SD: torch.Tensor, segments: Segments, k: int) -> torch.Tensor:
    """Normed states ``(S, D)``, one position after another, one head at a time."""
    c, keys_T = module.config, segments.key_positions_BT[0].tolist()
    out = []
    for first in range(0, len(embedded_SD), k):
        own: list[dict[int, torch.Tensor]] = [{} for _ in module.blocks]
        start = int(segments.positions_BS[0, first])
        for j in range(k):
            position = start + j
            stream = [embedded_SD[first + j]]
            for i in range(c.num_layers):
                memories = {
                    key: segments.states_LBT[i, 0, place] for place, key in enumerate(keys_T) if 0 <= key < start
                }
                if c.window is not None:
                    memories = {p: m for p, m in memories.items() if p < c.sink or position - p <= c.window}
                memories |= own[i] | ({position: stream[-1]} if c.sees_itself else {})
                stream.append(_block(module, i, stream[-1], position, memories))
            for i in range(c.num_layers):
                share = torch.softmax(module.mix[i], 0)
                mixture = torch.stack([share[depth] * x for depth, x in enumerate(stream)]).sum(0)
                own[i][position] = mixture if c.feedback else stream[i]
            out.append(_norm(stream[-1], module.norm, c.norm_eps))
    return torch.stack(out)


def _block(
    module: SpireModule, index: int, x_D: torch.Tensor, position: int, memories: dict[int, torch.Tensor]
) -> torch.Tensor:
    c, block = module.config, module.blocks[index]
    group = c.num_heads // c.num_kv_heads
    query = (block.q.weight @ _norm(x_D, block.input_norm, c.norm_eps)).view(c.num_heads, c.head_dim)
    if not memories:
        # Of nothing, nothing is attended to.
        return _inner(module, index, x_D)
    held = {p: block.kv.weight @ _norm(m, block.input_norm, c.norm_eps) for p, m in memories.items()}
    heads = []
    for h in range(c.num_heads):
        at = h // group * c.head_dim
        keys = [_turn(kv[at : at + c.head_dim], p, c.rope_theta) for p, kv in held.items()]
        values = [kv[c.kv_width + at :][: c.head_dim] for kv in held.values()]
        turned = _turn(query[h], position, c.rope_theta)
        weights = torch.softmax(torch.stack([turned @ key for key in keys]) / math.sqrt(c.head_dim), 0)
        heads.append(torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(0))
    return _inner(module, index, x_D + block.out.weight @ torch.cat(heads))


def _inner(module: SpireModule, index: int, x_D: torch.Tensor) -> torch.Tensor:
    c, block = module.config, module.blocks[index]
    inner = block.gate_up.weight @ _norm(x_D, block.mlp_norm, c.norm_eps)
    gate, up = inner[: c.intermediate_size], inner[c.intermediate_size :]
    return x_D + block.down.weight @ (gate * torch.sigmoid(gate) * up)


def _norm(x_D: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    return x_D / torch.sqrt((x_D**2).mean() + eps) * weight_D


def _turn(head_E: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    half = len(head_E) // 2
    low, high = [], []
    for i in range(half):
        angle = position / theta ** (2 * i / len(head_E))
        cos, sin = math.cos(angle), math.sin(angle)
        low.append(head_E[i] * cos - head_E[i + half] * sin)
        high.append(head_E[i + half] * cos + head_E[i] * sin)
    return torch.stack([*low, *high])
