"""`outrider bench` from the command line to its files, on real weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from outrider.cli.main import run
from outrider.kernels import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.weights


def test_bench_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, page = tmp_path / "run.json", tmp_path / "run.html"
    measured = ["--workload", "copy", "--limit", "2", "--max-tokens", "12", "--k", "0,4", "--max-model-len", "1024"]
    # Exit code 0: nothing failed, and greedy and seeded answers were plain decoding's, token for token.
    assert run(["bench", *measured, "--output", str(output), "--html", str(page)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    # Only the native kernels know how many bytes a step reads.
    assert ("bandwidth limit: " in out) == (load().native is not None)
    last = json.loads(out.splitlines()[-1])
    assert last["configurations"] == ["plain", "auto k=4"]
    for row in last["summary"]["rows"][2:]:
        assert row["identical"] == {"same": 2, "of": 2}
        assert row["ratio"]["low"] <= row["ratio"]["mean"] <= row["ratio"]["high"]
    greedy = last["summary"]["rows"][2]
    assert greedy["acceptance"]["accepted"] > 0
    assert greedy["tau"]["mean"] > 1
    assert len(json.loads(output.read_text())["samples"]) == 8
    assert "Plotly.newPlot" in page.read_text()

    assert run(["bench", "compare", str(output), str(output), "--fail-below", "1"]) == 0
    assert "1.00 [1.00, 1.00]" in capsys.readouterr().out
