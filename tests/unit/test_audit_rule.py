"""The rule check: exact rules pass, a bias of one percent does not, and real rows are what was judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from outrider.audit.capture import TOKENS, CapturedRound, capture, likeliest
from outrider.audit.control import KeepsFirst
from outrider.audit.rule import RACE_DRAWS, TOLERANCE, check_rule, keyed_tokens_agree, law_gap, race_p_value
from outrider.config import VerifierName
from outrider.draft.base import Drafter
from outrider.draft.ngram import NgramDrafter
from outrider.testing import AdversarialDrafter, RandomDrafter
from outrider.types import Draft
from outrider.verify import choose_verifier, verifier_named
from outrider.verify.base import Verifier
from outrider.verify.reference import Row, random_model
from tests.unit.audits import GREEDY, QUESTIONS, SAMPLED, VOCAB, GenerousVerifier, make_audit

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
    assert race_p_value(rows[0], 0) > 1e-6


def test_the_coupled_rule_says_what_plain_decoding_says_under_each_key() -> None:
    coupled = verifier_named("coupled")
    assert all(keyed_tokens_agree(coupled, P, key) for key in range(50))
    assert not all(keyed_tokens_agree(KeepsFirst(coupled), P, key) for key in range(50))


def test_the_law_of_the_race_is_seen() -> None:
    assert race_p_value(P[0], 3) > 1e-6
    law = np.array([0.5, 0.5 - 1e-3, 1e-3])
    assert race_p_value(law, 0) > 1e-6, f"{RACE_DRAWS} draws hold a few of the rare token"


def test_a_race_with_another_law_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.sampling import rng

    race = rng._race
    monkeypatch.setattr(rng, "_race", lambda logp, noise: race(logp * np.float32(1.15), noise))
    assert race_p_value(P[0], 3) < 1e-5
    report = check_rule([CapturedRound(verifier_named("coupled"), P, None)], greedy=False, race_alarm=1e-5)
    assert (report.off, report.keyed_off) == (0, 0), "only the race's own law is another"
    assert not report.passed


def test_rows_are_cut_to_the_drafted_and_the_likeliest() -> None:
    p, q = np.array([0.4, 0.3, 0.2, 0.05, 0.05]), np.array([0.0, 0.05, 0.05, 0.2, 0.7])
    assert likeliest(p, q, drafted=2, count=4) == [2, 0, 4, 1]
    assert likeliest(p, None, drafted=None, count=2) == [0, 1]
    logp_TV = torch.from_numpy(np.stack([p, p, p])).log() + 3.0
    taken = capture(verifier_named("block"), Draft((2, 4), torch.from_numpy(np.stack([q, q])).log()), logp_TV)
    assert taken.q_KM is not None
    assert taken.p_TM[0].tolist() == pytest.approx([p[i] for i in (2, 0, 4, 1, 3)])
    assert taken.q_KM[1].tolist() == pytest.approx([q[i] for i in (4, 0, 1, 3, 2)])
    assert all(row.sum() == pytest.approx(1.0) for row in (*taken.p_TM, *taken.q_KM))
    assert capture(verifier_named("coupled"), Draft((2, 4), logp_TV[:2]), logp_TV).q_KM is None


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


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_of_real_rounds_pass(case: Case) -> None:
    audit = make_audit(case.drafter, rule=case.rule)  # type: ignore[arg-type]
    check, _ = audit.rule(QUESTIONS, SAMPLED)
    assert check.passed
    assert check.worst < 1e-12
    assert check.verifier == case.rule
    assert 10 < check.rounds <= 32
    assert check.spread == (check.rounds if case.spread else 0)
    assert check.rows > check.rounds
    assert (check.keyed > 0) == (case.rule == "coupled")


def test_rows_of_greedy_rounds_pass() -> None:
    check, _ = make_audit(AdversarialDrafter(VOCAB, 0)).rule(QUESTIONS, GREEDY)
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


def test_nothing_drafted_is_nothing_checked() -> None:
    empty = check_rule([], greedy=False, race_alarm=1e-5)
    assert (empty.rounds, empty.passed) == (0, False)


def test_a_row_is_never_wider_than_the_vocabulary() -> None:
    assert len(likeliest(P[0], Q[0], 3)) == min(TOKENS, 6)
