"""The HTML report: everything is in it, nothing is fetched, and no text of a prompt becomes markup."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from outrider.bench import report
from outrider.bench.plots import figures
from outrider.bench.record import Acceptance, Run
from outrider.bench.summary import summarise
from outrider.errors import ConfigError
from tests.unit.bench_runs import SAMPLED, TASKS, answer, broken, run_of, usual

if TYPE_CHECKING:
    import plotly.graph_objects as go

ATTACK = "</script></pre><script>alert(1)</script><img src=x onerror=alert(2)><b>'\"&"
SCRIPT = "/* plotly.js would stand here */"


@pytest.fixture(autouse=True)
def short_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of plotly.js say nothing about our page; one test asks for the real one."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: SCRIPT)


class Page(HTMLParser):
    """Tags with their attributes, and the text between them, of scripts and of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        (self.scripts if self.cdata_elem == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def page_of(run: Run) -> Page:
    return Page(report.render(run, summarise(run)))


def charts(run: Run) -> dict[str, go.Figure]:
    return {title.split(" ")[0]: figure for title, figure in figures(run, summarise(run))}


def test_the_page_has_tables_figures_answers_and_provenance() -> None:
    page = page_of(usual(provenance={"argv": ["outrider", "bench"], "commit": {"id": "abc123"}}))
    for part in ("outrider bench: toy", "1.91 [1.91, 1.91]", "0/4", "prompt 3", "words", "abc123", "arrive together"):
        assert part in page.text
    assert page.text.count("ngram k=2, T=0: 21 tokens, 105.0 tok/s, length") == len(TASKS)
    assert len([tag for tag, attributes in page.tags if attributes.get("class") == "plotly-graph-div"]) == 4


def test_nothing_is_fetched() -> None:
    page = page_of(usual())
    assert page.tags[2][0] == "meta"
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert not any({"src", "href", "srcset", "data", "action"} & set(attributes) for _, attributes in page.tags)
    assert SCRIPT in page.scripts


def test_the_script_comes_from_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert len(report.render(usual(), summarise(usual()))) > 1_000_000


@pytest.mark.parametrize("place", ["prompt", "answer", "category", "configuration", "argv", "details", "error", "id"])
def test_text_from_outside_is_escaped(place: str) -> None:
    tasks = [replace(TASKS[0], prompt=ATTACK if place == "prompt" else "p"), TASKS[1]]
    if place == "category":
        tasks[0] = replace(tasks[0], category=ATTACK)
    if place == "id":
        tasks[0] = replace(tasks[0], id=ATTACK)
    first = answer(2, text=ATTACK if place == "answer" else "words")
    run = run_of(
        {"plain": [answer(), answer()], ATTACK if place == "configuration" else "x": [first, answer(2)]},
        tasks=tasks,
        provenance={"argv": ["outrider", ATTACK if place == "argv" else ""]},
        details={"plain": {"model": ATTACK if place == "details" else "toy"}},
    )
    if place == "error":
        run = replace(run, samples=(replace(run.samples[0], answer=broken(ATTACK)), *run.samples[1:]))
    page, clean = page_of(run), page_of(run_of({"plain": [answer(), answer()], "x": [answer(2), answer(2)]}))
    # The same tags but for an error's paragraph and, where the baseline failed, its figures.
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in clean.tags}
    assert page.text.count("alert(1)") >= 1
    assert not any("alert(1)</script>" in script or "<img" in script for script in page.scripts)
    assert not any("onerror" in attributes for _, attributes in page.tags)


def test_long_texts_are_cut() -> None:
    run = run_of({"plain": [answer(text="y" * 5000)]}, tasks=TASKS[:1])
    assert "y" * 4000 + "\n[1000 more]" in page_of(run).text


