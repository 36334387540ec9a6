"""`outrider audit` on real weights, end to end."""

from __future__ import annotations

import json

import pytest

from outrider.cli.main import run

pytestmark = pytest.mark.weights

Captured = pytest.CaptureFixture[str]
SMALL = ["audit", "--limit", "1", "--samples", "100", "--max-tokens", "16", "--max-model-len", "128"]


def test_a_real_model_and_drafter_pass(capsys: Captured) -> None:
    """One in ten thousand runs would fail by chance, unless the seed is kept: it is."""
    config = '{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "block"}'
    code = run([*SMALL, "--seed", "1", "--temperature", "0.8", "--speculative-config", config, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failed"]) == (0, [])
    assert report["greedy"]["divergences"] == []
    assert report["greedy"]["noise"]["overall"] == 0.0
    assert report["rows"]["rows"] > 10
    assert report["rows"]["off"] == 0
    assert report["rule"]["rounds"] > 0
    assert report["distribution"]["judged"]["first"] == 100
    assert report["control"]["caught"] is True


def test_nothing_to_audit_is_a_users_mistake(capsys: Captured) -> None:
    assert run([*SMALL, "--speculative-config", "none"]) == 2
    assert "nothing to audit" in capsys.readouterr().err
