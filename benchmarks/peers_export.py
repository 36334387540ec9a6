"""The same weights in the formats that other engines read, written once into a folder.

transformers/   config, tokenizer and weights in bf16, unpacked from the demo model's GGUF file
*-BF16.gguf     the same values;  *-Q4_0.gguf  all matrices rounded to blocks of 4 bits
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from llama_cpp import Stored, stored_as

from outrider.errors import ConfigError
from outrider.models.cache import scratch_folder
from outrider.models.gguf_file import open_gguf
from outrider.models.gguf_tokenizer import gguf_tokenizer
from outrider.models.quiet import quiet_transformers
from outrider.models.resolve import resolve

GGUF_KINDS: tuple[Stored, ...] = ("BF16", "Q4_0")


def export(model: str, folder: Path) -> None:
    """Write what is missing. Raises ``ConfigError`` for a model that is no GGUF file."""
    source = resolve(model).gguf
    if source is None:
        raise ConfigError(f"--model {model}: peers are measured on a demo model or a .gguf file; give one of these")
    for kind in GGUF_KINDS:
        gguf_file(source, kind, folder)
    target = folder / "transformers"
    if not target.exists():
        with scratch_folder(folder) as scratch:
            _write_transformers(source, scratch / "model")
            shutil.move(scratch / "model", target)


def gguf_file(source: Path, kind: Stored, folder: Path) -> Path:
    """The model with all matrices stored as ``kind``."""
    return stored_as(source, kind, folder)


def _write_transformers(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        # It is an ordinary checkpoint from here on; nobody else must try to unpack it.
        if hasattr(loaded.config, "quantization_config"):
            del loaded.config.quantization_config
        loaded.save_pretrained(target)
        gguf_tokenizer(open_gguf(source)).save_pretrained(target)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
