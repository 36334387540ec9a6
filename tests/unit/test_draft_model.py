"""The draft model: the law it reports, the lengths of its KV, and the rows it must leave alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outrider.draft.model import ModelDrafter
from outrider.errors import CapabilityError
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.sampling.policy import policy
from outrider.testing import StubSequence

if TYPE_CHECKING:
    from outrider.types import Draft

VOCAB = 8
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)


def _setting(*sequences: StubSequence, **options: Any) -> tuple[ToyRunner, ModelDrafter]:
    keep = {key: options.pop(key) for key in ("eos_ids", "max_num_batched_tokens", "floor") if key in options}
    runner = ToyRunner(ToyModel(VOCAB, context=3), **{"max_num_seqs": 4, "max_model_len": 64, **options})
    drafter = ModelDrafter(runner, VOCAB, **keep)
    for sequence in sequences:
        drafter.open(sequence)
    return runner, drafter


def _one(drafter: ModelDrafter, sequence: StubSequence, budget: int) -> Draft:
    return drafter.propose([sequence], [budget])[0]


def test_greedy_drafts_are_the_models_own_chain() -> None:
    """Target as its own drafter: acceptance 1, round after round, or a length is wrong."""
    sequence = StubSequence(0, [1, 2, 3, 4], GREEDY)
    runner, drafter = _setting(sequence)
    for budget in (4, 1, 3, 0, 5, 2):
        draft = _one(drafter, sequence, budget)
        assert draft.logq_KV is None
        assert list(draft.tokens) == runner.model.greedy(sequence.tokens, budget)
        sequence.append(runner.model.greedy(sequence.tokens, budget + 1))


def test_a_doubtful_greedy_draft_ends_early() -> None:
    """Before the token with which the whole draft would fall below the floor; sampled drafts have none."""
    sequence = StubSequence(0, [1, 2, 3, 4], GREEDY)
    whole, likely, at = _one(_setting(sequence)[1], sequence, 6).tokens, 1.0, []
    model = ToyModel(VOCAB, context=3)
    for i in range(6):
        likely *= float(model.logits([*sequence.tokens, *whole[:i]]).softmax(-1).max())
        at.append(likely)
    for count, (above, below) in enumerate(zip([1.0, *at], at, strict=False)):
        _, drafter = _setting(sequence, floor=(above + below) / 2)
        assert _one(drafter, sequence, 6).tokens == whole[:count]
    sampled = StubSequence(1, [1, 2, 3, 4], SAMPLED)
    assert len(_one(_setting(sampled, floor=0.99)[1], sampled, 6).tokens) == 6


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("broken", [float("nan"), -float("inf")])
def test_a_row_that_leaves_nothing_to_choose_ends_the_draft(
    params: SamplingParams, broken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the drafts of its neighbours go on."""
    sequences = [StubSequence(i, [1, 2, i], params) for i in range(2)]
    runner, drafter = _setting(*sequences)
    score = runner.score

    def from_the_second_on(feeds: Any, hidden: bool = False, layers: Any = ()) -> Any:
        scores = score(feeds, hidden, layers)
        for feed, logits_TV in zip(feeds, scores.logits, strict=True):
            if feed.sequence_id == 0 and len(runner.calls) > 1:
                logits_TV[:] = broken
        return scores

    monkeypatch.setattr(runner, "score", from_the_second_on)
    first, second = drafter.propose(sequences, [4, 4])
    assert (len(first.tokens), len(second.tokens)) == (1, 4)


@pytest.mark.parametrize("shared_noise", [False, True])
def test_tokens_are_drawn_from_the_reported_law(shared_noise: bool) -> None:
    sequence = StubSequence(0, [1, 2, 3], SAMPLED, seed=5, shared_noise=shared_noise)
    runner, drafter = _setting(sequence)
    draft = _one(drafter, sequence, 4)
    draws = sequence.randomness.round(3)
    for i, token in enumerate(draft.tokens):
        context = [*sequence.tokens, *draft.tokens[:i]]
        law_V = policy(runner.model.logits(context)[None], SAMPLED, i, frozenset())[0]
        assert token == draws.draft(i, law_V)
        if not shared_noise:
            assert draft.logq_KV is not None
            assert torch.equal(draft.logq_KV[i], law_V)
    assert (draft.logq_KV is None) == shared_noise


