"""Several drafters at once, and what a single request may ask of them."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.control.goodput import GoodputController
from outrider.draft.base import drafter_names, offers_of, propose_chosen
from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.none import NoDrafter
from outrider.draft.several import SeveralDrafter
from outrider.engine.engine import Engine
from outrider.errors import ConfigError, RequestError
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import RequestSpeculation, SamplingParams
from outrider.testing import ScheduledController, ScriptedDrafter, StubSequence
from outrider.types import Choice, Offer, RoundTrace
from tests.support import MODEL, VOCAB, make_engine, run_all, run_one

REPEATED = [1, 2, 3, 1, 2]


def several() -> SeveralDrafter:
    return SeveralDrafter([NgramDrafter(1, 3), ScriptedDrafter(lambda _sequence, budget: [7] * budget)])


def test_every_drafter_makes_its_offer() -> None:
    drafter = several()
    for sequence_id, tokens, offers in (
        (0, REPEATED, (Offer("ngram", 2), Offer("scripted"))),
        (1, [1, 2, 3], (Offer("scripted"),)),
    ):
        sequence = StubSequence(sequence_id, tokens)
        drafter.open(sequence)
        assert drafter.offers(sequence) == offers
    assert drafter.name == "ngram+scripted"
    assert drafter_names(drafter) == ("ngram", "scripted")
    assert drafter_names(NoDrafter()) == ()
    assert offers_of(NoDrafter(), StubSequence(0, [1])) == ()


def test_each_sequence_gets_the_offer_that_was_chosen() -> None:
    drafter = several()
    sequences = [StubSequence(i, REPEATED) for i in range(4)]
    for sequence in sequences:
        drafter.open(sequence)
    choices = [Choice(2, Offer("ngram", 2)), Choice(3, Offer("scripted")), Choice(2), Choice(1, Offer("ngram", 2))]
    assert [draft.tokens for draft in propose_chosen(drafter, sequences, choices)] == [(3, 1), (7, 7, 7), (), (3,)]
    assert [draft.tokens for draft in drafter.propose(sequences[:1], [2])] == [(3, 1)], "the first that has a guess"
    scripted = drafter.drafters[1]
    assert isinstance(scripted, ScriptedDrafter)
    assert scripted.synced == [], "who was passed over has nothing to do"
    drafter.close(0)
    assert 0 not in scripted.open_ids


@pytest.mark.parametrize("wish", [{"method": "ngram"}, {"num_speculative_tokens": 0}])
def test_who_is_not_asked_for_knows_nothing_of_a_request(wish: dict[str, Any]) -> None:
    drafter = several()
    scripted = drafter.drafters[1]
    assert isinstance(scripted, ScriptedDrafter)
    alone, beside = StubSequence(0, REPEATED, SamplingParams(speculative=wish)), StubSequence(1, REPEATED)
    for sequence in (alone, beside):
        drafter.open(sequence)
    assert scripted.open_ids == {1}
    assert [offer.drafter for offer in drafter.offers(alone)] == ([] if "method" not in wish else ["ngram"])
    drafter.sync([alone, beside])
    assert [sequence_id for sequence_id, _ in scripted.synced] == [1]
    drafter.close(0)


class Reader(NoDrafter):
    layers = (1,)

    def remember(self, committed: Any) -> None:
        """Nothing to remember."""


class OtherReader(Reader):
    name = "other"


def test_two_of_a_name_or_two_readers_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="names"):
        SeveralDrafter([NgramDrafter(), NgramDrafter()])
    with pytest.raises(AssertionError, match="one drafter"):
        SeveralDrafter([Reader(), OtherReader()])
    assert SeveralDrafter([NgramDrafter(), Reader()]).layers == (1,)
    assert several().layers == ()


def traces(engine: Engine, *requests: tuple[list[int], SamplingParams]) -> list[RoundTrace]:
    for prompt, params in requests:
        engine.add(prompt, params)
    return [trace for _ in range(200) if engine.has_work for trace in engine.step().rounds]


def asking(**speculative: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=12, speculative=speculative)


def test_a_request_has_its_own_draft_length() -> None:
    engine = make_engine(several(), 3)
    params = [
        asking(num_speculative_tokens=0),
        asking(num_speculative_tokens=5),
        asking(),
        SamplingParams(max_tokens=12),
    ]
    rounds = traces(engine, *((REPEATED, each) for each in params))
    most = [max(trace.choice.tokens for trace in rounds if trace.sequence_id == i) for i in range(4)]
    assert most == [0, 5, 3, 3]
    assert all(trace.drafted == 0 for trace in rounds if trace.sequence_id == 0)


def test_a_request_has_its_own_drafter() -> None:
    for method in ("ngram", "scripted"):
        rounds = traces(make_engine(several(), 3), (REPEATED, asking(method=method)))
        used = {trace.choice.offer.drafter for trace in rounds if trace.choice.offer and trace.drafted}
        assert used == {method}


def test_a_drafter_that_is_not_loaded_is_refused() -> None:
    engine = make_engine(several(), 3)
    with pytest.raises(RequestError, match="method='spire' is not loaded here; use one of ngram, scripted"):
        engine.add(REPEATED, asking(method="spire"))
    assert not engine.has_work


def test_wishes_that_a_plain_engine_cannot_meet_are_refused() -> None:
    engine = make_engine()
    for wish in ({"num_speculative_tokens": 2}, {"method": "ngram"}, {"method": "none"}):
        with pytest.raises(RequestError, match="decodes plainly"):
            engine.add(REPEATED, asking(**wish))
    engine.add(REPEATED, asking(num_speculative_tokens=0))


def test_wishes_do_not_share_what_the_controller_gives_out() -> None:
    """A request with a length of its own is none of the controller's business."""
    seen: list[int] = []

    class Watching(ScheduledController):
        def choose(self, sequences: Any, offers: Any) -> list[Choice]:
            seen.extend(sequence.id for sequence in sequences)
            return super().choose(sequences, offers)

    rounds = traces(
        make_engine(several(), Watching([2])), (REPEATED, asking(num_speculative_tokens=4)), (REPEATED, asking())
    )
    assert set(seen) == {1}
    assert {trace.choice.tokens for trace in rounds if trace.sequence_id == 0} <= {0, 1, 2, 3, 4}
    with pytest.raises(ConfigError, match="num_speculative_tokens=65 is more than 64"):
        asking(num_speculative_tokens=65)
    with pytest.raises(ConfigError, match="num_speculative_tokens='5' must be"):
        RequestSpeculation("5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    ["ngram", {"k": 1}, {"num_speculative_tokens": -1}, {"num_speculative_tokens": True}, {"method": 3}, [1]],
    ids=repr,
)
def test_what_is_no_speculation_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="speculative"):
        SamplingParams(speculative=value)


