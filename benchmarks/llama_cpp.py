"""Is plain greedy decoding at batch 1 as fast as llama.cpp's, with the same weights on the same threads?

    python -m venv /tmp/llama
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" /tmp/llama/bin/pip install llama-cpp-python    # compiles: minutes
    python benchmarks/llama_cpp.py --llama-python /tmp/llama/bin/python                            # under a minute

llama.cpp lives in a Python environment of its own and must be compiled for this processor: prebuilt wheels leave out
AVX-512, and would lose for that reason alone. It runs in a child process. The contenders take turns, round by round;
whoever is not on turn sleeps, which is checked. A GGUF model is unpacked and written again as BF16 and as Q8_0; both
read these files, and Outrider's int8 is quantised from BF16 as it loads. A turn is a prefill (shown apart) and 64
tokens. Ratios are medians of each round's own. Prints a card, a table and one JSON line. Run it on a quiet machine:
threads that wait for each other lose more than their share to others, and llama.cpp's more than ours.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from prompts import BUILT_IN

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError, OutriderError
from outrider.hardware import processor
from outrider.kernels import THREADS_VARIABLE, require
from outrider.models.cache import cache_folder, scratch_folder
from outrider.models.resolve import resolve

Stored = Literal["BF16", "Q8_0", "Q4_0"]

PROMPT_TOKENS = 256
NEW_TOKENS = 64
# Threads that wait for work spin a little before they sleep; nobody starts while another's threads do.
PAUSE = 0.05
THEIRS: dict[str, Stored] = {"llama.cpp BF16": "BF16", "llama.cpp Q8_0": "Q8_0"}
OURS: dict[str, tuple[Stored, str | None]] = {
    "Outrider bf16": ("BF16", None),
    "Outrider int8-dynamic": ("BF16", "int8-dynamic"),
    "Outrider int8": ("BF16", "int8"),
    "Outrider Q8_0": ("Q8_0", "gguf"),
}
"""Contender: the file it reads, and how it stores what it reads."""
ORDER = ("Outrider bf16", "llama.cpp BF16", "Outrider int8-dynamic", "llama.cpp Q8_0", "Outrider int8", "Outrider Q8_0")
# llama.cpp's Q8_0 products round activations to int8, as int8-dynamic does; the other two keep them in bf16.
RATIOS = {
    "bf16_vs_llama_cpp_bf16": ("Outrider bf16", "llama.cpp BF16"),
    "int8_vs_llama_cpp_q8_0": ("Outrider int8-dynamic", "llama.cpp Q8_0"),
    "int8_bf16_activations_vs_llama_cpp_q8_0": ("Outrider int8", "llama.cpp Q8_0"),
    "q8_0_bf16_activations_vs_llama_cpp_q8_0": ("Outrider Q8_0", "llama.cpp Q8_0"),
}
"""Figure: contender, opponent."""


@dataclass(frozen=True)
class Turn:
    """One answer: its tokens, seconds until the first of them, and seconds for all others together."""

    tokens: tuple[int, ...]
    prefill: float
    decode: float
    idle_cpu: float = 0.0
    """CPU seconds spent by whoever should have slept, in this turn and, on the child's side, since its last one."""

    @property
    def tokens_per_second(self) -> float:
        return (len(self.tokens) - 1) / self.decode

    @property
    def seconds(self) -> float:
        return self.prefill + self.decode


Contender = Callable[[Sequence[int]], Turn]


# --- the child's program, sent as source: llama.cpp's environment has neither this file's imports nor Outrider --------

PRELUDE = "from __future__ import annotations\nimport importlib, json, sys, time\nfrom typing import Any\n"


