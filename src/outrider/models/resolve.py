"""From what a user writes for a model to the files on disk."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError, FetchError, ModelError, OutriderError
from outrider.models.pull import pull
from outrider.models.quiet import first_line
from outrider.models.registry import DEMO_MODELS, known_names

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Weights only in formats that cannot run code when they are read; pickled .bin and .pt are never fetched.
_HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
# Sub-folders and "consolidated" files hold the same weights again in another layout.
_HUB_IGNORED = ("*/*", "consolidated*")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's files are: a Hugging Face folder, or the folder that holds one GGUF file."""

    name: str
    """What the user wrote."""
    folder: Path
    gguf: Path | None = None


def resolve(ref: str | os.PathLike[str], *, trust_remote_code: bool = False, progress: bool = True) -> ModelFiles:
    """A demo name, a folder, a ``.gguf`` file or a Hub id (``org/name``), fetched when it is not here yet.

    ``trust_remote_code`` also fetches the model's own Python files. Raises ``ModelError`` for something that is no
    usable model, ``FetchError`` for one that cannot be fetched and ``ConfigError`` for what is neither text nor path.
    """
    ref = _as_text(ref)
    if ref in DEMO_MODELS:
        path = pull(ref, progress=progress)
        return ModelFiles(ref, path.parent, path)
    try:
        local = Path(ref).expanduser()
        if ref and local.is_dir():
            return _from_folder(ref, local)
        if local.is_file():
            return _from_file(ref, local)
    except OutriderError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        # RuntimeError: "~name" of a user who does not exist.
        raise ModelError(
            f"model {ref[:60]!r} cannot be looked up: {getattr(error, 'strerror', None) or first_line(error)}"
        ) from None
    if local.suffix == ".gguf" or local.is_absolute() or ref.startswith((".", "~")):
        raise ModelError(f"no model at {ref!r}: the path does not exist")
    if _HUB_ID.fullmatch(ref):
        return _from_folder(ref, _fetch_from_hub(ref, trust_remote_code, progress))
    raise ModelError(
        f"unknown model {ref!r}; use a demo model ({known_names()}), a folder with config.json and *.safetensors, "
        "a .gguf file, or a Hub id such as 'org/name'"
    )


def _as_text(model: object) -> str:
    text = os.fspath(model) if isinstance(model, str | os.PathLike) else model
    if not isinstance(text, str):
        raise ConfigError(
            f"model={model!r} must be text or a path; use a demo model ({known_names()}), a path or an id"
        )
    return text


def _from_file(ref: str, path: Path) -> ModelFiles:
    if path.suffix != ".gguf":
        raise ModelError(f"{ref!r} is not a GGUF file; pass a .gguf file, or the folder of a safetensors model")
    return ModelFiles(ref, path.parent, path)


def _from_folder(ref: str, folder: Path) -> ModelFiles:
    weights = any(folder.glob("*.safetensors"))
    if weights and (folder / "config.json").is_file():
        return ModelFiles(ref, folder)
    if weights:
        raise ModelError(f"{ref!r} has safetensors but no config.json; add the model's config.json")
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelFiles(ref, folder, ggufs[0])
    if ggufs:
        raise ModelError(f"{ref!r} has {len(ggufs)} GGUF files; pass one of them, for example {ggufs[0]}")
    if any(next(folder.glob(pattern), None) for pattern in _PICKLED):
        raise ModelError(
            f"{ref!r} has only pickled weights, which can run code when read, so only safetensors and GGUF are; "
            "convert it with Transformers' save_pretrained"
        )
    raise ModelError(f"{ref!r} has no *.safetensors and no *.gguf file; only these two formats are read")


def _fetch_from_hub(ref: str, trust_remote_code: bool, progress: bool) -> Path:
    from huggingface_hub import list_repo_files

    patterns = [*_HUB_PATTERNS, *(["*.py"] if trust_remote_code else [])]
    try:
        folder = _snapshot(ref, patterns, progress)
        if any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf")):
            return folder
        # Repositories of GGUF files hold one model many times over, so never fetch them all.
        return _snapshot(ref, [*patterns, _only_gguf(ref, list_repo_files(ref))], progress)
    except OutriderError:
        raise
    except Exception as error:
        # Transport errors are of the hub client's HTTP library, another one in each of its major versions.
        raise FetchError(
            f"cannot fetch {ref!r} from the Hub: {first_line(error)}; "
            f"check the id and the network, or use a local path or a demo model ({known_names()})"
        ) from error


def _only_gguf(ref: str, names: list[str]) -> str:
    ggufs = [name for name in names if name.endswith(".gguf") and "/" not in name]
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise ModelError(
            f"{ref!r} has {len(ggufs)} GGUF files; download one, for example {ggufs[0]}, and pass its path"
        )
    raise ModelError(f"{ref!r} has no *.safetensors and no *.gguf file; only these two formats are read")


def _snapshot(ref: str, patterns: list[str], progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    restore = not progress and not are_progress_bars_disabled()
    if restore:
        disable_progress_bars()
    try:
        return Path(snapshot_download(ref, allow_patterns=patterns, ignore_patterns=list(_HUB_IGNORED)))
    finally:
        if restore:
            enable_progress_bars()
