"""The fixed controller, and the pairing check of drafters."""

from __future__ import annotations

import pytest

from outrider.control.fixed import FixedController
from outrider.draft import check_pair
from outrider.errors import CapabilityError, ConfigError, RequestError
from outrider.testing import ByteTokenizer, ScheduledController, StubSequence
from outrider.types import Choice, Offer, PhaseSeconds, StepTrace


@pytest.mark.parametrize("k", [0, 1, 7])
def test_every_sequence_gets_k(k: int) -> None:
    controller = FixedController(k)
    sequences = [StubSequence(i, [1]) for i in range(3)]
    controller.observe(StepTrace((), PhaseSeconds()))
    offers = [(Offer("ngram", 3), Offer("spire")), (Offer("spire"),), ()]
    preferred = [Choice(k, Offer("ngram", 3)), Choice(k, Offer("spire")), Choice()]
    assert controller.choose(sequences, lambda sequence: offers[sequence.id]) == preferred
    assert controller.choose([], lambda _: ()) == []


@pytest.mark.parametrize("k", [-1, 2.0, True, "3"])
def test_k_that_is_no_count_is_refused(k: object) -> None:
    with pytest.raises(ConfigError, match=f"num_speculative_tokens={k!r}.*0 or more"):
        FixedController(k)  # type: ignore[arg-type]


def budgets(controller: ScheduledController, sequences: list[StubSequence]) -> list[int]:
    return [choice.tokens for choice in controller.choose(sequences, lambda _: (Offer("any"),))]


def test_scheduled_budgets_are_ragged_and_go_round() -> None:
    controller = ScheduledController([0, 3, 1])
    sequences = [StubSequence(i, [1]) for i in range(2)]
    assert [budgets(controller, sequences) for _ in range(4)] == [[0, 3], [3, 1], [1, 0], [0, 3]]


def test_scheduled_budgets_from_a_rule() -> None:
    controller = ScheduledController(lambda sequence, call: sequence.id * 10 + call)
    sequences = [StubSequence(i, [1]) for i in (1, 2)]
    assert [budgets(controller, sequences) for _ in range(2)] == [[10, 20], [11, 21]]


class _OtherBytes(ByteTokenizer):
    @property
    def vocab(self) -> dict[str, int]:
        return {**super().vocab, "<0x41>": 0x42, "<0x42>": 0x41}


class _MoreBytes(ByteTokenizer):
    @property
    def vocab(self) -> dict[str, int]:
        return {**super().vocab, "<pad>": 300}


def test_a_pair_must_share_its_ids() -> None:
    check_pair(ByteTokenizer(), ByteTokenizer())
    check_pair(ByteTokenizer(), _MoreBytes())
    with pytest.raises(CapabilityError, match=r"id 65 is '<0x41>' here and '<0x42>' there.*same family"):
        check_pair(ByteTokenizer(), _OtherBytes())


def test_byte_tokenizer_round_trip() -> None:
    tokenizer = ByteTokenizer()
    text = "naïve 🙂 text"
    ids = tokenizer.encode(text)
    assert tokenizer.decode([*ids, tokenizer.eos_id]) == text
    assert tokenizer.decode(ids[:-3]).startswith("naïve 🙂 t")
    with pytest.raises(RequestError, match="lone surrogate at character 1"):
        tokenizer.encode("a\ud800")
    assert len(tokenizer.vocab) == tokenizer.vocab_size
    assert tokenizer.token_text(65) == "A"
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "hi"}])) == "user: hi\nassistant:"
