"""The ablation's numbers: the article's, or those of `outrider train evaluate --json`."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.plan.ablation import published, read_variants
from outrider.plan.article import SMALL


def row(draft: str = "runs/spire", survival: Any = (0.6, 0.4, 0.3, 0.2), **more: Any) -> dict[str, Any]:
    return {"draft": draft, "k": 4, "temperature": 1.0, "context": 512, "interval": [2.4, 2.6], "tau": 2.5} | {
        "survival": list(survival) if isinstance(survival, tuple) else survival,
        **more,
    }


def test_the_article_s() -> None:
    multipliers = [each.multiplier for each in published()]
    assert multipliers == pytest.approx([2.78, 2.76, 2.74, 2.54, 2.51, 2.42], abs=0.005)
    assert all(each.low is None for each in published())


def test_tau_is_one_and_what_survives() -> None:
    (variant,) = read_variants({"evaluations": [row()]}, "here")
    assert (variant.name, variant.k, variant.low, variant.high) == ("runs/spire", 4, 2.4, 2.6)
    assert variant.tau == pytest.approx(2.5)
    assert variant.multiplier == pytest.approx(2.5 / 1.224, abs=0.005)


def test_a_shorter_draft_is_charged_for_its_own_length() -> None:
    (variant,) = read_variants({"evaluations": [row(survival=(0.6, 0.4), interval=None)]}, "here")
    assert (variant.low, variant.high) == (None, None)
    assert variant.multiplier == pytest.approx(2.0 / SMALL.speculation("SPIRe").relative(64, 512)(2))


def test_settings_tell_one_draft_from_itself() -> None:
    rows = [row("a"), row("b", temperature=0.0, context=None), row("b")]
    names = [each.name for each in read_variants({"evaluations": rows}, "here")]
    assert names == ["a", "b, T=0.0, context whole, k=4", "b, T=1.0, context 512, k=4"]


def test_a_lookup_costs_nothing_like_a_draft_and_is_left_out() -> None:
    assert [each.name for each in read_variants({"evaluations": [row("ngram"), row("a")]}, "here")] == ["a"]
    with pytest.raises(ConfigError, match="no evaluation of a trained draft"):
        read_variants({"evaluations": [row("ngram")]}, "here")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "has no evaluations"),
        ({"evaluations": "x"}, "has no evaluations"),
        ({"evaluations": [3]}, "has no evaluations"),
        ({"evaluations": []}, "no evaluation of a trained draft"),
        ({"evaluations": [row(survival=(0.5, 0.6))]}, "damaged .*rises or is no share"),
        ({"evaluations": [row(survival=(1.5,))]}, "damaged"),
        ({"evaluations": [row(survival=())]}, "damaged"),
        ({"evaluations": [row(survival=None)]}, "damaged"),
        ({"evaluations": [row(interval=[1])]}, "damaged"),
        ({"evaluations": [{"draft": "a"}]}, "damaged .*KeyError"),
    ],
)
def test_refused(document: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^here.*{message}"):
        read_variants(document, "here")
