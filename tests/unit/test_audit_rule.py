"""The rule check: exact rules pass, a bias of one percent does not, and real rows are what was judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from outrider.audit.capture import TOKENS, capture, chosen_tokens
from outrider.audit.control import KeepsFirst
from outrider.audit.rule import TOLERANCE, RuleCheck, check_rule, keyed_tokens_agree, law_gap
from outrider.audit.run import EngineAudit
from outrider.config import VerifierName
from outrider.draft.base import Drafter
from outrider.draft.ngram import NgramDrafter
from outrider.sampling.params import SamplingParams
from outrider.testing import AdversarialDrafter, RandomDrafter
from outrider.types import Draft
from outrider.verify import choose_verifier, verifier_named
from outrider.verify.base import Verifier
from outrider.verify.reference import Row, random_model
from tests.unit.audits import (
    GREEDY,
    QUESTIONS,
    SAMPLED,
    VOCAB,
    CornerVerifier,
    GenerousVerifier,
    Spoil,
    make_audit,
)

P = tuple(random_model(6, 1)((i,)) for i in range(3))
Q = tuple(random_model(6, 2)((i,)) for i in range(2))


@pytest.mark.parametrize("name", ["standard", "block"])
@pytest.mark.parametrize("q", [Q, None])
def test_exact_rules_have_no_gap(name: str, q: tuple[Row, ...] | None) -> None:
    assert law_gap(verifier_named(name), P, q, greedy=False) < 1e-12
    assert law_gap(KeepsFirst(verifier_named(name)), P, q, greedy=False) > 0.1


def test_the_greedy_rule_is_held_to_the_likeliest_tokens() -> None:
    assert law_gap(verifier_named("greedy"), P, None, greedy=True) == 0.0
    assert law_gap(verifier_named("block"), P, None, greedy=True) > 0.1
    unlikely_first = tuple(np.sort(row) for row in P)
    assert law_gap(KeepsFirst(verifier_named("greedy")), unlikely_first, None, greedy=True) == 1.0


def test_a_bias_of_two_percent_is_far_beyond_rounding() -> None:
    assert TOLERANCE < 1e-3 < law_gap(GenerousVerifier(), P, Q, greedy=False) < 0.02


def test_impossible_tokens_are_no_trouble() -> None:
    rows = tuple(np.array([0.0, 0.7, 0.3, 0.0]) for _ in range(3))
    for name in ("standard", "block", "coupled"):
        assert law_gap(verifier_named(name), rows, None, greedy=False) < 1e-12


def test_the_coupled_rule_says_what_plain_decoding_says_under_each_key() -> None:
    coupled = verifier_named("coupled")
    assert all(keyed_tokens_agree(coupled, P, key) for key in range(50))
    assert not all(keyed_tokens_agree(KeepsFirst(coupled), P, key) for key in range(50))


def test_rows_are_cut_to_the_drafted_and_the_chosen_tokens() -> None:
    p, q = np.array([0.4, 0.3, 0.2, 0.05, 0.05]), np.array([0.0, 0.05, 0.05, 0.2, 0.7])
    assert chosen_tokens(p, q, drafted=2, count=4) == [2, 0, 4, 1]
    assert chosen_tokens(p, None, drafted=None, count=2) == [0, 1]
    logp_TV = torch.from_numpy(np.stack([p, p, p])).log() + 3.0
    taken = capture(verifier_named("block"), Draft((2, 4), torch.from_numpy(np.stack([q, q])).log()), logp_TV)
    assert taken.q_KM is not None
    assert taken.p_TM[0].tolist() == pytest.approx([p[i] for i in (2, 0, 4, 1, 3)])
    assert taken.q_KM[1].tolist() == pytest.approx([q[i] for i in (4, 0, 1, 3, 2)])
    assert all(row.sum() == pytest.approx(1.0) for row in (*taken.p_TM, *taken.q_KM))
    assert capture(verifier_named("coupled"), Draft((2, 4), logp_TV[:2]), logp_TV).q_KM is None


def test_one_of_many_tokens_is_a_rare_one() -> None:
    p = np.sort(random_model(100, 5)(()))[::-1]
    ids = chosen_tokens(p, None, drafted=50)
    assert ids == [50, *range(TOKENS - 1)], "the rare one is drafted already"
    assert chosen_tokens(p, None, drafted=0) == [*range(TOKENS - 1), 50]
    p[60:] = 0.0
    assert chosen_tokens(p, None, drafted=0)[-1] == 30, "of those that p allows"


@pytest.mark.parametrize(
    ("drafted", "depth", "drafts", "tokens"), [(5, 2, 2, 8), (5, 8, 5, 2), (3, 8, 3, 4), (12, 8, 8, 2)]
)
def test_deep_rounds_keep_fewer_tokens(drafted: int, depth: int, drafts: int, tokens: int) -> None:
    logp_TV = torch.from_numpy(np.stack([random_model(20, 3)((i,)) for i in range(drafted + 1)])).log()
    taken = capture(verifier_named("block"), Draft((1,) * drafted, logp_TV[:-1]), logp_TV, depth)
    assert taken.q_KM is not None
    assert [row.size for row in taken.p_TM] == [tokens] * (drafts + 1)
    assert [row.size for row in taken.q_KM] == [tokens] * drafts
    assert law_gap(taken.verifier, taken.p_TM, taken.q_KM, greedy=False) < 1e-12


@dataclass(frozen=True)
class Case:
    drafter: Drafter
    rule: str
    spread: bool


CASES = {
    "block, drawn": Case(RandomDrafter(VOCAB), "block", True),
    "standard, drawn": Case(RandomDrafter(VOCAB), "standard", True),
    "block, point masses": Case(NgramDrafter(), "block", False),
    "coupled": Case(RandomDrafter(VOCAB), "coupled", False),
}


def rule_check(audit: EngineAudit, params: SamplingParams) -> RuleCheck:
    captured = [round_ for each in audit.watch(QUESTIONS, params) for round_ in each.captured]
    return check_rule(captured[:32], params.greedy)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_of_real_rounds_pass(case: Case) -> None:
    audit = make_audit(case.drafter, rule=case.rule)  # type: ignore[arg-type]
    check = rule_check(audit, SAMPLED)
    assert check.passed
    assert check.worst < 1e-12
    assert check.verifier == case.rule
    assert 10 < check.rounds <= 32
    assert check.spread == (check.rounds if case.spread else 0)
    assert check.rows > check.rounds
    assert (check.keyed > 0) == (case.rule == "coupled")


def test_rows_of_greedy_rounds_pass() -> None:
    check = rule_check(make_audit(AdversarialDrafter(VOCAB, 0)), GREEDY)
    assert check.passed
    assert (check.verifier, check.worst) == ("greedy", 0.0)


def test_a_planted_biased_verifier_is_caught_by_the_rule_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def biased(name: VerifierName, greedy: bool, seeded: bool) -> Verifier:
        chosen = choose_verifier(name, greedy, seeded)
        return GenerousVerifier() if chosen.name == "standard" else chosen

    monkeypatch.setattr("outrider.engine.engine.choose_verifier", biased)
    report = make_audit(RandomDrafter(VOCAB), rule="standard").run(QUESTIONS[:2], SAMPLED, 150)
    assert report.failed == ("rule",)
    assert report.rule is not None
    assert report.rule.off > report.rule.rounds / 2
    assert report.rule.worst > 1e-4
    assert report.distribution is not None
    assert report.distribution.passed, "a bias this small is beyond what samples show"


LATE: dict[str, Spoil] = {
    "from the third draft token on": lambda i, _, probability: 1.1 * probability if i >= 2 else probability,
    "where the target finds it unlikely": lambda _, p, probability: 1.5 * probability if p < 0.01 else probability,
}


@pytest.mark.parametrize("spoil", LATE.values(), ids=LATE)
def test_a_rule_that_errs_in_a_corner_is_caught(monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> None:
    monkeypatch.setattr("outrider.engine.engine.choose_verifier", lambda *_, **__: CornerVerifier(spoil))
    audit = make_audit(RandomDrafter(VOCAB), rule="standard")
    check = rule_check(audit, SAMPLED)
    assert not check.passed
    assert 0 < check.off < check.rounds


def test_nothing_drafted_is_nothing_checked() -> None:
    empty = check_rule([], greedy=False)
    assert (empty.rounds, empty.passed) == (0, False)


def test_a_row_is_never_wider_than_the_vocabulary() -> None:
    assert len(chosen_tokens(P[0], Q[0], 3)) == min(TOKENS, 6)
