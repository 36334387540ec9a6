"""A slice of ``benchmarks/identical.py``: on real weights, speculation changes no byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from identical import BATCH, compare, decode, make_jobs
from prompts import load_prompts

from outrider import kernels
from outrider.config import DTYPES
from outrider.draft.ngram import NgramDrafter
from outrider.draft.none import NoDrafter
from outrider.models.load import LoadedModel, load_runner

pytestmark = pytest.mark.weights

MAX_TOKENS = 20


@pytest.fixture(scope="module", params=["bfloat16", "float32", "int8", "int8-dynamic", "gguf"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    settings = {"dtype": request.param}
    if request.param not in DTYPES:
        if reason := kernels.load().reason:
            pytest.skip(reason)
        settings = {"dtype": "bfloat16", "quantization": request.param}
    return load_runner("smollm2-135m", max_num_seqs=BATCH, max_model_len=512, **settings)


def _prompts(model: LoadedModel, count: int) -> list[list[int]]:
    return [model.tokenizer.chat([{"role": "user", "content": text}]) for text in load_prompts(None, count)]


def test_every_configuration_says_the_same(model: LoadedModel) -> None:
    assert model.runner.capabilities.deterministic_shape
    draft = load_runner("smollm2-135m", dtype="bfloat16", max_num_seqs=BATCH, max_model_len=512)
    rows = list(compare(model, draft, _prompts(model, 5), MAX_TOKENS, passes=1))
    assert len(rows) == 5
    assert {row.name: row.total - row.identical for row in rows} == dict.fromkeys((row.name for row in rows), 0)
    taus = {row.name: row.tau for row in rows}
    assert taus["ngram, k 1..8 by prompt, batch 1"] > 1.0, "nothing was drafted, so nothing was shown"
    assert taus["draft_model, k 1..8 mixed, batch 8"] > 2.0


def test_the_comparison_can_fail(model: LoadedModel) -> None:
    jobs = [job for job in make_jobs(_prompts(model, 2), MAX_TOKENS, lambda _: 0) if job.key[1] == "seeded"]
    expected, _ = decode(model, NoDrafter(), jobs, batch=1)
    others = [replace(job, params=replace(job.params, seed=7)) for job in jobs]
    got, _ = decode(model, NoDrafter(), others, batch=1)
    assert all(got[key] != tokens for key, tokens in expected.items())


def test_a_sliding_window_model_says_the_same_across_its_window() -> None:
    model = load_runner("gemma3-270m", dtype="bfloat16", max_num_seqs=4, max_model_len=768)
    assert model.runner.capabilities.deterministic_shape
    verse = "The wheels on the bus go round and round, round and round, round and round. "
    # The longer text ends 6 tokens before the window of 512 does.
    long = model.tokenizer.encode(verse * 40)[:506]
    prompts = [model.tokenizer.encode(verse * 2), long]
    expected, _ = decode(model, NoDrafter(), make_jobs(prompts, MAX_TOKENS, lambda _: 0), batch=1)
    for batch in (1, 4):
        jobs = make_jobs(prompts, MAX_TOKENS, lambda i: 8 - 3 * i)
        got, tau = decode(model, NgramDrafter(), jobs, batch)
        assert got == expected
        assert tau > 1.2, "hardly anything was kept, so hardly anything was shown"
