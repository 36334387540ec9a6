"""Rounds without a draft cost a drafter nothing, and leave no trace: it drafts as one that was never idle."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from outrider.config import EngineConfig
from outrider.control.base import Offers
from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.none import NoDrafter
from outrider.draft.several import SeveralDrafter
from outrider.draft.sparse_self import sparse_self
from outrider.draft.spire.build import build_spire
from outrider.draft.spire.drafter import SpireDrafter
from outrider.draft.spire.weights import SpireWeights, save
from outrider.engine.engine import Engine
from outrider.models.decoder import DecoderRunner
from outrider.models.load import LoadedModel
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import ScriptedDrafter, StubSequence
from outrider.types import Choice, CommittedStates, Draft, Offer, RequestState, StepTrace
from tests.support import LetterTokenizer, make_engine
from tests.unit.decoders import VOCAB, families, on, random_weights
from tests.unit.decoders import load as load_decoder
from tests.unit.test_spire_drafter import small_draft

LLAMA = families()["llama-tied"]
TOY = ToyModel(VOCAB, 2)
K, LONGEST = 4, 230
PAUSES = (1, 2, 3, 9, 20, 70, 150)
"""Rounds without a draft: within a draft's sight, beyond it, and longer than states may wait."""


def decoder() -> DecoderRunner:
    return load_decoder(LLAMA, random_weights(LLAMA), max_num_seqs=3)


class Near(ToyModel):
    """Often says what the toy target says."""

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        return TOY.logits(tokens) + super().logits(tokens)


class Stretches:
    """Rounds of drafts from any offer and pauses in turn, each of random length, sequence by sequence."""

    def __init__(self, seed: int) -> None:
        self._seed, self.rounds = seed, 0
        self._plans: dict[int, Iterator[bool]] = {}
        self._random = random.Random(seed)

    def choose(self, sequences: Sequence[RequestState], offers: Offers) -> list[Choice]:
        return [self._choice(sequence.id, offers(sequence)) for sequence in sequences]

    def _choice(self, sequence_id: int, offers: Sequence[Offer]) -> Choice:
        drafts = next(self._plans.setdefault(sequence_id, self._plan(sequence_id)))
        offer = self._random.choice(offers) if offers else None
        return Choice(self._random.randint(1, K) if drafts and offers else 0, offer)

    def _plan(self, sequence_id: int) -> Iterator[bool]:
        chance = random.Random(1000 * self._seed + sequence_id)
        drafts = chance.random() < 0.5
        while True:
            yield from [drafts] * (chance.randint(1, 4) if drafts else chance.choice(PAUSES))
            drafts = not drafts

    def observe(self, trace: StepTrace) -> None:
        self.rounds += sum(each.drafted > 0 for each in trace.rounds)

    def close(self, sequence_id: int) -> None:
        self._plans.pop(sequence_id, None)


class BesideOneThatKeepsUp:
    """The drafter under test; a twin that is brought up to date every round must propose the very same."""

    def __init__(self, lazy: Any, eager: Any) -> None:
        self.lazy, self.eager, self.name = lazy, eager, lazy.name
        self.layers: tuple[int, ...] = getattr(lazy, "layers", ())
        self.compared = 0

    def open(self, sequence: RequestState) -> None:
        self.lazy.open(sequence)
        self.eager.open(sequence)

    def close(self, sequence_id: int) -> None:
        self.lazy.close(sequence_id)
        self.eager.close(sequence_id)

    def sync(self, sequences: Sequence[RequestState]) -> None:
        self.lazy.sync(sequences)

    def remember(self, committed: Sequence[CommittedStates]) -> None:
        lent = [each._replace(states_LND=each.states_LND.clone()) for each in committed]
        self.lazy.remember(lent)
        self.eager.remember(committed)
        for each in lent:
            # What a pass left is not the drafter's to keep.
            each.states_LND.fill_(torch.nan)

    def offers(self, sequence: RequestState) -> tuple[Offer, ...]:
        self.eager.sync([sequence])
        offers = cast("tuple[Offer, ...]", self.lazy.offers(sequence))
        assert offers == self.eager.offers(sequence)
        return offers

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        return self._same(self.lazy.propose(sequences, budgets), self.eager.propose(sequences, budgets))

    def propose_chosen(self, sequences: Sequence[RequestState], choices: Sequence[Choice]) -> list[Draft]:
        if not isinstance(self.lazy, SeveralDrafter):
            return self.propose(sequences, [choice.tokens for choice in choices])
        return self._same(self.lazy.propose_chosen(sequences, choices), self.eager.propose_chosen(sequences, choices))

    def _same(self, drafts: list[Draft], expected: list[Draft]) -> list[Draft]:
        for draft, other in zip(drafts, expected, strict=True):
            assert draft.tokens == other.tokens
            if draft.logq_KV is not None:
                assert other.logq_KV is not None
                assert torch.equal(draft.logq_KV, other.logq_KV), "bit for bit"
                self.compared += 1
        return drafts


