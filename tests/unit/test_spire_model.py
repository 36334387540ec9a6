"""SPIRe's k-pass forward against one position after another, and training against decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from outrider.draft.spire.step_torch import TorchSpireStep
from outrider.train.methods.spire.model import Segments, SpireModule
from outrider.train.mixed_loss import mixed_loss
from tests.unit.spires import POSITIONS, TINY, VARIANTS, module_of, segments_of, sequential, weights_of

STARTS = [0, 2, 30]


def step_of(module: SpireModule, embed: Callable[[Any], torch.Tensor], **sizes: int) -> TorchSpireStep:
    return TorchSpireStep(weights_of(module), embed, **sizes)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_k_passes_are_one_position_after_another(variant: str, start: int) -> None:
    """Values, loss and the gradient of every weight."""
    module = module_of(VARIANTS[variant])
    embedded_BSD, segments = segments_of(module.config, start, 12)
    p_RV = torch.softmax(torch.randn(12, module.config.draft_vocab_size, dtype=torch.float64), -1)
    gradients = []
    outs = []
    for states_SD in (
        module(embedded_BSD, segments, 4).reshape(12, -1),
        sequential(module, embedded_BSD[0], segments, 4),
    ):
        loss = mixed_loss(p_RV, module.head(states_SD), 0.5, hard=False).loss
        module.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        outs.append((states_SD.detach(), loss.detach()))
        gradients.append({name: p.grad for name, p in module.named_parameters() if p.grad is not None})
    for ours, theirs in zip(*outs, strict=True):
        # Softmax and rotations are in float32.
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert gradients[0].keys() == gradients[1].keys()
    assert ("mix" in gradients[0]) == module.config.feedback
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_decoding_gives_the_logits_of_training(variant: str, k: int) -> None:
    module = module_of(VARIANTS[variant])
    config, start, length = module.config, 20, 12
    embedded_BSD, segments = segments_of(config, start, length)
    logits_SV = module.head(module(embedded_BSD, segments, k).reshape(length, -1)).detach()
    states = _states(segments)
    rows = {int(token): embedded_BSD[0, i] for i, token in enumerate(range(length))}
    step = step_of(
        module,
        lambda tokens: torch.stack([rows[token] for token in tokens]),
        slots=2,
        ring=POSITIONS if config.window is None else config.window + k,
        max_model_len=POSITIONS,
    )
    step.remember(1, *_upto(states, 0, start))
    for first in range(0, length, k):
        for j in range(k):
            ours = step.step([first + j], [1], [start + first + j])[0]
            torch.testing.assert_close(ours.double(), logits_SV[first + j], rtol=1e-4, atol=1e-4)
        # The target's states take the place of the draft's own, as after a round that accepted everything.
        step.remember(1, *_upto(states, start + first, start + first + k))


def _states(segments: Segments) -> dict[int, torch.Tensor]:
    """The target's states by position."""
    return {int(p): segments.states_LBT[:, 0, place] for place, p in enumerate(segments.key_positions_BT[0])}


def _upto(states: dict[int, torch.Tensor], low: int, high: int) -> tuple[list[int], torch.Tensor]:
    positions = sorted(p for p in states if low <= p < high)
    return positions, torch.stack([states[p] for p in positions], 1)


def test_what_a_rejection_needs_is_still_in_the_ring() -> None:
    """A round of k own positions, all refused, must leave the next round as if it had never been."""
    module, k = module_of(TINY), 4
    config, start = TINY, 20
    assert config.window is not None
    embedded_BSD, segments = segments_of(config, start, 8)
    states = _states(segments)
    results = []
    for guesses in (0, k):
        step = step_of(
            module,
            lambda tokens: embedded_BSD[0, tokens],
            slots=1,
            ring=config.window + k,
            max_model_len=POSITIONS,
        )
        step.remember(0, *_upto(states, 0, start))
        for j in range(guesses):
            step.step([j], [0], [start + j])
        step.remember(0, *_upto(states, start, start + 1))
        results.append(torch.stack([step.step([4 + j], [0], [start + 1 + j])[0] for j in range(3)]))
    assert torch.equal(*results)


def test_a_ring_without_room_for_drafts_would_not_do() -> None:
    """The control of the test above: ``window`` entries are too few."""
    module = module_of(TINY)
    embedded_BSD, segments = segments_of(TINY, 20, 8)
    states = _states(segments)
    results = []
    for guesses in (0, 4):
        step = step_of(module, lambda t: embedded_BSD[0, t], slots=1, ring=6, max_model_len=POSITIONS)
        step.remember(0, *_upto(states, 0, 20))
        for j in range(guesses):
            step.step([j], [0], [20 + j])
        step.remember(0, *_upto(states, 20, 21))
        results.append(step.step([4], [0], [21]))
    assert not torch.equal(*results)


def test_slots_know_nothing_of_each_other_nor_of_their_last_owner() -> None:
    module = module_of(TINY)
    embedded_BSD, segments = segments_of(TINY, 20, 8)
    states = _states(segments)
    step = step_of(module, lambda t: embedded_BSD[0, t], slots=2, ring=10, max_model_len=POSITIONS)
    step.remember(0, *_upto(states, 0, 20))
    alone = step.step([1], [0], [20])[0]
    empty = step.step([1], [1], [20])[0]
    both = step.step([1, 1], [1, 0], [20, 20])
    assert torch.equal(both[1], alone)
    assert not torch.equal(alone, empty)
    step.close(0)
    assert torch.equal(step.step([1], [0], [20])[0], empty)


def test_a_variant_is_a_variant() -> None:
    """Each switch changes what is computed; without this the tests above could pass on one model."""
    outs = []
    for config in (TINY, replace(TINY, sees_itself=False), replace(TINY, feedback=False), replace(TINY, window=3)):
        embedded_BSD, segments = segments_of(TINY, 20, 8)
        outs.append(module_of(config)(embedded_BSD, segments, 4))
    for i, ours in enumerate(outs):
        assert not any(torch.equal(ours, theirs) for theirs in outs[:i])
