"""Transformers as a subject: the same tokens as its own ``generate``, told round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.bench import transformers_subject
from outrider.bench.record import Acceptance, Answer, Settings, Task
from outrider.bench.subject import Request, Subject, prompt_tokens
from outrider.bench.transformers_subject import TransformersSubject, _Watch
from outrider.errors import CapabilityError, ConfigError, OutriderError

GREEDY = Settings(max_tokens=24, ignore_eos=True)
WORDS = [*"abcdefghijklmnopqrstuvwxyz ", *(f"{a}{b}" for a in "abcd" for b in "efgh")]


def write_checkpoint(folder: Path, words: list[str], eos: str | None = "<end>") -> Path:
    """A random Llama of a few thousand weights, and a tokenizer whose tokens are the letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocab = {word: i for i, word in enumerate(["<end>", "<unk>", *words])}
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=len(vocab),
        max_position_embeddings=256,
        eos_token_id=0,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), WORDS)


@pytest.fixture(scope="module")
def plain(folder: Path) -> TransformersSubject:
    return TransformersSubject("plain", str(folder), "float32")


@pytest.fixture(scope="module")
def lookup(folder: Path) -> TransformersSubject:
    return TransformersSubject("lookup", str(folder), "float32", prompt_lookup=4)


@pytest.fixture(scope="module")
def assisted(folder: Path) -> TransformersSubject:
    return TransformersSubject("assisted", str(folder), "float32", assistant=str(folder))


def request(prompt: str = "hello hello", **more: Any) -> Request:
    return Request(Task("t", "c", prompt, chat=False), **more)


def one(subject: Subject, settings: Settings = GREEDY, **more: Any) -> Answer:
    (answer,) = subject.serve([request(**more)], settings)
    assert answer.error is None
    return answer


def test_plain_is_generate_one_token_at_a_time(plain: TransformersSubject, folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    answer = one(plain)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = [2 + WORDS.index(letter) for letter in "hello hello"]
    theirs = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=24, eos_token_id=None, pad_token_id=0
    )
    # The checkpoint's own end is in its generation config, so theirs may stop where ours was told not to.
    tokens = theirs[0, len(prompt) :].tolist()
    assert answer.token_ids is not None
    assert list(answer.token_ids[: len(tokens)]) == tokens
    assert (len(answer.token_ids), answer.prompt_tokens, answer.finish_reason) == (24, 11, "length")
    assert [arrival.tokens for arrival in answer.arrivals] == [1] * 24
    assert answer.acceptance is None


@pytest.mark.parametrize("mode", ["lookup", "assisted"])
def test_rounds_arrive_together_and_say_the_same(plain: TransformersSubject, mode: str, request: Any) -> None:
    subject = request.getfixturevalue(mode)
    answer = one(subject)
    assert answer.token_ids == one(plain).token_ids
    assert sum(arrival.tokens for arrival in answer.arrivals) == 24
    seconds = [arrival.seconds for arrival in answer.arrivals]
    assert seconds == sorted(seconds)
    acceptance = answer.acceptance
    assert acceptance is not None
    assert (acceptance.rounds, acceptance.emitted) == (len(answer.arrivals), 24)
    assert acceptance.accepted == 24 - acceptance.rounds
    assert acceptance.accepted <= acceptance.drafted


def test_a_model_that_assists_itself_is_always_right(assisted: TransformersSubject) -> None:
    acceptance = one(assisted).acceptance
    assert acceptance is not None
    # An assistant this unsure of itself drafts one token a round, and the limit cuts the last round at most.
    assert acceptance.drafted - acceptance.accepted <= 1
    assert acceptance.drafted >= 11


