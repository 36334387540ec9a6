from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from outrider.errors import ConfigError
from outrider.verify import choose_verifier, verifier_named

if TYPE_CHECKING:
    from outrider.config import VerifierName


@pytest.mark.parametrize(
    ("name", "shared"), [("greedy", False), ("standard", False), ("block", False), ("coupled", True)]
)
def test_each_rule_is_found_and_says_what_it_needs(name: str, shared: bool) -> None:
    verifier = verifier_named(name)
    assert (verifier.name, verifier.lossless, verifier.shared_noise) == (name, True, shared)


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'typical'.*greedy, standard, block, coupled"):
        verifier_named("typical")


@pytest.mark.parametrize(
    ("name", "greedy", "seeded", "chosen"),
    [
        ("auto", False, True, "coupled"),
        ("auto", False, False, "block"),
        ("auto", True, True, "greedy"),
        ("block", True, False, "greedy"),
        ("block", False, True, "block"),
        ("standard", False, False, "standard"),
        ("coupled", False, False, "coupled"),
    ],
)
def test_the_rule_for_a_request(name: VerifierName, greedy: bool, seeded: bool, chosen: str) -> None:
    assert choose_verifier(name, greedy, seeded).name == chosen


def test_the_registry_imports_no_rule_before_its_use() -> None:
    code = "import sys, outrider.verify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
