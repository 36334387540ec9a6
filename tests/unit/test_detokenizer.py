"""Tokens to text as it comes: nothing shown that is not certain, and nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.detokenizer import Detokenizer
from outrider.testing import ByteTokenizer

BYTES = ByteTokenizer()
# Enough of each kind of byte that valid, cut and impossible characters all come up.
MIX = st.lists(st.one_of(st.sampled_from([*"né🙂€�".encode()]), st.integers(0, 255)), max_size=60)


def grow(ids: list[int], prompt: str = "", stop: tuple[str, ...] = ()) -> tuple[Detokenizer, list[str], str | None]:
    """Push all ids; the detokenizer, the visible text after every token, and the stop string met, if any."""
    detokenizer, shown, found = Detokenizer(BYTES, BYTES.encode(prompt), stop), [], None
    for token in ids:
        found = detokenizer.push(token)
        shown.append(detokenizer.text[: detokenizer.visible(finished=False)])
        if found:
            break
    detokenizer.finish()
    return detokenizer, shown, found


@given(MIX, st.sampled_from(["", "é", "a longer prompt 🙂", "12"]))
def test_the_text_is_what_decoding_everything_gives(ids: list[int], prompt: str) -> None:
    detokenizer, shown, _ = grow(ids, prompt)
    assert detokenizer.text == BYTES.decode(ids)
    assert all(detokenizer.text.startswith(text) for text in shown), "what was shown is never taken back"


def test_a_character_is_held_until_it_is_whole() -> None:
    assert grow([*"a🙂b".encode()])[1] == ["a", "a", "a", "a", "a🙂", "a🙂b"]


def test_a_character_that_never_becomes_whole_is_shown_at_the_end() -> None:
    detokenizer, shown, _ = grow([*"a🙂".encode()[:-1]])
    assert shown == ["a"] * 4
    assert detokenizer.text == "a\ufffd"


def test_invalid_bytes_are_not_held_for_ever() -> None:
    detokenizer, shown, _ = grow([0xFF] * 100)
    assert len(shown[50]) > 30
    assert detokenizer.text == "\ufffd" * 100


@pytest.mark.parametrize("invalid", range(10, 40))
def test_a_valid_character_after_invalid_bytes_survives(invalid: int) -> None:
    assert grow([0xFF] * invalid + [*"€🙂".encode()])[0].text == "\ufffd" * invalid + "€🙂"


@pytest.mark.parametrize(
    ("text", "stops", "kept", "found"),
    [
        ("hello world", ("wor",), "hello ", "wor"),
        ("aab", ("ab",), "a", "ab"),
        ("aaab", ("aab", "ab"), "a", "aab"),
        ("aXbXc", ("X",), "a", "X"),
        ("é🙂z", ("🙂",), "é", "🙂"),
        ("abc", ("abcd", "zz"), "abc", None),
        ("STOP", ("STOP",), "", "STOP"),
    ],
)
def test_the_text_is_cut_before_a_stop_string(text: str, stops: tuple[str, ...], kept: str, found: str | None) -> None:
    detokenizer, shown, met = grow(BYTES.encode(text), stop=stops)
    assert (detokenizer.text, met) == (kept, found)
    assert all(kept.startswith(each) for each in shown), "no part of a stop string is ever shown"


def test_a_possible_start_of_a_stop_string_waits() -> None:
    assert grow(BYTES.encode("xab-abd"), stop=("abc", "b-b"))[1] == ["x", "x", "x", "xa", "xab-", "xab-", "xab-abd"]


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    assert grow(BYTES.encode("b c"), prompt="aa", stop=("ab", "aa"))[2] is None


def test_an_unwatched_stop_string_passes_but_one_that_ends_later_counts() -> None:
    detokenizer = Detokenizer(BYTES, [], ("ab",))
    assert [detokenizer.push(token, watch=False) for token in b"ab"] == [None, None]
    assert detokenizer.push(ord("c")) is None
    assert detokenizer.push(ord("a"), watch=False) is None
    assert detokenizer.push(ord("b")) == "ab"
    assert detokenizer.text == "abc"


class _SpacedWords:
    """Drops the space that starts a text, as SentencePiece tokenizers do."""

    def decode(self, ids: list[int]) -> str:
        return "".join(f" w{token}" for token in ids)[1:]


def test_the_space_between_prompt_and_answer_survives() -> None:
    detokenizer = Detokenizer(_SpacedWords(), [1, 2], ())  # type: ignore[arg-type]
    for token in range(3, 30):
        detokenizer.push(token)
    assert detokenizer.text == "".join(f" w{token}" for token in range(3, 30))


def test_a_stop_found_keeps_what_was_held_back_out_of_the_text() -> None:
    from outrider.engine.sequence import Limits, Sequence
    from outrider.sampling.params import SamplingParams
    from outrider.sampling.rng import KeyedRandomness
    from outrider.verify import verifier_named

    def ended(stop: str, tokens: list[int], max_tokens: int) -> tuple[str, str | None, object]:
        params = SamplingParams(temperature=0.0, stop=stop, max_tokens=max_tokens)
        limits = Limits(frozenset(), 1000)
        sequence = Sequence(
            0, "r", 0, (65,), params, verifier_named("greedy"), KeyedRandomness(0, False), limits, ByteTokenizer()
        )
        sequence.append(tokens)
        return sequence.detokenizer.text, sequence.finish_reason, sequence.stop_reason

    # Half a character at the end becomes U+FFFD only because nothing follows; it may complete a stop string.
    assert ended("a\ufffd", [97, 0xE2], 2) == ("", "stop", "a\ufffd")
    assert ended("zz", [97, 0xE2], 2) == ("a\ufffd", "length", None)