def test_the_watch_counts_drafts_and_not_what_an_assistant_asks() -> None:
    watch = _Watch(0.0)
    scores = torch.zeros(1, 3)

    def positions(first: int, count: int) -> None:
        for length in range(first, first + count):
            assert watch(torch.zeros(1, length), scores) is scores

    watch.put(torch.zeros(1, 5))  # the prompt
    positions(5, 3)  # an assistant drafts three
    positions(5, 4)  # the target judges them
    watch.put(torch.zeros(1, 2))
    positions(7, 1)  # no draft
    watch.put(torch.zeros(1, 1))
    watch.end()
    assert watch.rounds == [Acceptance.of_round(3, 1, 2), Acceptance.of_round(0, 0, 1)]
    assert [arrival.tokens for arrival in watch.arrivals] == [2, 1]


def test_end_of_text_stops_unless_ignored(
    plain: TransformersSubject, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = one(plain).token_ids
    assert whole is not None
    third = whole[2]
    stop = whole.index(third) + 1
    monkeypatch.setattr(plain._tokenizer, "_eos_ids", frozenset({third}))
    ended = one(plain, Settings(max_tokens=24))
    assert (ended.token_ids, ended.finish_reason) == (whole[:stop], "stop")
    assert ended.tokens == stop
    assert one(plain).token_ids == whole


def test_a_seed_repeats_and_leaves_the_stream_of_others_alone(plain: TransformersSubject) -> None:
    hot = Settings(temperature=2.0, max_tokens=24, ignore_eos=True)
    before = torch.get_rng_state()
    first, again, other = (one(plain, hot, seed=seed).token_ids for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert torch.equal(before, torch.get_rng_state())


def test_a_task_has_its_own_limit(plain: TransformersSubject) -> None:
    task = Task("t", "c", "hello", chat=False, max_tokens=3)
    (answer,) = plain.serve([Request(task)], GREEDY)
    assert answer.tokens == 3


def test_what_fails_loses_no_neighbour(plain: TransformersSubject) -> None:
    # No chat template, no tokens, and text that is no Unicode.
    bad = [Request(Task("t", "c", "hi", chat=True)), request(""), request("\ud800")]
    answers = plain.serve([request(), *bad, request()], GREEDY)
    assert [answer.error is None for answer in answers] == [True, False, False, False, True]
    assert "chat template" in str(answers[1].error)
    assert all("\n" not in str(answer.error) for answer in answers)
    assert answers[0].token_ids == answers[-1].token_ids


def test_time_in_the_queue_counts(plain: TransformersSubject) -> None:
    # The second was sent with the first and had to wait for it: it cannot arrive sooner.
    first, second = plain.serve([request(), request()], GREEDY)
    assert second.arrivals[0].seconds > first.arrivals[-1].seconds


def test_requests_are_served_in_the_order_of_their_times(
    plain: TransformersSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def watched(task: Task, tokenizer: Any) -> list[int]:
        order.append(task.prompt)
        return prompt_tokens(task, tokenizer)

    monkeypatch.setattr(transformers_subject, "prompt_tokens", watched)
    late, early = plain.serve([request("late", at=0.01), request("early")], GREEDY)
    assert order == ["early", "late"]
    assert (late.prompt_tokens, early.prompt_tokens) == (4, 5)


@pytest.fixture
def other_words(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, WORDS[::-1])


def test_an_assistant_must_mean_the_same(folder: Path, other_words: Path) -> None:
    with pytest.raises(CapabilityError, match="another vocabulary"):
        TransformersSubject("it", str(folder), "float32", assistant=str(other_words))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt_lookup": 4, "assistant": "x"}, "not by both"),
        ({"prompt_lookup": 0}, "prompt_lookup=0 must be 1 or more"),
        ({"dtype": "float8"}, "dtype='float8'"),
    ],
)
def test_settings_are_checked_before_anything_is_read(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransformersSubject("it", "/no/such/model", **settings)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutriderError):
        TransformersSubject("it", str(tmp_path))


def test_details_say_how_it_is_set_up(lookup: TransformersSubject, folder: Path) -> None:
    details = lookup.details()
    assert (details["engine"], details["prompt_lookup"], details["model"]) == ("transformers", 4, str(folder))
    assert lookup.name == "lookup"
