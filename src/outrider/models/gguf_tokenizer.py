"""A GGUF file's tokenizer, converted once and kept.

Transformers rebuilds the tokenizer from the file's token lists, which takes seconds (tens of seconds for a 262k
vocabulary). The result depends on the header only, so it is stored under the header's hash.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from outrider.errors import FetchError, ModelError
from outrider.models.cache import cache_folder, scratch_folder
from outrider.models.checkpoint import transformers_error
from outrider.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

    from outrider.models.gguf_file import GGUFFile

_SLOW_TOKENS = 20_000


def gguf_tokenizer(
    file: GGUFFile, *, progress: bool = True, trust_remote_code: bool = False
) -> PreTrainedTokenizerFast:
    """Load the stored conversion, or convert and store. Raises ``ModelError``."""
    if "tokenizer.ggml.tokens" not in file.arrays:
        raise ModelError(f"{file.path} holds no tokenizer; use a file made with one, or the safetensors model")
    folder = _stored_at(file)
    try:
        if folder.is_dir():
            return _load(folder)
    except Exception:
        # A stored copy that cannot be read, in whatever way, is only a lost cache: make it again.
        shutil.rmtree(folder, ignore_errors=True)
    with _notice(file, progress):
        tokenizer = _convert(file, trust_remote_code)
    _store(tokenizer, folder)
    return tokenizer


def _stored_at(file: GGUFFile) -> Path:
    import transformers

    with file.path.open("rb") as source:
        header = hashlib.sha256(source.read(file.data_start))
    header.update(transformers.__version__.encode())
    return cache_folder() / "tokenizers" / header.hexdigest()[:32]


def _load(folder: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    with quiet_transformers():
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _convert(file: GGUFFile, trust_remote_code: bool) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            # The file's folder may hold other files, with code; the conversion reads those too.
            return AutoTokenizer.from_pretrained(
                file.path.parent,
                gguf_file=file.path.name,
                local_files_only=True,
                trust_remote_code=trust_remote_code,
            )
    except Exception as error:
        # The converter trusts the file's lists; a broken one fails wherever it is first used.
        raise transformers_error(str(file.path), "Transformers cannot read its tokenizer", error) from error


def _store(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    # A cache that cannot be written costs time, not the run. Losing the race to another process (the folder
    # is there and not empty) is the same case: both made the same files.
    with suppress(FetchError), scratch_folder(folder.parent) as scratch:
        tokenizer.save_pretrained(scratch / folder.name)
        (scratch / folder.name).replace(folder)


def _notice(file: GGUFFile, progress: bool) -> AbstractContextManager[object]:
    from rich.console import Console

    console = Console(stderr=True)
    slow = file.arrays["tokenizer.ggml.tokens"] > _SLOW_TOKENS
    if progress and slow and console.is_terminal:
        return console.status(f"Converting the tokenizer of {file.path.name} (the first time only)")
    return nullcontext()
