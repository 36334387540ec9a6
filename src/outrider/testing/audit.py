"""The engine's invariants, checked between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.testing.drafters import ScriptedDrafter

if TYPE_CHECKING:
    from collections.abc import Collection

    from outrider.draft.base import Drafter
    from outrider.engine.engine import Engine
    from outrider.engine.sequence import Sequence
    from outrider.models.base import TargetRunner


def audit(engine: Engine, *, sync: bool = False) -> None:
    """Assert what must hold after every step that returned: lengths, slots, and nothing left of what ended.

    Reads only, unless ``sync`` asks to bring a draft model up to date first and hold it to the exact length.
    """
    running = engine.running
    ids = frozenset(seq.id for seq in running)
    for seq in running:
        assert not seq.finished, f"sequence {seq.id} ended ({seq.finish_reason}) and still runs"
        _audit_length(engine.runner, seq)
    slots = _open_slots(engine.runner)
    assert slots is None or slots == len(running), f"{slots} slots open for {len(running)} running sequences"
    left = _drafter_ids(engine.drafter) - ids
    assert not left, f"the drafter still knows sequences {sorted(left)}"
    if isinstance(engine.drafter, ModelDrafter):
        _audit_draft_model(engine.drafter, [seq for seq in running if seq.generated], sync)


def _audit_length(runner: TargetRunner, seq: Sequence) -> None:
    length, tokens = runner.length(seq.id), len(seq.tokens)
    if seq.generated:
        assert length == tokens - 1, f"sequence {seq.id}: KV of {length} tokens, {tokens} committed"
    else:
        assert length < tokens, f"sequence {seq.id}: KV of {length} tokens for a prompt of {tokens}"
    assert tokens < runner.max_model_len, f"sequence {seq.id} runs on at the length limit of {runner.max_model_len}"


def _audit_draft_model(drafter: ModelDrafter, decoding: Collection[Sequence], sync: bool) -> None:
    # A draft model may be any number of rounds behind, but must know how far its KV goes.
    slots = drafter._slots
    for sequence_id, slot in slots.items():
        length, known = drafter._runner.length(sequence_id), slot.committed + len(slot.guessed)
        assert length == known, f"sequence {sequence_id}: draft KV of {length} tokens, {known} known of"
    if sync:
        drafter.sync(list(decoding))
        for seq in decoding:
            if seq.id in slots:
                length = drafter._runner.length(seq.id)
                assert length == len(seq.tokens) - 1, f"sequence {seq.id}: draft KV of {length} after sync"
    open_slots = _open_slots(drafter._runner)
    assert open_slots is None or open_slots == len(slots), f"{open_slots} draft slots open, {len(slots)} in use"


def _open_slots(runner: TargetRunner) -> int | None:
    """Slots in use, where a runner tells; the contract does not ask for it."""
    slots: int | None = getattr(runner, "open_slots", None)
    return slots


def _drafter_ids(drafter: Drafter) -> frozenset[int]:
    """Sequences that a drafter keeps anything of, for the drafters that keep something."""
    if isinstance(drafter, ModelDrafter):
        return frozenset(drafter._slots)
    if isinstance(drafter, NgramDrafter):
        return frozenset(drafter._indexes)
    return drafter.open_ids if isinstance(drafter, ScriptedDrafter) else frozenset()