def test_frequencies_follow_the_reported_law() -> None:
    """Chi-square of the second draft token given the first, false-alarm odds 1e-9; a raw law must be told apart."""
    pair, laws, seen = None, None, torch.zeros(VOCAB, dtype=torch.float64)
    for seed in range(3000):
        sequence = StubSequence(0, [1, 2, 3], SAMPLED, seed=seed)
        _, drafter = _setting(sequence)
        draft = _one(drafter, sequence, 2)
        pair = draft.tokens[0] if pair is None else pair
        if draft.tokens[0] == pair:
            assert draft.logq_KV is not None
            laws = draft.logq_KV[1].double().exp()
            seen[draft.tokens[1]] += 1
    assert laws is not None
    assert seen.sum() > 300
    raw_V = ToyModel(VOCAB, context=3).logits([2, 3, int(pair or 0)]).double()
    assert _p_value(seen, laws) > 1e-9
    assert _p_value(seen, (raw_V / 2.0).softmax(-1)) < 1e-9


def _p_value(seen_V: torch.Tensor, law_V: torch.Tensor) -> float:
    support = law_V > 0
    if seen_V[~support].any():
        return 0.0
    expected = law_V[support] / law_V[support].sum() * seen_V.sum()
    return float(stats.chisquare(seen_V[support].numpy(), expected.numpy()).pvalue)


_ROUND = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, VOCAB - 1), st.sampled_from(["", "sync"]))


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(st.lists(_ROUND, min_size=3, max_size=3), max_size=5), temperature=st.sampled_from([0.0, 1.0]))
def test_kv_equals_the_committed_tokens_after_every_kind_of_round(
    rounds: list[list[tuple[int, int, int, str]]], temperature: float
) -> None:
    params = SamplingParams(temperature=temperature)
    sequences = [StubSequence(i, range(1, 3 + i), params) for i in range(3)]
    runner, drafter = _setting(*sequences, max_num_batched_tokens=5)
    for plan in rounds:
        drafts = drafter.propose(sequences, [budget for budget, *_ in plan])
        for sequence, draft, (budget, kept, fresh, _) in zip(sequences, drafts, plan, strict=True):
            assert len(draft.tokens) == budget
            fed = [*sequence.tokens, *draft.tokens[:-1]] if budget else sequence.tokens[:-1]
            assert _stored(runner, sequence) == fed
            sequence.append([*draft.tokens[:kept], fresh])
        drafter.sync([s for s, (*_, word) in zip(sequences, plan, strict=True) if word])
        for sequence, (*_, word) in zip(sequences, plan, strict=True):
            if word:
                assert _stored(runner, sequence) == sequence.tokens[:-1]


def _stored(runner: ToyRunner, sequence: StubSequence) -> list[int]:
    return runner._stored[sequence.id][: runner.length(sequence.id)]


def test_a_fully_accepted_round_costs_no_extra_forward() -> None:
    sequence = StubSequence(0, [1, 2, 3], GREEDY)
    runner, drafter = _setting(sequence)
    for _ in range(2):
        before = len(runner.calls)
        draft = _one(drafter, sequence, 3)
        assert len(runner.calls) - before == 3
        sequence.append([*draft.tokens, 0])
    sizes = [len(feed.tokens) for (feed,) in runner.calls[3:]]
    assert sizes == [2, 1, 1]


def test_sequences_share_forwards_while_they_want_tokens() -> None:
    sequences = [StubSequence(i, [1, 2, i]) for i in range(3)]
    runner, drafter = _setting(*sequences)
    drafter.propose(sequences, [3, 0, 2])
    shape = [{feed.sequence_id: (len(feed.tokens), feed.rows) for feed in call} for call in runner.calls]
    assert shape == [{0: (3, 1), 1: (2, 0), 2: (3, 1)}, {0: (1, 1), 2: (1, 1)}, {0: (1, 1)}]


def test_long_prompts_go_in_chunks() -> None:
    sequences = [StubSequence(i, [t % VOCAB for t in range(40 + i)]) for i in range(2)]
    runner, drafter = _setting(*sequences, max_num_batched_tokens=16)
    drafter.sync(sequences)
    assert [len(_stored(runner, sequence)) for sequence in sequences] == [16, 16], "one chunk a call, each"
    drafter.sync(sequences)
    drafter.sync(sequences)
    assert max(sum(len(feed.tokens) for feed in call) for call in runner.calls) == 16
    assert [_stored(runner, sequence) for sequence in sequences] == [s.tokens[:-1] for s in sequences]
    before = len(runner.calls)
    drafter.sync(sequences)
    assert len(runner.calls) == before, "nothing is behind, so nothing runs"


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_a_wider_draft_never_proposes_its_padding(params: SamplingParams) -> None:
    sequence = StubSequence(0, [1, 2, 3], params)
    plain, (_, drafter) = StubSequence(0, [1, 2, 3], params), _setting(sequence, vocab_size=VOCAB + 4)
    draft, expected = _one(drafter, sequence, 4), _one(_setting(plain)[1], plain, 4)
    assert draft.tokens == expected.tokens
    if draft.logq_KV is not None:
        assert expected.logq_KV is not None
        assert torch.equal(draft.logq_KV, expected.logq_KV)


