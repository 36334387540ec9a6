"""What a wheel and a source archive hold, with and without a compiler, and that every tool is pinned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def build(kind: str, folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a ``wheel`` or ``sdist`` of this checkout as pip would; the archive and what the build printed."""
    script = (
        "import sys\nfrom scikit_build_core import build\n"
        f"print(build.build_{kind}(sys.argv[1], {{'build-dir': sys.argv[2]}}))"
    )
    command = [sys.executable, "-c", script, str(folder), str(folder / "cmake")]
    clean = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "OUTRIDER_NO_NATIVE")}
    done = subprocess.run(command, cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=True)
    return folder / done.stdout.splitlines()[-1], done.stdout


@pytest.mark.parametrize("environment", [{"OUTRIDER_NO_NATIVE": "1"}, {"CC": "false", "CXX": "false"}])
def test_a_wheel_without_a_compiler_is_pure_python_and_says_so(environment: dict[str, str], tmp_path: Path) -> None:
    wheel, printed = build("wheel", tmp_path, **environment)
    assert wheel.name.endswith("without_native_kernels-py3-none-any.whl")
    assert "NOT built" in printed
    names = zipfile.ZipFile(wheel).namelist()
    assert {"outrider/__init__.py", "outrider/py.typed", "outrider/kernels/_native.pyi"} <= set(names)
    assert [name for name in names if name.endswith((".so", ".cpp", ".hpp", ".pth"))] == []


def test_a_source_archive_can_be_compiled(tmp_path: Path) -> None:
    archive, _ = build("sdist", tmp_path)
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "src").rglob("csrc/**/*.[ch]pp")}
    assert sources
    assert sources | {"CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert [name for name in names if name.startswith("build/") or name.endswith(".so")] == []


def test_every_tool_is_pinned() -> None:
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    wanted = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=!~]", requirement)[0] for requirement in wanted} | {"cmake", "ninja"}
    assert names - pinned == set()
