"""`outrider plan --html`: the article's figures from our own model, on a page that fetches nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.cli.main import run
from outrider.cli.plan_figures import article_figures
from outrider.plan.ablation import Variant, published
from tests.unit.test_bench_report import SCRIPT, Page
from tests.unit.test_plan_ablation import row
from tests.unit.test_plan_cli import LARGE, refused

if TYPE_CHECKING:
    import plotly.graph_objects as go

PLAN = ("plan", "--target", LARGE, "--hardware", "L4", "--acceptance", "0.6")


@pytest.fixture(autouse=True)
def short_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of plotly.js say nothing about our page."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: SCRIPT)


def figures(variants: tuple[Variant, ...] | None = None) -> list[go.Figure]:
    return [figure for _, figure in article_figures(published() if variants is None else variants, "as published")]


def test_speedup_against_context_at_batch_64() -> None:
    lines = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figures()[0].data}
    assert list(lines) == ["vanilla", "MagicDec", "SPIRe"]
    assert [round(line[512], 2) for line in lines.values()] == [1.36, 2.05, 2.78]
    assert list(lines["SPIRe"]) == [2**n for n in range(3, 14)]


def test_the_heat_map_over_batch_and_context() -> None:
    vanilla, magicdec, spire = (trace for trace in figures()[1].data)

    def at(trace: go.Heatmap, batch: str, context: str) -> float:
        return round(float(trace.z[list(trace.y).index(batch)][list(trace.x).index(context)]), 2)

    assert [at(trace, "1", "32") for trace in (vanilla, magicdec, spire)] == [1.76, 0.78, 1.71]
    assert [at(trace, "128", "8k") for trace in (vanilla, magicdec, spire)] == [1.32, 2.57, 3.01]


def test_the_ablation_as_published() -> None:
    (bars,) = figures()[2].data
    assert bars.y[0] == "SPIRe"
    assert [round(value, 2) for value in bars.x] == [2.78, 2.76, 2.74, 2.54, 2.51, 2.42]
    assert bars.text[0] == "2.78 (tau 3.401)"
    assert bars.error_x.array is None


def test_an_ablation_that_was_measured_has_its_intervals() -> None:
    (bars,) = figures((Variant("<i>a", 2.5, 4, 2.4, 2.8), Variant("b", 2.0, 4)))[2].data
    scale = bars.x[0] / 2.5
    assert list(bars.error_x.array) == pytest.approx([0.3 * scale, 0.0])
    assert list(bars.error_x.arrayminus) == pytest.approx([0.1 * scale, 0.0])
    assert bars.y[0] == "&lt;i&gt;a"


def test_llama_at_long_contexts() -> None:
    lines = [dict(zip(trace.x, trace.y, strict=True)) for trace in figures()[3].data]
    assert [round(line[65_536], 2) for line in lines] == [1.06, 2.14, 2.82]
    assert list(lines[0]) == [2**n for n in range(10, 21)]


def test_the_page_has_the_plan_and_four_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    assert run([*PLAN, "--html", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    page = Page(file.read_text(encoding="utf-8"))
    assert out.strip() in page.text
    assert "tau as the article published it" in page.text
    assert len([tag for tag, attributes in page.tags if attributes.get("class") == "plotly-graph-div"]) == 4
    assert not any({"src", "href", "srcset", "data", "action"} & set(attributes) for _, attributes in page.tags)
    assert list(tmp_path.iterdir()) == [file]


def test_an_ablation_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    measured = tmp_path / "mine.json"
    measured.write_text(json.dumps({"evaluations": [row("mine")]}))
    file = tmp_path / "plan.html"
    assert run([*PLAN, "--html", str(file), "--ablation-from", str(measured)]) == 0
    page = Page(file.read_text(encoding="utf-8"))
    assert "tau measured (mine.json), costs the article's" in page.text
    assert any("mine" in script for script in page.scripts)


def test_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        return refused(capsys, "--hardware", "L4", "--acceptance", "0.6", *arguments)

    page, measured = str(tmp_path / "p.html"), tmp_path / "mine.json"
    assert "is for a figure of the page: give --html FILE too" in said("--ablation-from", str(measured))
    assert "cannot be read" in said("--html", page, "--ablation-from", str(measured))
    measured.write_text("{}")
    assert "has no evaluations" in said("--html", page, "--ablation-from", str(measured))
    assert "there is no folder" in said("--html", str(tmp_path / "no" / "p.html"))
    assert [each.name for each in tmp_path.iterdir()] == ["mine.json"]


def test_a_page_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("outrider.cli.plan_page.write_atomically", full)
    message = refused(capsys, "--hardware", "L4", "--acceptance", "0.6", "--html", str(tmp_path / "p.html"))
    assert message.endswith("cannot be written: No space left on device")