def at_once(drafter: SpireDrafter) -> SpireDrafter:
    """States are remembered when they come."""
    config, step, slots = drafter._config, drafter._step, drafter._slots

    def remember(committed: Sequence[CommittedStates]) -> None:
        for sequence_id, start, states_LND in committed:
            slot, end = slots[sequence_id], start + states_LND.shape[1]
            slot.known = slot.remembered = end
            first = 0 if config.window is None else end - config.window
            seen = [p for p in range(start, end) if p < config.sink or p >= first]
            step.remember(slot.index, seen, states_LND[:, [p - start for p in seen]])

    drafter.remember = remember  # type: ignore[method-assign]
    return drafter


def pair(kind: str, runner: Any, folder: Path) -> BesideOneThatKeepsUp:
    def model() -> ModelDrafter:
        draft = ToyRunner(Near(VOCAB, 2, seed=1, scale=0.4), 3, 512) if isinstance(runner, ToyRunner) else decoder()
        return ModelDrafter(draft, VOCAB, max_num_batched_tokens=16)

    def spire() -> SpireDrafter:
        return build_spire(folder, LoadedModel(runner, cast("Any", LetterTokenizer()), cast("Any", None)), K)

    def sparse() -> SpireDrafter:
        return sparse_self(runner, dict(random_weights(LLAMA)), K)

    if kind.startswith("spire"):
        weights = small_draft()
        changes: dict[str, dict[str, Any]] = {"spire": {}, "spire-all": {"window": None}, "spire-wide": {"window": 140}}
        changed = SpireWeights(replace(weights.config, **changes[kind]), weights.tensors, weights.draft_ids)
        save(changed, folder, {}, int8=False)
        return BesideOneThatKeepsUp(spire(), at_once(spire()))
    if kind == "sparse_self":
        return BesideOneThatKeepsUp(sparse(), at_once(sparse()))
    if kind == "several":
        save(small_draft(), folder, {}, int8=False)
        lazy, eager = ((NgramDrafter(), model(), each) for each in (spire(), at_once(spire())))
        return BesideOneThatKeepsUp(SeveralDrafter(lazy), SeveralDrafter(eager))
    return BesideOneThatKeepsUp(model(), model())


def answers(engine: Engine, params: SamplingParams, cancel: bool = False) -> list[tuple[int, ...]]:
    """Of five requests over three slots; the third may be cancelled midway."""
    prompts = [[5, 9, 2, 40, 7], [1], [i % VOCAB for i in range(3, 120)], [8, 8, 3], [*range(30)]]
    ids = [engine.add(prompt, params) for prompt in prompts]
    for turn in range(2000):
        if not engine.has_work:
            break
        if cancel and turn == 60:
            engine.cancel(ids[2])
        engine.step()
    outputs = {output.request_id: output.outputs[0].token_ids for output in engine.collect()}
    return [outputs[each] for i, each in enumerate(ids) if i != 2 or not cancel]


CASES = [
    ("draft_model", "toy"), ("draft_model", "native"), ("spire", "native"), ("spire-all", "native"),
    ("spire-wide", "native"), ("sparse_self", "native"), ("several", "native"),
]  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=LONGEST, ignore_eos=True)


@pytest.mark.parametrize(("kind", "backend"), CASES)
def test_a_pause_leaves_no_trace(kind: str, backend: str, tmp_path: Path) -> None:
    """Bytes are plain decoding's and drafts, laws included, those of a twin that kept up: any pauses, ragged batches,
    slots that change hands, prompts in chunks."""
    drafted = compared = 0
    with on(backend if backend != "toy" else "torch"):
        runner = ToyRunner(TOY, 3, 512) if backend == "toy" else decoder()
        config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=40)
        settings = [GREEDY, replace(GREEDY, temperature=1.0, seed=3), replace(GREEDY, temperature=1.0)]
        for seed, params in enumerate(settings):
            controller, both = Stretches(seed), pair(kind, runner, tmp_path)
            engine = Engine(cast("Any", runner), both, controller, LetterTokenizer(), config)
            said = answers(engine, params, cancel=True)
            if engine.keeps_bytes(params):
                assert said == answers(make_engine(NoDrafter(), 0, runner=cast("Any", runner)), params, cancel=True)
            drafted, compared = drafted + controller.rounds, compared + both.compared
    assert drafted > 60
    assert compared > 15, "laws of drafts that were drawn"


