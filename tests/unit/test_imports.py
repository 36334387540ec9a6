"""The shape of the source: imports point one way, importing is light, files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import outrider

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(outrider.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# A package may import what stands before it, and itself.
ORDER = (
    ("types", "errors", "config", "hardware", "pauses", "files", "json_lines", "rules"),
    ("sampling", "plan"),
    ("verify",),
    ("kernels",),
    ("models", "provenance"),
    ("draft", "control", "calibrate"),
    ("engine",),
    ("testing", "prompts"),
    ("llm",),
    ("bench",),
    ("audit", "train"),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

HEAVY = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "gguf", "typer", "rich", "fastapi", "pydantic")


def package(file: Path) -> str:
    """The first name below ``outrider``: its folder, or its own name."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names below ``outrider`` that are imported at run time, inside functions too, with their lines."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(ast.Module(node.orelse, []))
            continue
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, "imports are absolute"
                names = [f"{node.module}.{name}" for name in names]
            yield from ((name.split(".")[1], node.lineno) for name in names if name.startswith("outrider."))
        yield from imports(node)


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``code``."""
    script = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file: Path) -> None:
    if file == ROOT / "__init__.py":
        return
    mine = package(file)
    assert mine in RANK, f"say in ORDER where {mine} stands"
    for theirs, line in imports(ast.parse(file.read_text())):
        allowed = theirs in (mine, "__version__") or RANK[theirs] < RANK[mine]
        allowed |= RANK.get(theirs) == RANK[mine] == 0
        assert allowed, f"{file.name}:{line}: {mine} imports {theirs}"


def test_the_check_sees_every_kind_of_import() -> None:
    source = """
from typing import TYPE_CHECKING
import outrider.llm
from outrider import cli
if TYPE_CHECKING:
    from outrider.engine import engine
else:
    from outrider.draft.base import Drafter
def later():
    from outrider.models.toy import ToyModel
"""
    assert list(imports(ast.parse(source))) == [("llm", 3), ("cli", 4), ("draft", 8), ("models", 10)]


def test_the_planner_stands_alone() -> None:
    """A library of arithmetic: values and errors of ours, and no more than numpy of others."""
    for file in (ROOT / "plan").glob("*.py"):
        theirs = {name for name, _ in imports(ast.parse(file.read_text()))}
        assert theirs <= {"plan", "types", "errors"}, file.name
    everything = ", ".join(f"outrider.plan.{file.stem}" for file in (ROOT / "plan").glob("[a-z]*.py"))
    assert loaded_by(f"import {everything}").isdisjoint({*HEAVY} - {"numpy"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_stay_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 400, "split the file: one idea each"


@pytest.mark.parametrize(
    "code",
    [
        "import outrider",
        "import outrider.types, outrider.errors, outrider.config",
        "from outrider import SamplingParams",
    ],
)
def test_importing_is_light(code: str) -> None:
    assert loaded_by(code).isdisjoint(HEAVY)


def test_the_command_starts_without_a_model_library() -> None:
    assert loaded_by("import outrider.cli.main").isdisjoint({"torch", "transformers", "safetensors"})


def test_public_names() -> None:
    for name in outrider.__all__:
        assert getattr(outrider, name) is not None
    assert set(outrider._HOMES) | {"__version__"} == set(outrider.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = outrider.nothing
