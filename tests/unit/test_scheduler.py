"""Who runs next: admission in order, prompts in chunks, and nobody starved."""

from __future__ import annotations

from outrider.config import EngineConfig
from outrider.engine.scheduler import Batch, Scheduler
from outrider.engine.sequence import Limits, Sequence
from outrider.models.toy import ToyRunner
from outrider.sampling.rng import KeyedRandomness
from outrider.verify import verifier_named
from tests.support import GREEDY, MODEL, LetterTokenizer, make_engine, run_all


def sequence(sequence_id: int, prompt: int) -> Sequence:
    return Sequence(
        sequence_id,
        f"req-{sequence_id}",
        0,
        (1,) * prompt,
        GREEDY,
        verifier_named("greedy"),
        KeyedRandomness(0, False),
        Limits(frozenset(), 100),
        LetterTokenizer(),
    )


class _Kv:
    """KV lengths that grow as a batch says."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}

    def __call__(self, sequence_id: int) -> int:
        return self.lengths.get(sequence_id, 0)

    def feed(self, batch: Batch) -> int:
        """Play a step of plain decoding; returns the tokens of its forward pass."""
        fed = 0
        for seq in batch.ready:
            fed += len(seq.tokens) - self(seq.id)
            self.lengths[seq.id] = len(seq.tokens)
            seq.tokens.append(1)
        for seq, chunk in batch.filling:
            fed += chunk
            self.lengths[seq.id] = self(seq.id) + chunk
        return fed


def admit_all(scheduler: Scheduler) -> list[int]:
    admitted = []
    while (seq := scheduler.next_in_line()) is not None:
        scheduler.admit(seq)
        admitted.append(seq.id)
    return admitted


def test_admission_is_in_order_and_stops_at_the_slots() -> None:
    scheduler = Scheduler(2, 8)
    sequences = [sequence(i, 3) for i in range(4)]
    for seq in sequences:
        scheduler.add(seq)
    assert admit_all(scheduler) == [0, 1]
    assert admit_all(scheduler) == []
    scheduler.remove(sequences[0])
    scheduler.remove(sequences[2])
    scheduler.remove(sequences[2])
    assert admit_all(scheduler) == [3], "the one removed while waiting never runs"
    assert [seq.id for seq in scheduler.running] == [1, 3]


def test_a_prompt_is_cut_into_chunks_and_decodes_with_its_last() -> None:
    scheduler, kv = Scheduler(1, 4), _Kv()
    scheduler.add(sequence(0, 10))
    admit_all(scheduler)
    seen = []
    for _ in range(5):
        batch = scheduler.next_batch(kv)
        seen.append((len(batch.ready), [chunk for _, chunk in batch.filling], kv.feed(batch)))
    assert seen == [(0, [4], 4), (0, [4], 4), (1, [], 2), (1, [], 1), (1, [], 1)]


def test_the_budget_is_shared_in_order_of_arrival() -> None:
    scheduler, kv = Scheduler(3, 8), _Kv()
    for i, prompt in enumerate((5, 6, 4)):
        scheduler.add(sequence(i, prompt))
    admit_all(scheduler)
    batch = scheduler.next_batch(kv)
    assert [seq.id for seq in batch.ready] == [0]
    assert [(seq.id, chunk) for seq, chunk in batch.filling] == [(1, 3)], "5 + 3; the third waits its turn"
    assert kv.feed(batch) == 8
    batch = scheduler.next_batch(kv)
    assert [seq.id for seq in batch.ready] == [0, 1, 2]
    assert kv.feed(batch) == 1 + 3 + 4


def test_decoding_neighbours_never_starve_a_prompt() -> None:
    scheduler, kv = Scheduler(4, 2), _Kv()
    for i in range(3):
        scheduler.add(sequence(i, 1))
    scheduler.add(sequence(3, 6))
    admit_all(scheduler)
    for left in range(5, 0, -1):
        batch = scheduler.next_batch(kv)
        assert [seq.id for seq in batch.ready] == [0, 1, 2], "and a prompt never stops who decodes"
        assert [(seq.id, chunk) for seq, chunk in batch.filling] == [(3, 1)]
        kv.feed(batch)
        assert kv(3) == 6 - left
    assert 3 in [seq.id for seq in scheduler.next_batch(kv).ready]


def test_an_engine_keeps_to_the_runners_slots_and_serves_everyone() -> None:
    runner = ToyRunner(MODEL, max_num_seqs=2, max_model_len=64)
    engine = make_engine(runner=runner, config=EngineConfig(max_num_seqs=9, max_num_batched_tokens=3))
    ids = [engine.add([i, 1, 2, 3, 4], GREEDY) for i in range(6)]
    outputs = run_all(engine)
    for i, request_id in enumerate(ids):
        assert outputs[request_id].outputs[0].token_ids == tuple(MODEL.greedy([i, 1, 2, 3, 4], 16))
    assert max(len(call) for call in runner.calls) == 2
    assert max(len(feed.tokens) for call in runner.calls for feed in call) <= 3