def test_at_budget_zero_nothing_is_run(tmp_path: Path) -> None:
    """By the draft model, by the SPIRe draft's step, or by a member that was not chosen."""
    with on("torch"):
        runner = decoder()
        both = pair("several", runner, tmp_path)
        lookup, model, spire = both.lazy.drafters
        ran: list[str] = []
        watch(model._runner, "score", ran)
        watch(spire._step, "remember", ran)

        class Lookup(Stretches):
            def choose(self, sequences: Any, offers: Any) -> list[Choice]:
                chosen = [next((o for o in each if o.drafter == "ngram"), None) for each in map(offers, sequences)]
                return [Choice(2 if offer else 0, offer) for offer in chosen]

        engine = Engine(runner, both.lazy, Lookup(0), LetterTokenizer())
        assert any(len(each) == LONGEST for each in answers(engine, GREEDY))
    assert lookup.name == "ngram"
    assert ran == []


def watch(owner: Any, method: str, calls: list[str]) -> None:
    inner = getattr(owner, method)

    def watched(*given: Any, **named: Any) -> Any:
        calls.append(method)
        return inner(*given, **named)

    setattr(owner, method, watched)


def test_only_prompts_that_may_be_drafted_for_are_read_along() -> None:
    drafter = ScriptedDrafter(lambda _sequence, _budget: [])
    engine = make_engine(drafter, 0, config=EngineConfig(max_num_seqs=4, max_num_batched_tokens=4))
    engine.add([1] * 10, SamplingParams(max_tokens=3, speculative={"num_speculative_tokens": 0}))
    for _ in range(8):
        engine.step()
    assert drafter.synced == []
    engine.add([1] * 10, SamplingParams(max_tokens=3))
    for _ in range(8):
        engine.step()
    assert drafter.synced == [(1, 10), (1, 10)], "while its prompt is read, and not after"


@pytest.mark.parametrize("call", range(1, 6))
def test_a_backlog_goes_in_chunks_and_survives_a_failure(call: int) -> None:
    runner = ToyRunner(ToyModel(8, 3), 2, 128, fail_on_call=call)
    drafter, sequence = ModelDrafter(runner, 8, max_num_batched_tokens=16), StubSequence(0, [1, 2, 3], GREEDY)
    drafter.open(sequence)
    sequence.append([i % 8 for i in range(40)])
    assert drafter.offers(sequence) == (Offer("draft_model"),)
    assert drafter.offers(sequence)[0].behind == 41
    with pytest.raises(RuntimeError, match="injected"):
        drafter.propose([sequence], [3])
    assert list(drafter.propose([sequence], [3])[0].tokens) == runner.model.greedy(sequence.tokens, 3)
    assert max(len(feed.tokens) for each in runner.calls for feed in each) <= 16
    for kept, behind in ((3, 0), (0, 0)):
        sequence.append([*runner.model.greedy(sequence.tokens, 3)[:kept], 5])
        assert drafter.offers(sequence)[0].behind == behind, "in step, however much of a draft was kept"
        drafter.propose([sequence], [3])
    sequence.append([6])
    sequence.append([6])
    assert drafter.offers(sequence)[0].behind == 0
    sequence.append([6])
    assert drafter.offers(sequence)[0].behind == 1


def test_no_room_is_no_offer() -> None:
    drafter = ModelDrafter(ToyRunner(ToyModel(8, 3), 1, 10), 8)
    first, second = StubSequence(0, [1, 2, 3], GREEDY), StubSequence(1, [1, 2, 3], GREEDY)
    drafter.open(first)
    assert drafter.offers(first)
    assert drafter.offers(second) == (), "no slot is free"
    first.append([1] * 7)
    assert drafter.offers(first)
    first.append([1])
    assert drafter.offers(first) == (), "longer than the draft model's context"
    assert drafter.offers(second), "its slot is given away"


