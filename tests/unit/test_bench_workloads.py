"""Workloads: the same tasks for the same name, seed and version; and files that cannot be used say why."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.bench.record import Task
from outrider.bench.workloads import WORKLOADS, check_fits, load_workload
from outrider.errors import ConfigError

# Of every prompt with seed 0: who changes one must raise builtin_workloads.VERSION, or records lie about each other.
GOLDEN = {
    "chat": "c01b7dba31c0",
    "json": "afdad681496b",
    "copy": "6d324878fb2b",
    "creative": "079d36468b5c",
    "long-1k": "13e94a072cc8",
    "long-2k": "bc1361c00a1a",
    "long-4k": "88fdbc60c00a",
    "long-8k": "0eed5a6b9dfd",
}


def digest(tasks: tuple[Task, ...]) -> str:
    return hashlib.sha256("\0".join(f"{task.id}\0{task.prompt}" for task in tasks).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_version_names_the_same_prompts_for_ever(name: str) -> None:
    workload = load_workload(name)
    assert (workload.name, workload.version) == (name, "1, seed 0")
    assert digest(workload.tasks) == GOLDEN[name]


@pytest.mark.parametrize("name", WORKLOADS)
def test_tasks_are_different_and_another_seed_makes_others(name: str) -> None:
    workload = load_workload(name)
    assert len(workload.tasks) == (8 if name.startswith("long") else 40)
    assert len({task.prompt for task in workload.tasks}) == len(workload.tasks)
    assert {task.category for task in workload.tasks} == {name}
    other = load_workload(name, seed=1)
    assert other.version != workload.version
    assert [task.prompt for task in other.tasks] != [task.prompt for task in workload.tasks]


def test_ids_are_unique_over_all_workloads() -> None:
    ids = Counter(task.id for name in WORKLOADS for task in load_workload(name).tasks)
    assert set(ids.values()) == {1}


@pytest.mark.parametrize(
    ("name", "tokens"), [("long-1k", 1000), ("long-2k", 2000), ("long-4k", 4000), ("long-8k", 7400)]
)
def test_long_prompts_are_about_as_long_as_they_say(name: str, tokens: int) -> None:
    for task in load_workload(name).tasks:
        assert len(task.prompt.split()) * 1.6 == pytest.approx(tokens, rel=0.15)


def test_copying_and_extraction_ask_about_what_they_show() -> None:
    for task in load_workload("copy").tasks:
        instruction, _, text = task.prompt.partition("\n\n")
        words = instruction.replace(",", "").replace(".", "").split()
        assert any(text.count(word) >= 3 for word in words if len(word) > 3), "what is to be replaced is there"
    for task in load_workload("json").tasks:
        assert "JSON" in task.prompt
        assert "crowns" in task.prompt


def test_a_prompt_that_the_model_cannot_hold_is_an_error() -> None:
    workload = load_workload("long-1k", limit=2)
    check_fits(workload, lambda task: 1000, 1100, 100)
    with pytest.raises(ConfigError, match=r"'long-1k'.*long-1k/0 has 1000 tokens, 1101 with its answer.*is 1100"):
        check_fits(workload, lambda task: 1000, 1100, 101)


# --- files ----------------------------------------------------------------------------------------------------


def write(folder: Path, *rows: object, name: str = "mine.jsonl") -> str:
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_every_kind_of_row(tmp_path: Path) -> None:
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        {"task_id": "HumanEval/3", "prompt": "def f():\n", "canonical_solution": "ignored"},
        {"prompt": "Once"},
        {"messages": [{"role": "user", "content": "Hello"}], "category": "small talk", "max_tokens": 7},
    ]
    workload = load_workload(write(tmp_path, *rows))
    assert workload.tasks == (
        Task("mine/81", "writing", "first"),
        Task("mine/HumanEval/3", "code", "def f():\n", chat=False),
        Task("mine/3", "mine", "Once", chat=False),
        Task("mine/4", "small talk", "Hello", chat=True, max_tokens=7),
    )
    assert workload.name == "mine.jsonl"


def test_a_files_version_is_its_bytes(tmp_path: Path) -> None:
    one = load_workload(write(tmp_path, {"prompt": "a"}))
    same = load_workload(write(tmp_path, {"prompt": "a"}, name="other.jsonl"), seed=5)
    changed = load_workload(write(tmp_path, {"prompt": "b"}))
    assert one.version == same.version == "sha256:" + hashlib.sha256(b'{"prompt": "a"}').hexdigest()[:16]
    assert changed.version != one.version


def test_lines_end_where_json_lines_end(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes('\ufeff{"prompt": "one\u2028line\x85"}\r\n\r\n{"prompt": "two"}\n'.encode())
    assert [(task.id, task.prompt) for task in load_workload(str(path)).tasks] == [
        ("odd/1", "one\u2028line\x85"),
        ("odd/3", "two"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows; a row is a JSON object"),
        (b"\n \n", "has no rows"),
        (b'{"prompt": "a"}\n{"prompt": ', "line 2: not valid JSON .*Expecting value at character"),
        (b"[" * 100_000, "line 1: not valid JSON"),
        (b'{"prompt": "a"}\n\xff', "line 2: not UTF-8 text .*at byte 0"),
        (b'["a"]', "line 1: a row is a JSON object .* not list"),
        (b"{}", "line 1: no 'prompt'"),
        (b'{"prompt": ""}', "'prompt' must be text that is not empty"),
        (b'{"prompt": 7}', "'prompt' must be text that is not empty, not '7'"),
        (b'{"prompt": "a", "category": 1}', "'category' must be text"),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens=0 must be"),
        (b'{"prompt": "a", "max_tokens": true}', "max_tokens=True must be"),
        (b'{"prompt": "\\ud800"}', "lone surrogate"),
        (b'{"turns": []}', "'turns' must be a list"),
        (b'{"turns": [1], "category": "c"}', "'turns' must be text"),
        (b'{"turns": ["a"]}', "no 'category'"),
        (b'{"turns": ["a"], "category": "c", "question_id": []}', "'question_id' must be text or a whole number"),
        (b'{"task_id": "t"}', "no 'prompt'"),
        (b'{"messages": []}', "'messages' must be a list of one message"),
        (b'{"messages": [{"role": "system", "content": "a"}]}', "'messages' must be"),
        (b'{"task_id": "t", "prompt": "a"}\n{"task_id": "t", "prompt": "b"}', "line 2: id 'bad/t' was there before"),
    ],
)
def test_bad_files_name_the_line_and_what_is_expected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^bad\.jsonl.*" + message) as caught:
        load_workload(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["chatt", "/nowhere/x.jsonl", "/", "a\0b", ""])
def test_what_is_neither_a_name_nor_a_file_lists_the_names(name: str) -> None:
    with pytest.raises(ConfigError, match="chat, json, copy, creative, long-1k"):
        load_workload(name)


# --- limits ---------------------------------------------------------------------------------------------------


def uneven(folder: Path) -> str:
    categories = ["a"] * 6 + ["b"] * 2 + ["c"]
    return write(folder, *[{"prompt": f"p{i}", "category": each} for i, each in enumerate(categories)])


def test_a_limit_is_spread_over_categories(tmp_path: Path) -> None:
    def taken(limit: int | None) -> str:
        return "".join(task.category for task in load_workload(uneven(tmp_path), limit=limit).tasks)

    expected = {1: "a", 2: "ab", 3: "abc", 4: "aabc", 5: "aabbc", 7: "aaaabbc", 9: "aaaaaabbc", 99: "aaaaaabbc"}
    assert {limit: taken(limit) for limit in expected} == expected
    assert taken(None) == "aaaaaabbc"


def test_a_smaller_limit_takes_some_of_the_same_tasks(tmp_path: Path) -> None:
    path = uneven(tmp_path)
    for limit in range(1, 9):
        fewer, more = ({t.id for t in load_workload(path, limit=n).tasks} for n in (limit, limit + 1))
        assert fewer < more


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="limit=0"):
        load_workload("chat", limit=0)