def test_figures_hold_the_summary_s_numbers() -> None:
    found = charts(usual())
    assert list(found) == ["Speedup", "Acceptance", "Inter-token", "Time"]
    (bars,) = found["Speedup"].data
    assert bars.name == "ngram k=2, T=0, batch 1"
    assert list(bars.x) == ["all", "prose", "code"]
    assert list(bars.y) == pytest.approx([21 / 11] * 3)
    conditional, survival = found["Acceptance"].data
    assert list(conditional.y) == [1.0, 0.0]
    assert list(survival.y) == [40 / 44, 0.0]
    draft, target = (trace for trace in found["Time"].data if trace.name in ("draft", "target"))
    assert list(draft.x) == pytest.approx([0.025 / 11 * 1e3, 0.025 / 21 * 1e3])
    assert list(target.y) == ["plain, T=0, batch 1", "ngram k=2, T=0, batch 1"]


def test_intervals_reach_from_low_to_high() -> None:
    run = run_of({"plain": [answer()] * 4, "x": [answer(2, gap=0.01 + 0.002 * i) for i in range(4)]})
    ratio = summarise(run)["rows"][1]["ratio"]
    (bars,) = charts(run)["Speedup"].data
    assert ratio["low"] < ratio["mean"] < ratio["high"]
    assert bars.y[0] + bars.error_y.array[0] == pytest.approx(ratio["high"])
    assert bars.y[0] - bars.error_y.arrayminus[0] == pytest.approx(ratio["low"])


def test_waits_are_shares_in_common_bins() -> None:
    run = run_of({"plain": [answer(gap=0.01)] * 4, "x": [answer(2, gap=0.04)] * 4})
    plain, other = charts(run)["Inter-token"].data
    assert list(plain.x) == list(other.x)
    assert sum(plain.y) == pytest.approx(1.0, abs=1e-3)
    assert plain.x[max(range(60), key=lambda i: plain.y[i])] == pytest.approx(10, rel=0.05)
    assert other.x[max(range(60), key=lambda i: other.y[i])] == pytest.approx(40, rel=0.05)


def test_figures_without_anything_to_show_are_left_out() -> None:
    silent = replace(answer(), acceptance=None, phases=None, arrivals=answer().arrivals[:1])
    assert charts(run_of({"plain": [silent] * 4})) == {}
    undrafted = replace(answer(), acceptance=Acceptance.of_round(0, 0, 1))
    assert "Acceptance" not in charts(run_of({"plain": [undrafted] * 4}))


def test_a_server_that_tells_no_positions_has_no_figure_of_them() -> None:
    told = replace(answer(), acceptance=Acceptance(10, 8, 4, 14))
    assert "Acceptance" not in charts(run_of({"plain": [answer()] * 4, "server": [told] * 4}))


def test_waits_over_decades_are_labelled_in_full() -> None:
    narrow, wide = (
        charts(run_of({"plain": [answer(gap=0.003)] * 2 + [answer(gap=gap)] * 2}))["Inter-token"] for gap in (0.02, 0.2)
    )
    assert narrow.layout.xaxis.tickvals is None
    labels = dict(zip(wide.layout.xaxis.tickvals, wide.layout.xaxis.ticktext, strict=True))
    assert (labels[2.0], labels[20.0], labels[200.0]) == ("2", "20", "200")


def test_one_prompt_and_sampled_runs_have_figures_too() -> None:
    (bars,) = charts(usual(tasks=TASKS[:1], settings=SAMPLED))["Speedup"].data
    assert (bars.name, list(bars.x), bars.error_y.array[0]) == ("ngram k=2, T=1, batch 1", ["all"], 0.0)


def test_an_open_loop_has_waits_and_a_table() -> None:
    page = page_of(run_of({"plain": [answer()] * 4}, batch=0, rate=2.0))
    assert "Open loop" in page.text
    assert any('"plain, T=0, 2 requests' in script for script in page.scripts)


def test_without_plotly_there_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    report.require_plotly()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--html needs plotly.*pip install 'outrider\[plot\]'"):
        report.require_plotly()