@pytest.mark.parametrize("kind", ["spire", "spire-all"])
def test_what_is_behind_is_what_a_draft_can_see(kind: str, tmp_path: Path) -> None:
    """However long it waits; a draft that sees everything never lets more wait than it remembers at once."""
    with on("torch"):
        drafter = cast("SpireDrafter", pair(kind, decoder(), tmp_path).lazy)
    sequence = StubSequence(0, [1])
    drafter.open(sequence)
    for rows in (30, *[1] * 20, 40, *[3] * 30, 5):
        states_LND = torch.zeros(2, rows, drafter._config.hidden_size)
        drafter.remember([CommittedStates(0, len(sequence.tokens) - 1, states_LND)])
        sequence.append([1] * rows)
        late = drafter.offers(sequence)[0].behind + 16
        if kind == "spire":
            assert late == 16, "seven positions and the sink hardly show"
        else:
            assert rows <= late <= 128


def test_memory_of_what_waits_goes_with_its_sequence(tmp_path: Path) -> None:
    with on("torch"):
        drafter = cast("SpireDrafter", pair("spire", decoder(), tmp_path).lazy)
    for sequence_id in range(9):
        drafter.open(StubSequence(sequence_id, [1]))
        drafter.remember([CommittedStates(sequence_id, 0, torch.zeros(2, 40, drafter._config.hidden_size))])
        held = weakref.ref(drafter._slots[sequence_id].waiting._states_RLD)
        assert held() is not None
        drafter.close(sequence_id)
        assert held() is None


def test_whose_states_were_lost_drafts_no_more(tmp_path: Path) -> None:
    """Its neighbours do; nothing is made of states that never came."""
    with on("torch"):
        drafter = cast("SpireDrafter", pair("spire", decoder(), tmp_path).lazy)
    lost, whole = StubSequence(0, [1] * 9, GREEDY), StubSequence(1, [1] * 9, GREEDY)
    states_LND = torch.zeros(2, 8, drafter._config.hidden_size)
    for sequence in (lost, whole):
        drafter.open(sequence)
    drafter.remember([CommittedStates(0, 0, states_LND[:, :3]), CommittedStates(1, 0, states_LND)])
    drafter.remember([CommittedStates(0, 4, states_LND[:, 4:])])
    assert drafter.offers(lost) == ()
    assert drafter.propose([lost, whole], [2, 2])[0] == Draft()
    assert drafter.offers(whole)


@pytest.mark.parametrize("kind", ["spire", "spire-all"])
def test_what_raised_while_it_came_again_is_not_known(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with on("torch"):
        drafter = cast("SpireDrafter", pair(kind, decoder(), tmp_path).lazy)
    sequence, states_LND = StubSequence(0, [1] * 201, GREEDY), torch.zeros(2, 200, drafter._config.hidden_size)
    drafter.open(sequence)
    drafter.remember([CommittedStates(0, 0, states_LND)])
    with monkeypatch.context() as patch:
        # A draft that sees everything remembers so many at once.
        owner, method = (drafter._slots[0].waiting, "put") if kind == "spire" else (drafter._step, "remember")
        patch.setattr(owner, method, _raise)
        with pytest.raises(RuntimeError, match="injected"):
            drafter.remember([CommittedStates(0, 0, states_LND)])
    assert drafter.offers(sequence) == ()
    drafter.remember([CommittedStates(0, 0, states_LND)])
    assert drafter.offers(sequence)


def _raise(*_: object) -> None:
    raise RuntimeError("injected")


def test_of_a_position_that_comes_twice_the_later_states_count(tmp_path: Path) -> None:
    """A step that raised may hand some over again, also while the first are waiting."""
    tokens, sampled = list(range(9)), SamplingParams(temperature=1.0)
    early_LND, later_LND = torch.randn(2, 2, 8, 64, generator=torch.Generator().manual_seed(0))
    laws = []
    with on("torch"):
        for handed in ([(0, early_LND), (3, later_LND[:, 3:])], [(0, early_LND[:, :3]), (3, later_LND[:, 3:])]):
            drafter = cast("SpireDrafter", pair("spire", decoder(), tmp_path).lazy)
            sequence = StubSequence(0, tokens, sampled)
            drafter.open(sequence)
            for start, states_LND in handed:
                drafter.remember([CommittedStates(0, start, states_LND)])
            laws.append(drafter.propose([sequence], [3])[0].logq_KV)
    assert laws[0] is not None
    assert laws[1] is not None
    assert torch.equal(laws[0], laws[1])
