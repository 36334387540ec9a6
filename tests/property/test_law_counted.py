"""Invariant 3, by counting with the real noise: the exact test replaces the noise, this one does not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from scipy.stats import chisquare

from outrider.draft.model import ModelDrafter
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import RoundDraws
from outrider.testing import RandomDrafter
from tests.property.test_law_exact import DRAFT, PROMPT, TARGET, Liar, V, plain
from tests.support import make_engine, run_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.config import VerifierName
    from outrider.draft.base import Drafter

ANSWERS = 2000
SLOTS = 64

# With other seeds, a right engine would fail once in 100,000 runs of one case; a liar is caught at far longer odds.
ODDS = 1e-5


def fit(drafter: Drafter, rule: VerifierName, params: SamplingParams, target: ToyModel = TARGET) -> float:
    """Probability that plain decoding strays at least this far from its own law in ``ANSWERS`` samples."""
    engine = make_engine(drafter, 3, runner=ToyRunner(target, SLOTS, 16), rule=rule)
    output = run_one(engine, PROMPT, params)
    counted = Counter(answer.token_ids for answer in output.outputs)
    law = plain(params, target=target)
    assert set(counted) <= set(law), "an impossible text"
    expected = {tokens: chance * ANSWERS for tokens, chance in law.items()}
    # The usual rule for the test to hold: cells of fewer than five are counted together.
    rare = {tokens for tokens, mean in expected.items() if mean < 5}
    observed = [counted[tokens] for tokens in law if tokens not in rare] + [sum(counted[t] for t in rare)]
    means = [mean for tokens, mean in expected.items() if tokens not in rare] + [sum(expected[t] for t in rare)]
    scale = ANSWERS / sum(means)
    cells = [(seen, mean * scale) for seen, mean in zip(observed, means, strict=True) if mean > 0]
    return float(chisquare(*zip(*cells, strict=True)).pvalue)


@pytest.mark.parametrize("rule", ["standard", "block", "coupled"])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_invariant_3_texts_are_as_frequent_as_in_plain_decoding(rule: VerifierName, temperature: float) -> None:
    params = SamplingParams(n=ANSWERS, max_tokens=3, temperature=temperature, seed=11)
    assert fit(ModelDrafter(ToyRunner(DRAFT, SLOTS, 16), V), rule, params) > ODDS


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize(("make", "caught"), [(RandomDrafter, False), (Liar, True)])
def test_the_count_notices_a_lie(rule: VerifierName, make: Callable[[int], Drafter], caught: bool) -> None:
    params = SamplingParams(n=ANSWERS, max_tokens=3, seed=11)
    assert (fit(make(V), rule, params) < ODDS**2) is caught


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_refused_token_is_replaced_with_noise_of_its_own(
    monkeypatch: pytest.MonkeyPatch, rule: VerifierName, shared: bool
) -> None:
    """That the draft lost says something about its noise: drawing the replacement with it would bias the text."""
    if shared:
        monkeypatch.setattr(RoundDraws, "draft", lambda draws, i, logq_W, ids_W: draws.emit(i, logq_W))
    # A pair for which the bias would be large.
    target, draft = ToyModel(V, 1, seed=15), ToyModel(V, 1, seed=16)
    drafter = ModelDrafter(ToyRunner(draft, SLOTS, 16), V)
    pvalue = fit(drafter, rule, SamplingParams(n=ANSWERS, max_tokens=2, seed=11), target)
    assert (pvalue < ODDS) is shared


def test_positions_and_seeds_are_independent() -> None:
    """Neighbouring seeds share nothing: the pair of two answers' first tokens has the product law."""
    params = SamplingParams(n=ANSWERS, max_tokens=1, seed=5)
    output = run_one(make_engine(runner=ToyRunner(TARGET, SLOTS, 16)), PROMPT, params)
    first = [answer.token_ids[0] for answer in output.outputs]
    pairs = Counter(zip(first[::2], first[1::2], strict=True))
    law = plain(SamplingParams(max_tokens=1))
    means = [law[(a,)] * law[(b,)] * ANSWERS / 2 for a in range(V) for b in range(V)]
    observed = [pairs[(a, b)] for a in range(V) for b in range(V)]
    assert float(chisquare(observed, [m * (ANSWERS / 2) / sum(means) for m in means]).pvalue) > ODDS
