"""Finds the attention shapes under which a row's bits are its own, by trying them on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from outrider.models.decoder_config import DecoderConfig
from outrider.models.invariance import same_bits
from outrider.models.tiles import TileRule

_MAX_ROWS = 64
_MIN_PRODUCT_ROWS = (4, 8, 16)
# Matrix libraries cut a long reduction into blocks of their own; padding must not move the cuts. 192 suits MKL.
_KEY_STEPS = (64, 128, 192, 256, 384, 512)
_LENGTHS = (3, 70, 129, 190, 250, 330, 450, 700)
_POSITIONS = 1024


def find_tile_rule(config: DecoderConfig) -> TileRule:
    """The freest rule that keeps rows independent here; ``deterministic`` is False when none does."""
    trial = _Trial(config)
    for rule in _candidates(config.group):
        if trial.passes(rule):
            return rule
    return replace(next(_candidates(config.group)), deterministic=False)


def _candidates(group: int) -> Iterator[TileRule]:
    for product_rows in _MIN_PRODUCT_ROWS:
        for step in _KEY_STEPS:
            yield TileRule(-(-product_rows // group), _MAX_ROWS, step)
    yield TileRule(8, 8, 128, fixed=True)


class _Trial:
    """Attention of random rows with a given number of visible keys, in many shapes."""

    def __init__(self, config: DecoderConfig) -> None:
        generator = torch.Generator().manual_seed(0)
        self._group, self._dim = config.group, config.head_dim
        shape = (2 * config.num_kv_heads, _MAX_ROWS * self._group, self._dim)
        self._q = torch.randn(shape, generator=generator)
        held = (2 * config.num_kv_heads, _POSITIONS + max(_KEY_STEPS), self._dim)
        self._k = torch.randn(held, generator=generator) * self._dim**-0.5
        self._v = torch.randn(held, generator=generator)

    def passes(self, rule: TileRule) -> bool:
        return all(self._holds(rule, length) for length in _LENGTHS)

    def _holds(self, rule: TileRule, length: int) -> bool:
        """Whether rows that see the first ``length`` keys come out equal whatever is computed beside them."""
        rows, keys = rule.padded_rows(rule.min_rows), rule.padded_keys(length)
        base = self._attend(0, rows, keys, length)
        small = slice(0, rows * self._group)
        paddings = [] if rule.fixed else [keys + rule.key_step, keys + 2 * rule.key_step, _POSITIONS]
        counts = [] if rule.fixed else [rows + 1, rows + 2, 9, 16, 33, rule.max_rows]
        others = [self._attend(0, rows, rule.padded_keys(wide), length)[:, small] for wide in paddings]
        others += [self._attend(0, max(count, rows), keys, length)[:, small] for count in counts]
        # Half the batch, and the same rows further down a product.
        others.append(self._attend(0, rows, keys, length, halve=True))
        if not rule.fixed:
            others.append(self._attend(0, rule.max_rows, rule.padded_keys(_POSITIONS), length)[:, small])
        shifted = self._attend(3, rows, keys, length)[:, : (rows - 3) * self._group]
        moved = rows <= 3 or same_bits(shifted, base[:, 3 * self._group :])
        return moved and all(same_bits(other, base[: len(other)]) for other in others) and self._moves(rule, length)

    def _moves(self, rule: TileRule, length: int) -> bool:
        """A row must not care for its place among many rows either."""
        rows, keys = rule.padded_rows(rule.max_rows // 2), rule.padded_keys(length)
        last = _MAX_ROWS - rows
        whole = self._attend(0, rows, keys, length)
        shift = min(5, last)
        shifted = self._attend(shift, rows, keys, length)
        return same_bits(shifted[:, : (rows - shift) * self._group], whole[:, shift * self._group :])

    def _attend(self, first: int, rows: int, keys: int, length: int, halve: bool = False) -> torch.Tensor:
        batch = len(self._q) // 2 if halve else len(self._q)
        q = self._q[:batch, first * self._group : (first + rows) * self._group]
        scores = torch.bmm(q, self._k[:batch, :keys].transpose(1, 2))
        scores[:, :, length:] = -1e30
        return torch.bmm(torch.softmax(scores, -1), self._v[:batch, :keys])