def test_a_speculation_is_kept_as_a_value() -> None:
    params = SamplingParams(speculative={"num_speculative_tokens": 2})
    assert params.speculative == params.speculation == RequestSpeculation(2)
    assert SamplingParams(speculative=params.speculative) == params
    assert SamplingParams().speculation == RequestSpeculation()


@pytest.mark.parametrize("seed", range(4))
def test_bytes_are_plain_decodings_whatever_is_chosen(seed: int) -> None:
    """The controller, several drafters and requests with wishes of their own, in one batch."""
    params = [SamplingParams(seed=seed, max_tokens=20), asking(num_speculative_tokens=2), asking(method="ngram")]
    prompts = [REPEATED, [4, 4, 4], [seed, 5, 1]]
    plain = [
        run_one(
            make_engine(), prompt, SamplingParams(each.n, each.temperature, seed=each.seed, max_tokens=each.max_tokens)
        )
        for prompt, each in zip(prompts, params, strict=True)
    ]
    for controller in (GoodputController(), ScheduledController([3, 0, 1, 5])):
        model = ModelDrafter(ToyRunner(ToyModel(VOCAB, 2, seed=2), max_num_seqs=4, max_model_len=64), VOCAB)
        engine = make_engine(SeveralDrafter([NgramDrafter(1, 2), model]), controller, runner=ToyRunner(MODEL, 4, 64))
        ids = [engine.add(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        outputs = run_all(engine)
        assert [outputs[each].outputs[0].token_ids for each in ids] == [each.outputs[0].token_ids for each in plain]