def test_a_narrower_draft_gives_missing_tokens_no_probability() -> None:
    sequence = StubSequence(0, [1, 2, 3], SamplingParams())
    _, drafter = _setting(sequence, vocab_size=5)
    draft = _one(drafter, sequence, 6)
    assert max(draft.tokens) < 5
    assert draft.logq_KV is not None
    assert draft.logq_KV.shape == (6, VOCAB)
    assert bool((draft.logq_KV[:, 5:] == -torch.inf).all())


def test_a_token_the_draft_has_no_embedding_for_ends_its_row_only() -> None:
    sequences = [StubSequence(i, [1, 2, 3], GREEDY) for i in range(2)]
    runner, drafter = _setting(*sequences, vocab_size=5)
    assert [len(d.tokens) for d in drafter.propose(sequences, [2, 2])] == [2, 2]
    sequences[0].append([7])
    sequences[1].append([4])
    for _ in range(2):
        assert [len(d.tokens) for d in drafter.propose(sequences, [2, 2])] == [0, 2]
        drafter.sync(sequences)
    assert runner.open_slots == 1


def test_a_shorter_context_shrinks_the_draft_then_ends_it() -> None:
    sequences = [StubSequence(0, [1, 2, 3], GREEDY), StubSequence(1, [t % VOCAB for t in range(30)], GREEDY)]
    runner, drafter = _setting(*sequences, max_model_len=10)
    lengths = []
    for _ in range(9):
        first, second = drafter.propose(sequences, [4, 4])
        assert second.tokens == ()
        assert list(first.tokens) == runner.model.greedy(sequences[0].tokens, len(first.tokens))
        lengths.append(len(first.tokens))
        sequences[0].append(runner.model.greedy(sequences[0].tokens, 1))
        drafter.sync(sequences)
    assert lengths == [4, 4, 4, 4, 4, 3, 2, 1, 0]
    assert runner.open_slots == 0


def test_sequences_beyond_the_slots_wait_for_one() -> None:
    sequences = [StubSequence(i, [1, 2, 3], GREEDY) for i in range(3)]
    _, drafter = _setting(*sequences, max_num_seqs=2)
    assert [len(d.tokens) for d in drafter.propose(sequences, [2, 2, 2])] == [2, 2, 0]
    drafter.close(0)
    assert [len(d.tokens) for d in drafter.propose(sequences[1:], [2, 2])] == [2, 2]


def test_stops_are_held_back_as_the_target_holds_them() -> None:
    eos = ToyModel(VOCAB, context=3).greedy([1, 2, 3], 1)[0]
    early, anytime = SamplingParams(temperature=0.0, min_tokens=2), GREEDY
    ignoring = SamplingParams(temperature=0.0, min_tokens=2, ignore_eos=True)
    own_stop = SamplingParams(temperature=0.0, min_tokens=2, ignore_eos=True, stop_token_ids=(eos,))
    for params, held in ((early, True), (anytime, False), (ignoring, False), (own_stop, True)):
        sequence = StubSequence(0, [1, 2, 3], params)
        _, drafter = _setting(sequence, eos_ids=frozenset({eos}))
        first = _one(drafter, sequence, 3).tokens[0]
        assert (first != eos) == held, params
    sampled = StubSequence(0, [1, 2, 3], SamplingParams(min_tokens=2))
    draft = _one(_setting(sampled, eos_ids=frozenset({eos}))[1], sampled, 4)
    assert draft.logq_KV is not None
    assert (draft.logq_KV[:, eos] > -torch.inf).tolist() == [False, False, True, True]
    late = StubSequence(0, [1], early)
    late.append([2, 3])
    _, drafter = _setting(late, eos_ids=frozenset({eos}))
    assert _one(drafter, late, 1).tokens == (eos,)


def test_a_runner_that_cannot_roll_back_is_refused() -> None:
    with pytest.raises(CapabilityError, match="toy: its cache cannot be rolled back"):
        _setting(rollback="none")


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_failed_forward_leaves_the_drafter_usable(call: int) -> None:
    sequence = StubSequence(0, [1, 2, 3], GREEDY)
    runner, drafter = _setting(sequence, fail_on_call=call)
    with pytest.raises(RuntimeError, match="injected"):
        _one(drafter, sequence, 4)
    assert list(_one(drafter, sequence, 4).tokens) == runner.model.greedy([1, 2, 3], 4)


def test_nothing_is_left_after_closing() -> None:
    sequences = [StubSequence(i, [1, 2, 3]) for i in range(3)]
    runner, drafter = _setting(*sequences, max_model_len=4)
    drafter.propose(sequences, [1, 2, 0])
    sequences[0].append([1, 2, 3])
    drafter.sync(sequences)
    for sequence_id in (0, 1, 2, 2, 99):
        drafter.close(sequence_id)
    assert runner.open_slots == 0
    assert drafter._slots == {}
