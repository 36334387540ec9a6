"""How a request ends when the end falls inside an accepted block: same tokens, text and reason as plain decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.draft.model import ModelDrafter
from outrider.errors import RequestError
from outrider.models.toy import ToyModel, ToyRunner
from outrider.testing import ByteTokenizer
from outrider.types import CompletionOutput, FinishReason, RequestMetrics
from tests.support import GREEDY, MODEL, VOCAB, LetterTokenizer, make_engine, oracle, run_one

if TYPE_CHECKING:
    from outrider.sampling.params import SamplingParams

PROMPT = [3, 5]
LONG = MODEL.greedy(PROMPT, 40)
TEXT = LetterTokenizer().decode(LONG)
K = 6


def speculate(params: SamplingParams, *eos_ids: int, k: int = K) -> tuple[CompletionOutput, RequestMetrics]:
    """Greedy decoding whose drafts are always right, far beyond any end."""
    engine = make_engine(oracle([*PROMPT, *LONG]), k, tokenizer=LetterTokenizer(*eos_ids))
    output = run_one(engine, PROMPT, params)
    plain = run_one(make_engine(tokenizer=LetterTokenizer(*eos_ids)), PROMPT, params)
    assert output.outputs == plain.outputs, "speculation shows nowhere but in the metrics"
    return output.outputs[0], output.metrics


@pytest.mark.parametrize("at", range(1, 9))
def test_end_of_text_inside_a_block(at: int) -> None:
    eos = LONG[at]
    first = LONG.index(eos)
    answer, metrics = speculate(replace(GREEDY, max_tokens=30), eos)
    assert answer.token_ids == tuple(LONG[: first + 1])
    assert answer.text == TEXT[:first]
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, None)
    assert metrics.emitted == first + 1
    assert metrics.accepted <= metrics.emitted, "tokens verified beyond the end are not counted"


@pytest.mark.parametrize("k", [0, 1, 3, 6])
def test_max_tokens_is_exact(k: int) -> None:
    for longest in range(1, k + 4):
        answer, metrics = speculate(replace(GREEDY, max_tokens=longest), k=k)
        assert answer.token_ids == tuple(LONG[:longest])
        assert answer.finish_reason is FinishReason.LENGTH
        assert metrics.emitted == longest
        assert metrics.rounds == -(-longest // (k + 1)), "every round but the last emits k + 1"
        assert metrics.accepted == metrics.drafted == longest - metrics.rounds, "nothing is drafted that cannot be used"


def test_a_stop_inside_the_budget_wins_over_the_length() -> None:
    first = LONG.index(LONG[3])
    for longest in range(first + 1, first + 4):
        assert speculate(replace(GREEDY, max_tokens=longest), LONG[3])[0].finish_reason is FinishReason.STOP
    assert speculate(replace(GREEDY, max_tokens=first), LONG[3])[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("at", [2, 5, 7])
def test_stop_strings_inside_and_across_blocks(at: int, size: int) -> None:
    stop = TEXT[at : at + size]
    first = TEXT.index(stop)
    answer, metrics = speculate(replace(GREEDY, max_tokens=30, stop=["never", stop]))
    assert answer.text == TEXT[:first]
    assert answer.token_ids == tuple(LONG[: first + size]), "the token that completes the match stays"
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, stop)
    assert metrics.emitted == first + size


def test_stop_token_ids() -> None:
    stop = LONG[4]
    answer, _ = speculate(replace(GREEDY, max_tokens=30, stop_token_ids=[stop]))
    assert answer.token_ids == tuple(LONG[: LONG.index(stop) + 1])
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, stop)
    assert answer.text == TEXT[: LONG.index(stop)]


def test_ignore_eos_ignores_the_models_ends_only() -> None:
    params = replace(GREEDY, max_tokens=20, ignore_eos=True)
    assert speculate(params, LONG[2])[0].token_ids == tuple(LONG[:20])
    answer, _ = speculate(replace(params, stop_token_ids=[LONG[4]]), LONG[2])
    assert answer.stop_reason == LONG[4]


def test_ends_that_are_ignored_leave_something_to_generate() -> None:
    """Where every other token is held back, the model's own end is all there is."""
    eos = 3
    engine = make_engine(tokenizer=LetterTokenizer(eos))
    params = replace(GREEDY, max_tokens=2, min_tokens=2, stop_token_ids=[t for t in range(VOCAB) if t != eos])
    with pytest.raises(RequestError, match="leaves nothing to generate"):
        engine.add([1], params)
    assert run_one(engine, [1], replace(params, ignore_eos=True)).outputs[0].token_ids == (eos, eos)


@pytest.mark.parametrize("least", [1, 4, 5, 12])
def test_min_tokens_holds_ends_back(least: int) -> None:
    eos, stop = LONG[2], LONG[0]
    answer, _ = speculate(replace(GREEDY, max_tokens=20, min_tokens=least, stop_token_ids=[stop]), eos)
    assert not {eos, stop} & set(answer.token_ids[:least])
    assert len(answer.token_ids) > least


def test_min_tokens_holds_stop_strings_back_too() -> None:
    answer, _ = speculate(replace(GREEDY, max_tokens=20, min_tokens=9, stop=list("abcdefghijkl")))
    assert answer.token_ids == tuple(LONG[:9])
    assert answer.text == TEXT[:8]
    assert answer.stop_reason == TEXT[8]


def test_the_target_as_its_own_drafter_accepts_all_despite_min_tokens() -> None:
    eos = LONG[2]
    drafter = ModelDrafter(ToyRunner(MODEL, 2, 64), VOCAB, frozenset({eos}))
    params = replace(GREEDY, max_tokens=20, min_tokens=10)
    metrics = run_one(make_engine(drafter, 4, tokenizer=LetterTokenizer(eos)), PROMPT, params).metrics
    assert metrics.accepted == metrics.drafted > 0


def test_a_draft_of_nothing_but_ends_of_text() -> None:
    eos = LONG[7]
    engine = make_engine(oracle([eos] * 60), 5, tokenizer=LetterTokenizer(eos))
    answer = run_one(engine, PROMPT, replace(GREEDY, max_tokens=30)).outputs[0]
    assert answer.token_ids == tuple(LONG[: LONG.index(eos) + 1])


def writer(text: str) -> ToyModel:
    """A model that answers "\\n" with ``text`` and its end, whatever precedes it, byte by byte."""
    ids = [10, *text.encode(), ByteTokenizer.eos_id]
    context = len(ids)
    table = {tuple(ids[:i]): [50.0 * (token == ids[i]) for token in range(257)] for i in range(1, len(ids))}
    return ToyModel(257, context, table=table)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [("na\u00efve \U0001f642 end", "\U0001f642", "na\u00efve "), ("\u00e9\u00e9STOP", "\u00e9S", "\u00e9")],
)
def test_stop_strings_that_straddle_multi_byte_characters(k: int, text: str, stop: str, shown: str) -> None:
    ids = [10, *text.encode(), ByteTokenizer.eos_id]
    runner = ToyRunner(writer(text), 2, 64)
    engine = make_engine(oracle(ids), k, runner=runner, tokenizer=ByteTokenizer())
    answer = run_one(engine, [10], replace(GREEDY, max_tokens=40, stop=stop)).outputs[0]
    assert (answer.text, answer.stop_reason) == (shown, stop)
    assert bytes(answer.token_ids) == (shown + stop).encode()
    unstopped = make_engine(oracle(ids), k, runner=ToyRunner(writer(text), 2, 64), tokenizer=ByteTokenizer())
    assert run_one(unstopped, [10], replace(GREEDY, max_tokens=40)).outputs[0].text == text
