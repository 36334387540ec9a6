"""What this machine is and how fast it reads memory, the figure that bounds decoding at batch 1."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BUFFER_BYTES = 512 << 20  # far beyond any cache
_REPEATS = 5


@dataclass(frozen=True)
class Processor:
    """The CPU as torch sees it."""

    model: str
    isa: str
    """Widest vector instructions that torch uses, its own name for them."""
    cores: int
    """Cores this process may run on."""
    threads: int
    bf16: bool
    """oneDNN multiplies bfloat16 matrices here without going through float32."""


def processor() -> Processor:
    """Describe the CPU of this process."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Processor(
        model=_cpu_model(),
        isa=torch.backends.cpu.get_cpu_capability(),
        cores=cores,
        threads=torch.get_num_threads(),
        bf16=_onednn_bf16(),
    )


def physical_memory() -> int:
    """Bytes of memory that this machine has, whoever uses them now."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_bandwidth(threads: int | None = None, *, size: int = _BUFFER_BYTES, repeats: int = _REPEATS) -> float:
    """Bytes per second when ``threads`` (None: torch's current number) sum a buffer of ``size`` bytes; median.

    A sum does one addition for four bytes, so memory sets its pace. Torch's thread count is put back afterwards.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        buffer = torch.ones(size // 4, dtype=torch.float32)
        buffer.sum()
        seconds = [_timed(buffer) for _ in range(repeats)]
    finally:
        torch.set_num_threads(before)
    return buffer.numel() * 4 / statistics.median(seconds)


def _timed(buffer: torch.Tensor) -> float:
    start = time.perf_counter()
    buffer.sum()
    return time.perf_counter() - start


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _onednn_bf16() -> bool:
    import torch

    check = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return check is not None and bool(check())
