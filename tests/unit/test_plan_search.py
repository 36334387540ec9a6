"""Predictions: the formula and the search put together, on sizes where the answer can be seen."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from outrider.config import SpeculativeConfig, parse_speculative_config
from outrider.errors import ConfigError
from outrider.plan.acceptance import Estimate, assumed
from outrider.plan.architecture import Architecture, Storage
from outrider.plan.closed_form import expected_tokens, speedup
from outrider.plan.commands import outrider_config, vllm_command
from outrider.plan.cost import ModelPass, Speculation
from outrider.plan.curves import CostCurve, fit_curve
from outrider.plan.hardware import find_device
from outrider.plan.memory import Model
from outrider.plan.report import plan_json, plan_text
from outrider.plan.search import (
    EFFICIENCY,
    LOOKUP_SHARE,
    MAX_BATCH,
    MEASURED_EFFICIENCY,
    Candidate,
    Prediction,
    Scenario,
    predict,
    recommend,
    spire_draft,
)

BIG = Model("big", "/models/big", Architecture(32, 4096, 32, 8, 128, 14336, 128_256), Storage())
SMALL = Model("small", "/models/small", Architecture(16, 2048, 32, 8, 64, 8192, 128_256, tied=True), Storage())
SCENARIO = Scenario(BIG, find_device("H100-SXM"), batch=8, context=2048, k_max=16)


def drafted(alpha: float = 0.8, scenario: Scenario = SCENARIO, **changes: Any) -> Prediction:
    fields: dict[str, Any] = {"method": "draft_model", "estimate": assumed(alpha, 16), "draft": SMALL, **changes}
    return predict(scenario, Candidate(**fields))


def test_plain_decoding_is_the_roofline() -> None:
    """Weights less the embedding table, and eight caches, at 3.35 TB/s."""
    parameters = 32 * (2 * 4096 + 4096 * 128 * (64 + 16) + 3 * 4096 * 14336) + 4096 + 128_256 * 4096
    nbytes = 2 * parameters + 8 * 2048 * 32 * 2 * 8 * 128 * 2
    assert SCENARIO.plain_seconds == pytest.approx(nbytes / 3.35e12, rel=1e-12)
    assert SCENARIO.plain_tokens_per_second == pytest.approx(8 * 3.35e12 / nbytes, rel=1e-12)


def test_a_prediction_is_the_closed_form_at_the_modelled_cost() -> None:
    found = drafted()
    machine = SCENARIO.machine(BIG)
    cost = Speculation(ModelPass(BIG.footprint, machine), found.candidate.cost(SCENARIO)).relative(8, 2048)
    gains = [speedup(found.candidate.estimate.survival, k, cost) for k in range(17)]
    assert found.speedup == max(gains) == gains[found.k]
    assert found.tau == expected_tokens(found.candidate.estimate.survival, found.k)
    assert found.alpha == pytest.approx(0.8, abs=1e-9)
    assert found.verdict == "pays"


def test_the_low_end_is_what_was_measured_of_the_limit() -> None:
    found = drafted()
    assert (found.low, found.high) == (found.speedup * EFFICIENCY, found.speedup)
    survival = assumed(0.8, 16).survival
    unsure = drafted(estimate=Estimate(survival, "measured", low=0.9, high=1.1))
    assert unsure.k == found.k
    assert unsure.low == pytest.approx(found.low * 0.9)
    assert unsure.high == pytest.approx(found.high * 1.1)


def test_drafts_that_do_not_pay_are_not_drafted() -> None:
    found = drafted(alpha=0.05)
    assert (found.k, found.tau, found.speedup, found.low, found.high, found.alpha) == (0, 1.0, 1.0, 1.0, 1.0, None)
    assert found.verdict == "does not pay"
    assert found.break_even == found.least_break_even
    assert found.break_even is not None
    assert drafted(alpha=found.break_even + 0.001).k == 1
    assert drafted(alpha=found.break_even - 0.001).k == 0


def test_a_gain_smaller_than_what_is_lost_in_practice_may_pay() -> None:
    found = drafted(alpha=0.35)
    assert found.low < 1.0 < found.speedup
    assert found.verdict == "may pay"


def test_no_more_is_drafted_than_was_measured_or_asked() -> None:
    assert drafted(estimate=Estimate((0.99, 0.98), "measured")).k == 2
    assert drafted(alpha=0.99, scenario=replace(SCENARIO, k_max=3)).k == 3


def test_the_batch_at_which_it_stops_paying() -> None:
    scenario = replace(SCENARIO, context=128)
    found = drafted(scenario=scenario)
    assert found.pays is not None
    first, last = found.pays
    assert first == 1
    assert 8 < last < MAX_BATCH
    assert drafted(scenario=replace(scenario, batch=last)).k > 0
    assert drafted(scenario=replace(scenario, batch=last + 1)).k == 0
    assert drafted(alpha=0.01, scenario=scenario).pays is None
    # Where reading caches takes the time, a cheaper draft pays at any batch.
    long = drafted(scenario=replace(SCENARIO, context=131_072, batch=1), method="spire", draft=spire_draft(BIG))
    assert long.pays == (1, MAX_BATCH)


def test_verification_turns_to_arithmetic_at_the_batch_it_says() -> None:
    scenario = replace(SCENARIO, context=128)
    found = drafted(scenario=scenario)
    assert found.compute_bound_from is not None

    def verify(batch: int) -> float:
        return BIG.footprint.seconds(SCENARIO.machine(BIG), batch, 128, found.k + 1) / batch

    edge = int(found.compute_bound_from) + 1
    assert verify(edge) == pytest.approx(verify(2 * edge), rel=1e-9)
    assert verify(edge - 2) > verify(edge) * (1 + 1e-9)


def test_each_method_costs_what_it_reads() -> None:
    plain = SCENARIO.plain_seconds

    def share(method: Any, draft: Model | None = None) -> float:
        candidate = Candidate(method, assumed(0.8, 16), draft)
        return candidate.cost(SCENARIO).seconds(8, 2048, plain) / plain

    assert share("ngram") == LOOKUP_SHARE
    assert share("draft_model", SMALL) == pytest.approx(
        SMALL.footprint.seconds(SCENARIO.machine(SMALL), 8, 2048) / plain
    )
    # The target's own weights over an eighth of its cache: just under a pass.
    assert share("draft_model", BIG) == pytest.approx(1.0)
    assert 0.8 < share("magicdec") < 1.0
    assert share("spire", spire_draft(BIG)) == pytest.approx(
        spire_draft(BIG).footprint.seconds(SCENARIO.machine(BIG), 8, 257) / plain
    )


def test_spire_projects_its_memory() -> None:
    """Its extra arithmetic shows where arithmetic sets the pace."""
    crowd = replace(SCENARIO, batch=4000, context=1)
    draft = spire_draft(BIG)
    seconds = Candidate("spire", assumed(0.8, 16), draft).cost(crowd).seconds(4000, 1, 0.0)
    flops = 4000 * (2 * draft.architecture.pass_parameters + 2 * 2 * draft.architecture.layers * 8 * 4096 * 128)
    assert seconds == pytest.approx(flops / 989.5e12, rel=1e-3)
    assert draft.architecture.layers == 8
    assert draft.architecture.hidden == BIG.architecture.hidden


def test_a_quantised_draft_runs_at_its_own_rate() -> None:
    crowd = replace(SCENARIO, batch=4000, context=1)
    quick = replace(SMALL, storage=Storage(quantization="fp8"))
    slow, fast = (
        Candidate("draft_model", assumed(0.8, 16), draft).cost(crowd).seconds(4000, 1, 0.0) for draft in (SMALL, quick)
    )
    assert slow / fast == pytest.approx(2.0, rel=1e-9)


def test_a_given_share_goes_before_everything() -> None:
    found = drafted(draft=None, share=0.05)
    assert found.k == 8
    assert found.speedup == pytest.approx(3.09, abs=0.005)
    assert found.candidate.name == "draft_model c=0.05"
    assert found.memory.draft_weights == 0.0


def curve(first: float, row: float) -> CostCurve:
    """Passes that take ``first`` and ``row`` more for each row, up to batch 16 and 4096 tokens; keys cost nothing."""
    points = itertools.product((1, 16), (64, 4096), (1, 16, 64))
    return fit_curve({(b, c, n): first + row * n for b, c, n in points if n >= b})


MEASURED = replace(SCENARIO, curve=curve(1.0, 0.01), batch=2)


def test_measured_passes_go_before_the_model() -> None:
    found = drafted(scenario=MEASURED, curve=curve(0.1, 0.0))
    assert MEASURED.plain_seconds == pytest.approx(1.02)
    k, tau = found.k, found.tau
    assert found.speedup == pytest.approx(tau * 1.02 / (1.0 + 0.02 * (k + 1) + 0.1 * k))
    gains = [expected_tokens(assumed(0.8, 16).survival, k) * 1.02 / (1.02 + 0.12 * k) for k in range(17)]
    assert found.speedup == pytest.approx(max(gains))
    assert found.low == pytest.approx(found.speedup * MEASURED_EFFICIENCY)
    assert found.pays == (1, 16)


def test_a_lookup_costs_its_rows_where_these_are_measured() -> None:
    found = drafted(0.5, MEASURED, method="ngram", draft=None)
    assert found.candidate.cost(MEASURED).seconds(2, 2048, 1.0) == 0.0
    assert found.speedup == pytest.approx(found.tau * 1.02 / (1.0 + 0.02 * (found.k + 1)))
    assert found.low == pytest.approx(found.speedup * MEASURED_EFFICIENCY)


def test_rounds_without_a_draft_cost_a_plain_one() -> None:
    """Half of the rounds find nothing; the others keep four tokens of four."""
    found = drafted(scenario=MEASURED, estimate=Estimate((0.5,) * 4, "measured", drafting=0.5), curve=curve(0.1, 0.0))
    assert (found.k, found.tau) == (4, 3.0)
    assert found.speedup == pytest.approx(3.0 * 1.02 / (0.5 * 1.02 + 0.5 * (1.0 + 0.02 * 5 + 4 * 0.1)))
    # Where there is a draft, all of it survives; the least that pays is what it is when every round drafts.
    assert found.alpha == pytest.approx(1.0)
    assert found.least_break_even == drafted(scenario=MEASURED, curve=curve(0.1, 0.0)).least_break_even
    assert drafted(estimate=Estimate((0.0, 0.0), "measured", drafting=0.0)).k == 0


def test_a_step_of_what_was_measured_is_climbed_where_it_pays() -> None:
    """A second row costs as much as four: the first draft token alone loses, three of them win."""
    stairs = fit_curve({(1, 64, n): seconds for n, seconds in ((1, 1.0), (2, 2.0), (4, 2.0), (5, 9.0))})
    scenario = replace(MEASURED, curve=stairs, batch=1, context=64)
    found = drafted(0.9, scenario, method="ngram", draft=None)
    assert found.k == 3
    assert found.speedup == pytest.approx(found.tau / 2.0)
    assert found.pays == (1, 1)


def test_a_draft_that_was_not_timed_keeps_its_modelled_share() -> None:
    share = drafted().candidate.cost(SCENARIO).seconds(2, 2048, 1.0) / SCENARIO.modelled.seconds(2, 2048)
    found = drafted(scenario=MEASURED)
    assert found.candidate.cost(MEASURED).seconds(2, 2048, 1.02) == pytest.approx(share * 1.02)
    assert found.low == pytest.approx(found.speedup * EFFICIENCY)


def test_a_target_drafts_for_itself_at_what_its_own_passes_take() -> None:
    keys = fit_curve({(1, c, n): 1.0 + c / 1000 for c in (64, 4096) for n in (1, 2)})
    scenario = replace(MEASURED, curve=keys, batch=1)
    sparse = Candidate("magicdec", assumed(0.9, 4)).cost(scenario).seconds(1, 2048, 0.0)
    assert sparse == pytest.approx(1.0 + (1 + 2048 // 8) / 1000)


def test_a_draft_timed_by_a_probe_costs_what_it_took_there() -> None:
    """In the machine's own passes, whether the target's were timed or not; a share that is given goes before it."""
    probed = Estimate(assumed(0.8, 16).survival, "probed", draft_cost=0.05)
    fields: dict[str, Any] = {"method": "spire", "draft": spire_draft(BIG), "estimate": probed}
    modelled, measured = drafted(**fields), drafted(scenario=MEASURED, **fields)
    assert modelled.candidate.cost(SCENARIO).seconds(8, 2048, 3.0) == pytest.approx(0.15)
    assert measured.speedup == pytest.approx(measured.tau * 1.02 / (1.02 + 0.02 * measured.k + 0.051 * measured.k))
    assert measured.low == pytest.approx(measured.speedup * MEASURED_EFFICIENCY)
    assert modelled.low == pytest.approx(modelled.speedup * EFFICIENCY)
    # Its memory is still the model's.
    assert modelled.memory == drafted(method="spire", draft=spire_draft(BIG)).memory
    given = drafted(share=0.3, **fields)
    assert given.candidate.cost(SCENARIO).seconds(8, 2048, 1.0) == 0.3
    costs = [
        plan_json(scenario, [each])["drafters"][0]
        for scenario, each in ((SCENARIO, modelled), (MEASURED, measured), (SCENARIO, given))
    ]
    assert [each["draft_cost"] for each in costs] == pytest.approx([0.05, 0.05, 0.3])
    probe = "draft measured by the probe"
    assert [each["cost"] for each in costs] == [f"target modelled, {probe}", f"target measured, {probe}", "modelled"]


def test_a_plan_says_what_was_measured() -> None:
    predictions = [drafted(scenario=MEASURED, curve=curve(0.1, 0.0)), drafted(scenario=MEASURED)]
    document = json.loads(json.dumps(plan_json(MEASURED, predictions), allow_nan=False))
    assert document["measured"] == json.loads(json.dumps(curve(1.0, 0.01).to_json()))
    assert [each["cost"] for each in document["drafters"]] == ["measured", "target measured, draft modelled"]
    assert document["drafters"][0]["draft_cost"] == pytest.approx(0.1 / 1.02)
    assert document["drafters"][0]["pays_at_batch"] == {"from": 1, "to": 16, "of": 16}
    text = plan_text(MEASURED, predictions)
    assert "plain     measured passes: 2.0 tok/s" in text
    assert "1 to 16 at least" in text
    assert "Measured: speedups range from 0.85" in text
    assert "Modelled: speedups range from 0.75" in text
    assert "Measured: " not in plan_text(SCENARIO, [drafted()])
    assert plan_json(SCENARIO, [drafted()])["drafters"][0]["cost"] == "modelled"


@pytest.mark.parametrize(
    ("method", "draft", "message"),
    [
        ("draft_model", None, "'draft_model' needs a draft model"),
        ("spire", None, "'spire' needs a draft model"),
        ("ngram", SMALL, "'ngram' has no draft model of its own, but 'small' is given"),
        ("magicdec", SMALL, "'magicdec' has no draft model"),
    ],
)
def test_methods_and_models_that_do_not_go_together(method: Any, draft: Model | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Candidate(method, assumed(0.5, 4), draft)


def test_the_fastest_that_fits_is_recommended() -> None:
    good, better = drafted(alpha=0.7), drafted(alpha=0.9)
    assert recommend([good, better]) is better
    assert recommend([drafted(alpha=0.01)]) is None
    tight = replace(SCENARIO, device=SCENARIO.device.override(None, 22e9, None))
    assert tight.memory().fits
    heavy, light = drafted(alpha=0.9, scenario=tight), drafted(0.2, tight, method="ngram", draft=None)
    assert heavy.verdict == "does not fit"
    assert recommend([heavy, light]) is light


def test_configurations_that_the_engines_take() -> None:
    found = drafted()
    config = outrider_config(SCENARIO, found)
    assert config == {"method": "draft_model", "model": "small", "num_speculative_tokens": found.k}
    assert parse_speculative_config(config) is not None
    command = vllm_command(SCENARIO, found)
    assert command is not None
    *words, last = shlex.split(command)
    options = ["--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "8", "--speculative-config"]
    assert words == ["vllm", "serve", "/models/big", *options]
    assert json.loads(last) == {**config, "model": "/models/small"}
    lookup = drafted(0.5, method="ngram", draft=None)
    read, default = parse_speculative_config(outrider_config(SCENARIO, lookup)), SpeculativeConfig("ngram")
    assert read is not None
    assert (read.lookup_min, read.lookup_max) == (default.lookup_min, default.lookup_max)
    assert (vllm_command(SCENARIO, None) or "").endswith("--max-num-seqs 8")
    assert vllm_command(SCENARIO, drafted(alpha=0.01)) == vllm_command(SCENARIO, None)
    assert outrider_config(SCENARIO, drafted(alpha=0.01)) is None


def test_quantised_configurations() -> None:
    quantised = drafted(draft=replace(SMALL, storage=Storage(quantization="int8-dynamic")))
    assert (outrider_config(SCENARIO, quantised) or {})["quantization"] == "int8-dynamic"
    assert outrider_config(SCENARIO, drafted(draft=replace(SMALL, storage=Storage(quantization="fp8")))) is None
    fp8 = replace(SCENARIO, target=replace(BIG, storage=Storage(quantization="fp8")))
    assert outrider_config(fp8, drafted(scenario=fp8)) is None
    assert " --quantization fp8 " in (vllm_command(fp8, drafted(scenario=fp8)) or "")


def test_nobody_runs_an_article_yet() -> None:
    found = drafted(method="spire", draft=spire_draft(BIG))
    assert found.k > 0
    assert outrider_config(SCENARIO, found) is None
    assert vllm_command(SCENARIO, found) is None
    text = plan_text(SCENARIO, [found])
    assert "outrider: does not run spire of 8 layers with these weights yet" in text
    assert "vllm:     does not run this drafter" in text


def test_json_is_plain_and_whole() -> None:
    predictions = [drafted(), drafted(alpha=0.01)]
    document = json.loads(json.dumps(plan_json(SCENARIO, predictions), allow_nan=False))
    assert document["schema"] == "outrider.plan/1"
    assert document["plain"]["tokens_per_second"] == SCENARIO.plain_tokens_per_second
    sheet = "NVIDIA H100 data sheet, 2023"
    assert document["hardware"]["sources"] == {
        "bandwidth": sheet,
        "memory": sheet,
        "flops": f"{sheet}, halved: quoted with sparsity",
    }
    assert document["measured"] is None
    first, second = document["drafters"]
    assert first["k"] == predictions[0].k
    assert first["speedup"] == {
        "low": predictions[0].low,
        "limit": predictions[0].speedup,
        "high": predictions[0].high,
    }
    plain = SCENARIO.plain_tokens_per_second
    assert first["tokens_per_second"]["low"] == plain * predictions[0].low
    assert first["memory"]["fits"]
    assert (second["k"], second["verdict"], second["pays_at_batch"]) == (0, "does not pay", None)
    assert document["recommended"]["drafter"] == "draft_model small"
    assert document["recommended"]["speculative_config"]["num_speculative_tokens"] == predictions[0].k
    assert plan_json(SCENARIO, [predictions[1]])["recommended"]["speculative_config"] is None


def test_text_has_a_column_for_each_drafter() -> None:
    predictions = [drafted(), drafted(0.5, method="ngram", draft=None)]
    lines = plan_text(SCENARIO, predictions).splitlines()
    (row,) = (line for line in lines if line.startswith("best k"))
    assert row.split()[2:] == [str(each.k) for each in predictions]
    (row,) = (line for line in lines if line.startswith("speedup"))
    assert row.split("  ")[-1] == f"{predictions[1].low:.2f} to {predictions[1].high:.2f}"
    assert lines[0].startswith("target    big, 8.03 B parameters, 16.1 GB in bfloat16, 131 kB of KV a token")
    assert not any(line != line.rstrip() for line in lines)


def test_text_where_nothing_pays() -> None:
    text = plan_text(SCENARIO, [drafted(alpha=0.01)])
    assert "Plain decoding is the fastest here." in text
    assert "outrider: --speculative-config none" in text
    int8 = replace(SCENARIO, target=replace(BIG, storage=Storage(quantization="int8")))
    assert "with a checkpoint quantised to int8" in plan_text(int8, [drafted(scenario=int8)])
