"""``benchmarks/llama_cpp.py``: the same weights for both, fair ratios, and a child that answers or says why not."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from llama_cpp import Stored, Turn, agreement, idle_share, llama_process, measure, ratio, stored_as

from outrider.errors import ConfigError

TOKENS = ["a", "b", "ä"]
FAKE = """
class LlamaModel:
    def __init__(self, path, threads, positions):
        if path == "missing":
            raise ValueError("no such file")
    def answer(self, prompt, count):
        return {"tokens": [sum(prompt)] * count, "prefill": 0.5, "decode": 0.25}
import types
sys.modules["llama_cpp"] = types.SimpleNamespace(
    __version__="1.2", llama_log_callback=lambda call: call, llama_log_set=lambda *_: None,
    llama_print_system_info=lambda: b"CPU : AVX")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A GGUF file with metadata of several types, a packed matrix, a dense one and a vector."""
    random = np.random.default_rng(0)
    path = tmp_path / "model" / "tiny.gguf"
    path.parent.mkdir()
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_float32("llama.rope.freq_base", 1e5)
    writer.add_token_list(TOKENS)
    writer.add_key_value("tokenizer.ggml.token_type", [1, 3, 1], GGUFValueType.ARRAY, GGUFValueType.INT32)
    writer.add_file_type(3)
    packed = quantize(random.standard_normal((4, 64), np.float32), GGMLQuantizationType.Q4_1)
    writer.add_tensor("packed.weight", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.add_tensor("dense.weight", random.standard_normal((6, 32), np.float32))
    writer.add_tensor("norm.weight", random.standard_normal(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(path).tensors}


@pytest.mark.parametrize(("kind", "file_type", "error"), [("BF16", 32, 2.0**-8), ("Q8_0", 7, 1 / 254)])
def test_matrices_are_stored_again_and_the_rest_is_copied(
    source: Path, tmp_path: Path, kind: Stored, file_type: int, error: float
) -> None:
    path = stored_as(source, kind, tmp_path / "out")
    reader, before, after = GGUFReader(path), values(source), values(path)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds == {"packed.weight": kind, "dense.weight": kind, "norm.weight": "F32"}
    np.testing.assert_array_equal(after["norm.weight"], before["norm.weight"])
    for name in ("packed.weight", "dense.weight"):
        assert after[name].shape == before[name].shape
        # bf16 keeps 8 bits of each value, Q8_0 steps of 1/127 of the largest
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=np.abs(before[name]).max() * error * 1.01)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["general.file_type"] == file_type
    assert fields["tokenizer.ggml.tokens"] == TOKENS
    assert fields["tokenizer.ggml.token_type"] == [1, 3, 1]
    assert fields["llama.rope.freq_base"] == pytest.approx(1e5)


def test_a_file_is_written_once_and_again_when_its_source_changes(source: Path, tmp_path: Path) -> None:
    path = stored_as(source, "BF16", tmp_path / "out")
    path.write_bytes(b"kept")
    assert stored_as(source, "BF16", tmp_path / "out").read_bytes() == b"kept"
    os.utime(source, (path.stat().st_mtime + 5,) * 2)
    assert stored_as(source, "BF16", tmp_path / "out").read_bytes() != b"kept"


def test_everybody_takes_turns_and_the_first_round_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "PAUSE", 0.0)
    calls: list[str] = []

    def contender(name: str) -> llama_cpp.Contender:
        def run(prompt: Sequence[int]) -> Turn:
            calls.append(name)
            return Turn(tuple(prompt), 1.0, float(len(calls)))

        return run

    turns = measure({"a": contender("a"), "b": contender("b")}, [1, 2], 2)
    assert calls == ["a", "b"] * 3
    assert [turn.decode for turn in turns["a"]] == [3.0, 5.0]


def test_ratio_compares_within_rounds() -> None:
    """Medians of 3 and 4 seconds belong to different rounds, so their quotient would mean nothing."""

    def turns(*seconds: float) -> list[Turn]:
        return [Turn((1, 2, 3), 1.0, each) for each in seconds]

    assert ratio({"a": turns(1, 20, 3), "b": turns(2, 4, 60)}, "a", "b") == 2
    assert turns(4)[0].tokens_per_second == 0.5


def test_idle_share_is_of_everybodys_time() -> None:
    turns = {"a": [Turn((1,), 1.0, 2.0)], "b": [Turn((1,), 2.0, 5.0, 0.5)]}
    assert idle_share(turns) == 0.05


@pytest.mark.parametrize(("other", "same"), [([1, 2, 3], 3), ([1, 5, 3], 1), ([0, 2, 3], 0)])
def test_agreement_counts_up_to_the_first_difference(other: list[int], same: int) -> None:
    assert agreement([1, 2, 3], other) == same


def test_child_loads_answers_and_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real child program, with a model of ours in place of llama.cpp's."""
    real = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda part: FAKE if part is llama_cpp.LlamaModel else real(part))
    monkeypatch.setattr(llama_cpp, "PAUSE", 0.0)
    with llama_process(Path(sys.executable)) as llama:
        loaded = llama.ask(load="file", threads=1, positions=8)
        assert (loaded["version"], loaded["built"]) == ("1.2", "CPU : AVX")
        turn = llama_cpp.llama_contender(llama, Path("file"))([3, 4])
        assert (turn.tokens, turn.prefill, turn.decode) == ((7,) * llama_cpp.NEW_TOKENS, 0.5, 0.25)
        with pytest.raises(ConfigError, match="no such file"):
            llama.ask(load="missing", threads=1, positions=8)
    assert llama.process.poll() is not None


def test_child_without_llama_cpp_is_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "PRELUDE", llama_cpp.PRELUDE + "sys.modules['llama_cpp'] = None\n")
    with (
        llama_process(Path(sys.executable)) as llama,
        pytest.raises(ConfigError, match=r"--llama-python .*llama_cpp.*llama-cpp-python installed"),
    ):
        llama.ask(load="file", threads=1, positions=8)


def test_a_path_that_is_no_python_is_a_users_mistake(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"none: No such file or directory; give the path"),
        llama_process(tmp_path / "none"),
    ):
        pass
