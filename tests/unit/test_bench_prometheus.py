"""Reading a server's ``/metrics`` page: its grammar, and what its counters say about drafts."""

from __future__ import annotations

import pytest

from outrider.bench.prometheus import Sample, acceptance_between, parse
from outrider.bench.record import Acceptance

PAGE = """
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a"} 2.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="a"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="a"} 36.0
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="a"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="a"} 15.0
vllm:spec_decode_num_accepted_tokens_created{engine="0",model_name="a"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",position="0"} 1.7e+09
vllm:generation_tokens_total{engine="0"} 99.0
"""
LLAMA = """llamacpp:spec_decode_num_drafts_total 4
llamacpp:spec_decode_num_draft_tokens_total 20
llamacpp:spec_decode_num_accepted_tokens_total 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4
"""
NOTHING = PAGE.replace("10.0", "0").replace("2.0", "0").replace("36.0", "0").replace("15.0", "0")
NOTHING = NOTHING.replace("8.0", "0").replace("5.0", "0")


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("up 1", Sample("up", {}, 1.0)),
        ("a:b_c{} 2", Sample("a:b_c", {}, 2.0)),
        ('x{a="1",b="2",} 3e2', Sample("x", {"a": "1", "b": "2"}, 300.0)),
        ('x{ a = "1" , b="2" }\t3 1700000000000', Sample("x", {"a": "1", "b": "2"}, 3.0)),
        (r'x{a="say \"}, b=\"1\" {",b="\\"} -1', Sample("x", {"a": r"say \"}, b=\"1\" {", "b": r"\\"}, -1.0)),
    ],
)
def test_what_is_a_sample(line: str, sample: Sample) -> None:
    assert parse(f"# TYPE x counter\n{line}\n") == [sample]


@pytest.mark.parametrize(
    "line", ["", "# x 1", "x", "x{", 'x{a="1} 2', "x{a=1} 2", "x one", "x NaN", "x +Inf", "<html>", "1x 2", "x 1 2 3"]
)
def test_what_is_none(line: str) -> None:
    assert parse(line) == []


def test_counters_of_all_engines_add_up_and_created_is_no_count() -> None:
    acceptance = acceptance_between(NOTHING, PAGE)
    assert acceptance == Acceptance(12, 36, 15, 27, (12, 8, 5), (8, 5, 2))
    assert acceptance.tau == 1 + 15 / 12
    assert acceptance.conditional == (8 / 12, 5 / 8, 2 / 5)


def test_only_what_came_in_between_counts() -> None:
    later = PAGE.replace(" 10.0", " 15.0").replace(" 36.0", " 44.0").replace("} 8.0", "} 9.0")
    acceptance = acceptance_between(PAGE, later)
    assert acceptance is not None
    assert (acceptance.rounds, acceptance.drafted, acceptance.accepted_at) == (5, 8, (1, 0, 0))
    # Drafts of several lengths: who reached the second position is not told.
    assert acceptance.reached_at == ()


def test_llama_server_uses_the_same_names() -> None:
    before = "\n".join(line.rsplit(" ", 1)[0] + " 0" for line in LLAMA.splitlines())
    assert acceptance_between(before, LLAMA) == Acceptance(4, 20, 6, 10, (), (4,))


@pytest.mark.parametrize("page", ["", "vllm:generation_tokens_total 5\n", PAGE.replace("drafts_total", "drafts")])
def test_a_page_without_drafts(page: str) -> None:
    assert acceptance_between(page, page) is None


def test_a_restarted_server_tells_nothing() -> None:
    assert acceptance_between(PAGE, NOTHING) is None


def test_positions_that_are_none_are_left_out() -> None:
    strange = PAGE.replace('position="1"', 'position="-1"').replace('position="2"', 'place="2"')
    acceptance = acceptance_between(NOTHING, strange)
    assert acceptance is not None
    assert acceptance.accepted_at == (8,)
