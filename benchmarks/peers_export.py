"""The same weights in the formats that other engines read, written once into a folder.

transformers/   config, tokenizer and weights in bf16, unpacked from the demo model's GGUF file
*-BF16.gguf     the same values;  *-Q4_0.gguf  all matrices rounded to blocks of 4 bits
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from llama_cpp import Stored, stored_as

from outrider.bench.transformers_subject import load_model
from outrider.errors import ConfigError
from outrider.models.cache import scratch_folder
from outrider.models.gguf_file import open_gguf
from outrider.models.gguf_tokenizer import gguf_tokenizer
from outrider.models.quiet import quiet_transformers
from outrider.models.resolve import ModelFiles, resolve

GGUF_KINDS: tuple[Stored, ...] = ("BF16", "Q4_0")


def export(model: str, folder: Path) -> None:
    """Write what is missing. Raises ``ConfigError`` for a model that is no GGUF file."""
    files = resolve(model)
    if files.gguf is None:
        raise ConfigError(f"--model {model}: peers are measured on a demo model or a .gguf file; give one of these")
    for kind in GGUF_KINDS:
        stored_as(files.gguf, kind, folder)
    target = folder / "transformers"
    if not target.exists():
        with scratch_folder(folder) as scratch:
            _write_transformers(files, files.gguf, scratch / "model")
            shutil.move(scratch / "model", target)


def _write_transformers(files: ModelFiles, gguf: Path, target: Path) -> None:
    loaded = load_model(files, "bfloat16")
    with quiet_transformers():
        # It is an ordinary checkpoint from here on; nobody else must try to unpack it.
        if hasattr(loaded.config, "quantization_config"):
            del loaded.config.quantization_config
        loaded.save_pretrained(target)
        gguf_tokenizer(open_gguf(gguf)).save_pretrained(target)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
