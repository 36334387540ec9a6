"""Grouped-query attention over the slots: rotate, store keys and values, and attend, for all rows of one step.

Products are fp32, also for a bf16 model: at a few rows torch's fp32 batched product is two to three times faster than
its bf16 one, even with keys and values kept in bf16 and widened for each use (half the bytes come from memory). The
query heads of a key/value head are extra rows of its product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.models.decoder_config import DecoderConfig
from outrider.models.ops_torch import rms_norm
from outrider.models.rope import LANES, rotate_rows
from outrider.models.tiles import Span, Tile, TileRule, plan_tiles

_MASKED = -1e30
"""Finite, so that a padding row which sees nothing stays finite; exp of it is exactly 0 beside any real score."""


def packed_width(config: DecoderConfig) -> int:
    """Columns of the fused q, k, v product: padded so that a row is whole vectors (see ``rope``)."""
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return -(-width // LANES) * LANES


def turns_of_rows(config: DecoderConfig, turns_NP: torch.Tensor) -> torch.Tensor:
    """``(N, packed_width / 2)``: the turn of every pair of a packed row; 1 for v, the attention scale inside q's."""
    rows, pairs = turns_NP.shape
    q, k = config.num_heads * pairs, config.num_kv_heads * pairs
    table = torch.ones(rows, packed_width(config) // 2, dtype=torch.complex64)
    table[:, :q].view(rows, config.num_heads, pairs).copy_((turns_NP * config.attention_scale)[:, None])
    table[:, q : q + k].view(rows, config.num_kv_heads, pairs).copy_(turns_NP[:, None])
    return table


class StepAttention:
    """The attention of one step: buffers and views made once, used by every layer.

    ``kv`` is ``(layers, 2, slots, kv_heads, positions, head_dim)``; ``rows`` counts packed rows, padding included.
    """

    def __init__(
        self,
        config: DecoderConfig,
        rule: TileRule,
        kv: torch.Tensor,
        spans: Sequence[Span],
        rows: int,
        turns: dict[bool, torch.Tensor],
        dtype: torch.dtype,
    ) -> None:
        self._config, self._turns = config, turns
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._qkv = torch.empty(rows, packed_width(config))
        self._pairs = torch.view_as_complex(self._qkv.view(rows, -1, 2))
        self._heads = self._qkv[:, : (heads + kv_heads) * dim].view(rows, heads + kv_heads, dim)
        fresh = self._qkv[:, heads * dim : (heads + 2 * kv_heads) * dim].view(rows, 2, kv_heads, dim)
        self._writer = _SliceWriter(kv, spans[0], fresh) if len(spans) == 1 else _IndexWriter(kv, spans, fresh)
        # Zeros: rows no tile fills are padding, and must be finite.
        self._out = torch.zeros(rows, heads * dim, dtype=dtype)
        kinds = {local: config.window if local else None for local in set(config.local)}
        tiles = plan_tiles(spans, rule)
        # Tiles run one after another, so the largest one's room serves all.
        scores = torch.empty(max(tile.batch * tile.rows * tile.keys for tile in tiles) * heads)
        wide = torch.empty(
            max(tile.batch * tile.keys for tile in tiles) * 2 * kv_heads * dim if kv.dtype != scores.dtype else 0
        )
        scratch = scores, wide
        self._tiles = [_TileProduct(config, rule, kv, tile, kinds, self._qkv, self._out, scratch) for tile in tiles]

    def attend(self, layer: int, qkv_NC: torch.Tensor, norm_HD: torch.Tensor | None) -> torch.Tensor:
        """Attention output ``(N, heads * head_dim)`` of a layer, a buffer the next layer overwrites.

        ``norm_HD``: weights of the q and k norms by head, fp32.
        """
        local = self._config.local[layer]
        self._qkv.copy_(qkv_NC)
        if norm_HD is not None:
            self._normalise(norm_HD)
        rotate_rows(self._pairs, self._turns[local])
        self._writer.write(layer)
        for tile in self._tiles:
            tile.run(layer, local)
        return self._out

    def _normalise(self, norm_HD: torch.Tensor) -> None:
        torch.mul(rms_norm(self._heads, None, self._config.norm_eps), norm_HD, out=self._heads)


class _SliceWriter:
    """Stores one sequence's keys and values: a plain strided copy."""

    def __init__(self, kv: torch.Tensor, span: Span, fresh_N2HD: torch.Tensor) -> None:
        self._source = fresh_N2HD[: span.count].permute(1, 2, 0, 3)
        self._targets = kv[:, :, span.slot, :, span.start : span.end].unbind(0)

    def write(self, layer: int) -> None:
        self._targets[layer].copy_(self._source)


class _IndexWriter:
    """Stores the rows of several sequences with one scatter."""

    def __init__(self, kv: torch.Tensor, spans: Sequence[Span], fresh_N2HD: torch.Tensor) -> None:
        _, two, slots, heads, positions, dim = kv.shape
        used = max(span.row + span.count for span in spans)
        where = torch.zeros(used, dtype=torch.int64)
        for span in spans:
            first = span.slot * heads * positions + span.start
            where[span.row : span.row + span.count] = torch.arange(first, first + span.count)
        plane = torch.arange(two)[:, None] * slots * heads + torch.arange(heads)
        self._index = (where[:, None] + plane.reshape(1, -1) * positions).reshape(-1)
        self._source = fresh_N2HD[:used]
        self._flat = kv.view(kv.shape[0], -1, dim).unbind(0)

    def write(self, layer: int) -> None:
        flat = self._flat[layer]
        flat.index_copy_(0, self._index, self._source.reshape(len(self._index), -1).to(flat.dtype))


@dataclass(frozen=True)
class _Keys:
    """What a tile reads in layers of one kind (global or local): keys, values, mask, and room for scores."""

    mask_view: torch.Tensor
    mask: torch.Tensor
    scores: torch.Tensor
    keys: Sequence[torch.Tensor]
    """By layer, transposed: ``(B, head_dim, S)``, B over slots and heads. Values: ``(B, S, head_dim)``."""
    values: Sequence[torch.Tensor]
    held: Sequence[torch.Tensor]
    wide: torch.Tensor | None
    """fp32 room that every layer's ``held`` is copied to first; None where keys and values are fp32 already."""


class _TileProduct:
    """softmax(q k' + mask) v of one tile: a batch of ``slots x kv_heads`` products of ``rows x group`` rows."""

    def __init__(
        self,
        config: DecoderConfig,
        rule: TileRule,
        kv: torch.Tensor,
        tile: Tile,
        kinds: dict[bool, int | None],
        qkv: torch.Tensor,
        out: torch.Tensor,
        scratch: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        batch, rows, kv_heads, group, dim = tile.batch, tile.rows, config.num_kv_heads, config.group, config.head_dim
        grouped = (batch, rows, kv_heads, group, dim)
        self._gather, self._scatter = _row_maps(tile, len(qkv))
        self._packed_q, self._packed_out = qkv[:, : config.num_heads * dim], out
        q = torch.empty(batch, kv_heads, rows, group, dim)
        self._q_by_row, self._q = q.permute(0, 2, 1, 3, 4), q.view(batch * kv_heads, rows * group, dim)
        self._o = torch.empty_like(self._q)
        self._o_by_row = self._o.view(batch, kv_heads, rows, group, dim).permute(0, 2, 1, 3, 4)
        if self._gather is None:
            first, count = tile.spans[0].row, sum(span.count for span in tile.spans)
            self._source = self._packed_q[first : first + batch * rows].view(grouped)
            # A single sequence may have fewer rows than its tile; the rest are its neighbours', and dropped.
            self._target = out[first : first + count].view(batch, -1, kv_heads, group, dim)
            self._o_by_row = self._o_by_row[:, : self._target.shape[1]]
        self._kinds = {
            local: _keys(tile, rule, kv, window, (batch, kv_heads, rows, group), scratch)
            for local, window in kinds.items()
        }

    def run(self, layer: int, local: bool) -> None:
        kind = self._kinds[local]
        if self._gather is None:
            self._q_by_row.copy_(self._source)
        else:
            self._q_by_row.copy_(self._packed_q.index_select(0, self._gather).view(self._q_by_row.shape))
        if kind.wide is not None:
            kind.wide.copy_(kind.held[layer])
        torch.bmm(self._q, kind.keys[layer], out=kind.scores)
        kind.mask_view.add_(kind.mask)
        torch._softmax(kind.scores, -1, False, out=kind.scores)
        torch.bmm(kind.scores, kind.values[layer], out=self._o)
        if self._scatter is None:
            self._target.copy_(self._o_by_row)
        else:
            places, picked = self._scatter
            rows = self._o_by_row.reshape(-1, self._packed_out.shape[1]).index_select(0, picked)
            self._packed_out.index_copy_(0, places, rows.to(self._packed_out.dtype))


def _row_maps(tile: Tile, packed_rows: int) -> tuple[torch.Tensor | None, tuple[torch.Tensor, torch.Tensor] | None]:
    """How packed rows reach the tile and come back; (None, None) where a view of them already has its shape."""
    spans = tile.spans
    if len(spans) == 1 and spans[0].row + tile.rows <= packed_rows:
        return None, None
    regular = all(
        span.count == tile.rows and span.row == spans[0].row + i * tile.rows and span.slot == spans[0].slot + i
        for i, span in enumerate(spans)
    )
    if regular:
        return None, None
    gather = torch.zeros(tile.batch, tile.rows, dtype=torch.int64)
    places: list[int] = []
    picked: list[int] = []
    for span in spans:
        line = span.slot - tile.first_slot
        rows = range(span.row, span.row + span.count)
        gather[line, : span.count] = torch.tensor(rows)
        places += rows
        picked += range(line * tile.rows, line * tile.rows + span.count)
    return gather.view(-1), (torch.tensor(places), torch.tensor(picked))


def _keys(
    tile: Tile,
    rule: TileRule,
    kv: torch.Tensor,
    window: int | None,
    shape: tuple[int, int, int, int],
    scratch: tuple[torch.Tensor, torch.Tensor],
) -> _Keys:
    batch, kv_heads, rows, group = shape
    first = rule.first_key(tile.start, window)
    held = kv[:, :, tile.first_slot : tile.end_slot, :, first : tile.keys]
    layers = len(kv)
    wide = None if kv.dtype == torch.float32 else _room(scratch[1], held.shape[1:])
    flat = held.flatten(2, 3) if wide is None else wide.flatten(1, 2).expand(layers, -1, -1, -1, -1)
    scores = _room(scratch[0], (batch * kv_heads, rows * group, tile.keys - first))
    return _Keys(
        mask_view=scores.view(batch, kv_heads, rows, group, -1),
        mask=_mask(tile, first, window).view(batch, 1, rows, 1, -1),
        scores=scores,
        keys=flat[:, 0].transpose(-1, -2).unbind(0),
        values=flat[:, 1].unbind(0),
        held=held.unbind(0),
        wide=wide,
    )


def _room(scratch: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return scratch[: math.prod(shape)].view(tuple(shape))


def _mask(tile: Tile, first: int, window: int | None) -> torch.Tensor:
    """``(batch, rows, keys)``: 0 where a row may look, _MASKED elsewhere."""
    positions = torch.full((tile.batch, 1), first)
    for span in tile.spans:
        positions[span.slot - tile.first_slot] = span.start
    position = positions + torch.arange(tile.rows)
    key = torch.arange(first, tile.keys)
    hidden = key > position[..., None]
    if window is not None:
        hidden |= key <= position[..., None] - window
    return torch.zeros(hidden.shape).masked_fill_(hidden, _MASKED)
