"""What a user may write for a model, and what they are told when it is nothing usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from outrider.errors import ConfigError, FetchError, ModelError
from outrider.models import resolve as module
from outrider.models.resolve import ModelFiles, resolve


def make(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


def test_demo_name_is_pulled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = make(tmp_path, "demo.gguf") / "demo.gguf"
    monkeypatch.setattr(module, "pull", lambda name, progress: path)
    assert resolve("smollm2-135m") == ModelFiles("smollm2-135m", tmp_path, path)


def test_local_layouts(tmp_path: Path) -> None:
    hf = make(tmp_path / "hf", "config.json", "model.safetensors", "pytorch_model.bin")
    one = make(tmp_path / "one", "a.gguf")
    assert resolve(str(hf)) == ModelFiles(str(hf), hf)
    assert resolve(str(one)) == ModelFiles(str(one), one, one / "a.gguf")
    assert resolve(str(one / "a.gguf")) == ModelFiles(str(one / "a.gguf"), one, one / "a.gguf")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("config.json", "pytorch_model.bin"), r"only pickled weights.*save_pretrained"),
        (("model.safetensors",), r"no config.json"),
        (("a.gguf", "b.gguf"), r"2 GGUF files; pass one of them, for example .*a.gguf"),
        (("config.json",), r"no \*.safetensors and no \*.gguf"),
    ],
)
def test_folder_that_is_no_usable_model(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(str(make(tmp_path / "model", *names)))


def test_pickled_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a GGUF file"):
        resolve(str(make(tmp_path, "model.pt") / "model.pt"))


@pytest.mark.parametrize("ref", ["./absent", "/absent/model", "~/absent", "absent.gguf"])
def test_path_that_does_not_exist_is_not_looked_up_on_the_hub(ref: str) -> None:
    with pytest.raises(ModelError, match="the path does not exist"):
        resolve(ref)


def test_home_of_nobody() -> None:
    with pytest.raises(ModelError, match="'~nosuchuser/m' cannot be looked up: Could not determine home"):
        resolve("~nosuchuser/m")


def test_refusal_of_a_folder_is_passed_on_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"^'{tmp_path}' has no") as caught:
        resolve(str(tmp_path))
    assert "cannot be looked up" not in str(caught.value)


def test_path_objects_are_taken(tmp_path: Path) -> None:
    folder = make(tmp_path, "a.gguf")
    assert resolve(folder) == resolve(str(folder))


@pytest.mark.parametrize("ref", [None, 5, b"smollm2-135m", ["a"]])
def test_what_is_neither_text_nor_path(ref: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be text or a path"):
        resolve(ref)


@pytest.mark.parametrize("ref", ["smollm", "", "a/b/c", "org/na me"])
def test_unknown_name_lists_what_is_known(ref: str) -> None:
    with pytest.raises(ModelError, match=r"demo model \(gemma3-270m, smollm2-135m\)"):
        resolve(ref)


class Hub:
    """A hub that holds one repository and records which patterns were asked of it."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.names = folder, names
        self.patterns: list[list[str]] = []

    def snapshot(self, ref: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        from huggingface_hub.utils._paths import filter_repo_objects

        self.patterns.append(allow_patterns)
        found = filter_repo_objects(self.names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        make(self.folder, *found)
        return str(self.folder)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Hub:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)
        monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda ref: self.names)
        return self


SAFE = ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"]


def test_hub_fetches_neither_pickles_nor_code_nor_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = ["pytorch_model.bin", "model.pt", "modeling.py", "consolidated.safetensors", "onnx/x.json", "m.gguf"]
    Hub(tmp_path / "snapshot", SAFE + other).install(monkeypatch)
    assert resolve("org/name") == ModelFiles("org/name", tmp_path / "snapshot")
    assert sorted(path.name for path in (tmp_path / "snapshot").iterdir()) == sorted(SAFE)


def test_code_is_fetched_only_when_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Hub(tmp_path / "snapshot", [*SAFE, "modeling.py"]).install(monkeypatch)
    resolve("org/name", trust_remote_code=True)
    assert (tmp_path / "snapshot/modeling.py").exists()


def test_single_gguf_of_a_repository_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Hub(tmp_path / "snapshot", ["README.md", "m.gguf"]).install(monkeypatch)
    assert resolve("org/name").gguf == tmp_path / "snapshot/m.gguf"


def test_many_ggufs_are_not_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = Hub(tmp_path / "snapshot", ["q4.gguf", "q8.gguf"]).install(monkeypatch)
    with pytest.raises(ModelError, match=r"2 GGUF files; download one, for example q4.gguf"):
        resolve("org/name")
    assert len(hub.patterns) == 1
    assert list((tmp_path / "snapshot").iterdir()) == []


def test_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise ConnectionError("name resolution failed.\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        FetchError, match=r"cannot fetch 'org/name' from the Hub: name resolution failed; .*smollm2"
    ) as caught:
        resolve("org/name")
    assert "\n" not in str(caught.value)