class LlamaModel:
    """A GGUF file and one context, driven through llama.cpp's C API."""

    def __init__(self, path: str, threads: int, positions: int) -> None:
        self.api: Any = importlib.import_module("llama_cpp")
        settings = self.api.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model = self.api.llama_model_load_from_file(path.encode(), settings)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {path}")
        wanted = self.api.llama_context_default_params()
        wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = positions
        wanted.n_threads = wanted.n_threads_batch = threads
        self.context = self.api.llama_init_from_model(self.model, wanted)
        if not self.context:
            raise ValueError(f"llama.cpp cannot make a context of {positions} tokens for {path}")
        self.vocab_size = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))

    def next_token(self, tokens: list[int]) -> int:
        """Append tokens; the most likely one to follow."""
        numpy: Any = importlib.import_module("numpy")
        array = (self.api.llama_token * len(tokens))(*tokens)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(array, len(tokens))) != 0:
            raise ValueError(f"llama.cpp cannot decode {len(tokens)} tokens")
        logits_V = self.api.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(logits_V, (self.vocab_size,)).argmax())

    def answer(self, prompt: list[int], count: int) -> dict[str, Any]:
        """Greedy tokens, and seconds until the first and from there to the last."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        start = time.perf_counter()
        tokens = [self.next_token(prompt)]
        first = time.perf_counter()
        while len(tokens) < count:
            tokens.append(self.next_token(tokens[-1:]))
        return {"tokens": tokens, "prefill": first - start, "decode": time.perf_counter() - first}


def serve() -> None:
    """A JSON request a line on stdin, an answer a line on stdout, until stdin closes; asleep in between."""
    models: dict[str, LlamaModel] = {}
    settled = time.process_time()
    for line in sys.stdin:
        idle_cpu = time.process_time() - settled
        request = json.loads(line)
        try:
            reply: dict[str, Any] = {}
            if "load" in request:
                api: Any = importlib.import_module("llama_cpp")
                models["quiet"] = api.llama_log_callback(lambda *_: None)  # must outlive the library
                api.llama_log_set(models["quiet"], None)
                models[request["load"]] = LlamaModel(request["load"], request["threads"], request["positions"])
                reply = {"version": api.__version__, "built": api.llama_print_system_info().decode()}
            else:
                reply = models[request["model"]].answer(request["prompt"], request["count"])
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply | {"idle_cpu": idle_cpu}), flush=True)
        time.sleep(request["pause"])
        settled = time.process_time()


# --- llama.cpp, seen from here ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Llama:
    """A running child of this Python."""

    python: Path
    process: subprocess.Popen[str]

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, wait for the answer. Raises ``ConfigError`` for one that the child could not fulfil."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(json.dumps(request | {"pause": PAUSE}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        reply: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in reply:
            raise ConfigError(
                f"--llama-python {self.python}: {reply['error']}; "
                "it must be a Python that has llama-cpp-python installed"
            )
        return reply


@contextmanager
def llama_process(python: Path) -> Iterator[Llama]:
    """Start the child; it is gone when the block ends, and ends by itself when this process dies."""
    program = PRELUDE + inspect.getsource(LlamaModel) + inspect.getsource(serve) + "serve()\n"
    # Isolated: a folder with this very file on the path would hide the llama_cpp package.
    command = [str(python), "-I", "-c", program]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise ConfigError(f"--llama-python {python}: {error.strerror}; give the path of a Python") from error
    with process:
        try:
            yield Llama(python, process)
        finally:
            process.kill()


def llama_contender(llama: Llama, path: Path) -> Contender:
    """A file that the child has loaded."""

    def run(prompt: Sequence[int]) -> Turn:
        before = time.process_time()
        reply = llama.ask(model=str(path), prompt=list(prompt), count=NEW_TOKENS)
        idle_cpu = reply["idle_cpu"] + time.process_time() - before
        return Turn(tuple(reply["tokens"]), reply["prefill"], reply["decode"], idle_cpu)

    return run


def outrider_model(path: Path, quantization: str | None) -> LLM:
    """Plain decoding, one sequence at a time."""
    return LLM(
        str(path),
        dtype="bfloat16",
        quantization=quantization,
        speculative_config=None,
        max_num_seqs=1,
        max_model_len=PROMPT_TOKENS + NEW_TOKENS,
    )


def outrider_contender(llm: LLM) -> Contender:
    """A model through the public API."""
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)

    def run(prompt: Sequence[int]) -> Turn:
        (output,) = llm.generate([list(prompt)], params)
        metrics = output.metrics
        assert metrics.ttft is not None
        assert metrics.tpot is not None
        return Turn(output.outputs[0].token_ids, metrics.ttft, metrics.tpot * (NEW_TOKENS - 1))

    return run


# --- the same weights for both ----------------------------------------------------------------------------------------


def stored_as(source: Path, kind: Stored, folder: Path) -> Path:
    """The model with all matrices stored as ``kind``, written at the first call."""
    target = folder / f"{source.parent.name}-{kind}.gguf"
    if not target.is_file() or target.stat().st_mtime < source.stat().st_mtime:
        with scratch_folder(folder) as scratch:
            write_gguf(source, kind, scratch / target.name).replace(target)
    return target


def write_gguf(source: Path, kind: Stored, target: Path) -> Path:
    """Copy a GGUF file, its matrices unpacked and stored as ``kind``; vectors and metadata stay as they are."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    writer.add_file_type(LlamaFileType[f"MOSTLY_{kind}"])
    wanted = GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        data, stored = tensor.data, tensor.tensor_type
        if len(tensor.shape) > 1 and stored != wanted:
            data, stored = quantize(dequantize(data, stored), wanted), wanted
        writer.add_tensor(tensor.name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def text_prompt(llm: LLM) -> list[int]:
    """Tokens of ordinary text, so that greedy answers have something to agree on."""
    return llm.loaded.tokenizer.encode("\n".join(BUILT_IN * 4))[:PROMPT_TOKENS]


def measure(contenders: dict[str, Contender], prompt: Sequence[int], rounds: int) -> dict[str, list[Turn]]:
    """Everybody's turns, round by round; the first round warms up and is left out."""
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            result = run(prompt)
            time.sleep(PAUSE)
            if turn > 0:
                turns[name].append(result)
    return turns


def ratio(turns: dict[str, list[Turn]], name: str, opponent: str) -> float:
    """How many times as fast: the median of each round's own ratio, so that slow rounds disturb nobody."""
    pairs = zip(turns[name], turns[opponent], strict=True)
    return statistics.median(ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs)


def agreement(answer: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two answers have in common before they part."""
    same = [a == b for a, b in zip(answer, other, strict=True)]
    return same.index(False) if False in same else len(same)


def idle_share(turns: dict[str, list[Turn]]) -> float:
    """CPU time of whoever should have slept, as a share of the time measured; near 0, or the figures are worthless."""
    every = [turn for each in turns.values() for turn in each]
    return sum(turn.idle_cpu for turn in every) / sum(turn.seconds for turn in every)


def figures(turns: dict[str, list[Turn]]) -> dict[str, Any]:
    """The figures that are watched from one version to the next, and what they are made of."""
    return {name: round(ratio(turns, *pair), 3) for name, pair in RATIOS.items()} | {
        "tokens_per_second": {name: round(_speed(each), 1) for name, each in turns.items()},
        "prefill_tokens_per_second": {name: round(_prefill_speed(each)) for name, each in turns.items()},
        "agreed_tokens": {name: agreement(*answers(turns, *pair)) for name, pair in RATIOS.items()},
        "idle_share": round(idle_share(turns), 3),
    }


def answers(turns: dict[str, list[Turn]], name: str, opponent: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What two contenders said; greedily, every round says the same."""
    return turns[name][0].tokens, turns[opponent][0].tokens


def _speed(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.tokens_per_second for turn in turns)


def _prefill_speed(turns: Sequence[Turn]) -> float:
    return statistics.median(PROMPT_TOKENS / turn.prefill for turn in turns)


def print_card(model: str, rounds: int, threads: int, loaded: dict[str, Any]) -> None:
    """What was measured, and on what."""
    cpu = processor()
    print(f"model      {model}, {PROMPT_TOKENS} tokens of prompt, {NEW_TOKENS} greedy tokens, batch 1")
    print(f"processor  {cpu.model}, {threads} threads each; medians of {rounds} rounds, everybody in turn")
    print(f"load       {os.getloadavg()[0]:.1f} processes over the last minute, loading included; 1 or so is quiet")
    print(f"Outrider   native kernels, {require('this benchmark').level}")
    print(f"llama.cpp  llama-cpp-python {loaded['version']}: {' '.join(loaded['built'].split())}")


def print_table(turns: dict[str, list[Turn]]) -> None:
    """Speeds, then who beats whom."""
    print(f"\n{'':<24} {'tokens/s':>9} {'ms/token':>9} {'prefill tokens/s':>17}")
    for name, each in turns.items():
        speed = _speed(each)
        print(f"{name:<24} {speed:9.1f} {1e3 / speed:9.2f} {_prefill_speed(each):17.0f}")
    print(f"\n{'':<46} {'times':>6} {'same tokens':>12}")
    for name, opponent in RATIOS.values():
        same = agreement(*answers(turns, name, opponent))
        print(f"{name + ' / ' + opponent:<46} {ratio(turns, name, opponent):6.2f} {same:>9}/{NEW_TOKENS}")
    print(f"\nCPU time of whoever should have slept: {idle_share(turns):.1%} of the time measured")


def run(args: argparse.Namespace) -> None:
    """Write the files, load everything, measure, print."""
    source = resolve(args.model).gguf
    if source is None:
        raise ConfigError(f"--model {args.model}: llama.cpp reads GGUF files; give a demo model or a .gguf file")
    os.environ[THREADS_VARIABLE] = str(args.threads)
    torch.set_num_threads(args.threads)
    folder = args.folder or cache_folder() / "benchmarks"
    with llama_process(args.llama_python) as llama:
        files = {kind: stored_as(source, kind, folder) for kind in THEIRS.values()}
        for path in files.values():
            loaded = llama.ask(load=str(path), threads=args.threads, positions=PROMPT_TOKENS + NEW_TOKENS)
        models = {name: outrider_model(files[kind], quantization) for name, (kind, quantization) in OURS.items()}
        print_card(args.model, args.rounds, args.threads, loaded)
        theirs = {name: llama_contender(llama, files[kind]) for name, kind in THEIRS.items()}
        ours = {name: outrider_contender(llm) for name, llm in models.items()}
        turns = measure(
            {name: (ours | theirs)[name] for name in ORDER}, text_prompt(models["Outrider bf16"]), args.rounds
        )
    print_table(turns)
    record = {"benchmark": "llama_cpp", "model": args.model, "rounds": args.rounds, "threads": args.threads}
    record |= {"processor": asdict(processor()), "llama_cpp": {k: loaded[k] for k in ("version", "built")}}
    print(json.dumps(record | figures(turns)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--llama-python", type=Path, required=True, help="Python that has llama-cpp-python")
    parser.add_argument("--model", default="smollm2-135m", help="demo model or GGUF file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=processor().cores)
    parser.add_argument("--folder", type=Path, help="where BF16 and Q8_0 files go (default: the cache)")
    args = parser.parse_args()
    try:
        run(args)
    except OutriderError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
