"""A SPIRe draft as a torch module, and its k-pass forward over many blocks at once.

Shapes: B segments of text, S positions each, C positions of context before them (sink, then window), K of a block,
N = S / K blocks, H query heads, G key heads, E head width, D hidden, L draft layers, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.rotation import rotations, turn

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values ``(..., G, E)`` of some positions."""

_NEVER = -1e9


@dataclass(frozen=True)
class Segments:
    """Positions to learn, with what the draft may know before each."""

    tokens_BS: torch.Tensor
    """Input tokens: position t's own token, from which the next is guessed."""
    positions_BS: torch.Tensor
    states_LBT: torch.Tensor
    """Target states ``(L, B, C + S, D)`` that the layers remember: context, then the segment itself."""
    key_positions_BT: torch.Tensor
    """Position of each of the C + S states; negative: none."""


class Block(nn.Module):
    """A Llama block whose keys and values come from elsewhere."""

    def __init__(self, c: SpireConfig) -> None:
        super().__init__()
        self.input_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.mlp_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.q = nn.Linear(c.hidden_size, c.query_width, bias=False)
        self.kv = nn.Linear(c.hidden_size, 2 * c.kv_width, bias=False)
        self.out = nn.Linear(c.query_width, c.hidden_size, bias=False)
        self.gate_up = nn.Linear(c.hidden_size, 2 * c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)


class SpireModule(nn.Module):
    """Weights of a draft; the embedding and the target's head are the target's own and are not trained."""

    cos_PE: torch.Tensor
    sin_PE: torch.Tensor

    def __init__(self, config: SpireConfig, max_positions: int) -> None:
        super().__init__()
        self.config = config
        self.blocks = [Block(config) for _ in config.blocks]
        self.layers = nn.ModuleList(self.blocks)
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.mix = nn.Parameter(torch.zeros(config.num_layers, config.num_layers + 1))
        for name, table_PE in zip(("cos_PE", "sin_PE"), rotations(config, max_positions), strict=True):
            self.register_buffer(name, table_PE, persistent=False)

    def forward(self, embedded_BSD: torch.Tensor, segments: Segments, k: int) -> torch.Tensor:
        """Normed states ``(B, N, K, D)`` of every position of every block: pass j runs the j-th position of all."""
        batch, length = segments.tokens_BS.shape
        blocks = length // k
        x_BNKD = embedded_BSD.view(batch, blocks, k, -1)
        positions_BNK = segments.positions_BS.view(batch, blocks, k)
        committed = [
            self.remember(i, states, segments.key_positions_BT) for i, states in enumerate(segments.states_LBT)
        ]
        own: list[list[KeysValues]] = [[] for _ in self.layers]
        outputs = []
        for j in range(k):
            position_BN = positions_BNK[:, :, j]
            mask_BNT = self._visible(position_BN, positions_BNK[:, :, 0], segments.key_positions_BT)
            x_BND = x_BNKD[:, :, j]
            stream = [x_BND]
            for i in range(len(self.layers)):
                x_BND = self._layer(i, x_BND, position_BN, committed[i], own[i], mask_BNT)
                stream.append(x_BND)
            for i in range(len(self.layers)):
                own[i].append(self.remember(i, self._memory(i, stream), position_BN))
            outputs.append(x_BND)
        return _norm(torch.stack(outputs, 2), self.norm, self.config.norm_eps)

    def remember(self, layer: int, memory_XD: torch.Tensor, positions_X: torch.Tensor) -> KeysValues:
        """Keys (turned to their positions) and values ``(..., G, E)`` of memory vectors."""
        c, block = self.config, self.blocks[layer]
        kv = block.kv(_norm(memory_XD, block.input_norm, c.norm_eps))
        key, value = kv.view(*kv.shape[:-1], 2 * c.num_kv_heads, c.head_dim).split(c.num_kv_heads, -2)
        return self._turn(key, positions_X), value

    def _memory(self, layer: int, stream: list[torch.Tensor]) -> torch.Tensor:
        if not self.config.feedback:
            return stream[layer]
        share = torch.softmax(self.mix[layer], 0)
        return sum((share[i] * x for i, x in enumerate(stream)), torch.zeros_like(stream[0]))

    def _visible(self, position_BN: torch.Tensor, start_BN: torch.Tensor, keys_BT: torch.Tensor) -> torch.Tensor:
        """What is added to scores of committed positions: nothing for those seen, before the block and in reach."""
        c = self.config
        keys = keys_BT[:, None]
        seen = (keys >= 0) & (keys < start_BN[..., None])
        if c.window is not None:
            seen &= (keys < c.sink) | (position_BN[..., None] - keys <= c.window)
        return torch.where(seen, 0.0, _NEVER)

    def _layer(
        self,
        index: int,
        x_BND: torch.Tensor,
        position_BN: torch.Tensor,
        committed: KeysValues,
        own: list[KeysValues],
        mask_BNT: torch.Tensor,
    ) -> torch.Tensor:
        c, block = self.config, self.blocks[index]
        query = block.q(_norm(x_BND, block.input_norm, c.norm_eps)).view(*x_BND.shape[:2], c.num_heads, c.head_dim)
        query_BNHE = self._turn(query, position_BN) * c.head_dim**-0.5
        if c.sees_itself:
            own = [*own, self.remember(index, x_BND, position_BN)]
        x_BND = x_BND + block.out(_attend(query_BNHE, committed, own, mask_BNT))
        gate, up = block.gate_up(_norm(x_BND, block.mlp_norm, c.norm_eps)).chunk(2, -1)
        return x_BND + block.down(F.silu(gate) * up)  # type: ignore[no-any-return]

    def _turn(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        where = positions.clamp(min=0)
        return turn(heads, self.cos_PE[where], self.sin_PE[where])


def _attend(
    query_BNHE: torch.Tensor, committed: KeysValues, own: list[KeysValues], mask_BNT: torch.Tensor
) -> torch.Tensor:
    """Softmax attention ``(B, N, H * E)`` over committed positions, where the mask allows, and a block's own so far."""
    key_BTGE, value_BTGE = committed
    batch, blocks, heads, width = query_BNHE.shape
    groups, keys = key_BTGE.shape[2], key_BTGE.shape[1]
    query_BNGRE = query_BNHE.view(batch, blocks, groups, heads // groups, width)
    # One product a segment and key head: queries of all blocks are its rows.
    rows_BGQE = query_BNGRE.permute(0, 2, 1, 3, 4).reshape(batch, groups, -1, width)
    scores = (rows_BGQE @ key_BTGE.permute(0, 2, 3, 1)).view(batch, groups, blocks, -1, keys)
    late = [torch.einsum("bngre,bnge->bgnr", query_BNGRE, key_BNGE)[..., None] for key_BNGE, _ in own]
    weights = torch.softmax(torch.cat([scores + mask_BNT[:, None, :, None], *late], -1).float(), -1)
    weights = weights.to(value_BTGE.dtype)
    # Where nothing is visible the softmax spreads over what is masked, later positions among it.
    among_seen = weights[..., :keys] * (mask_BNT[:, None, :, None] == 0)
    seen = among_seen.reshape(batch, groups, -1, keys) @ value_BTGE.transpose(1, 2)
    out = seen.view(batch, groups, blocks, -1, width)
    for j, (_, value_BNGE) in enumerate(own):
        out = out + weights[..., keys + j, None] * value_BNGE.transpose(1, 2)[:, :, :, None]
    return out.permute(0, 2, 1, 3, 4).reshape(batch, blocks, heads * width)


def _norm(x: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight_D.shape, weight_D.to(x.dtype), eps)
