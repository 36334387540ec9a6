"""All parts of an audit together, and their JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from outrider.audit.control import ControlCheck
from outrider.audit.distribution import HISTOGRAMS, DistributionCheck
from outrider.audit.draws import DrawCheck
from outrider.audit.greedy import TokenComparison
from outrider.audit.rows import RowCheck
from outrider.audit.rule import RuleCheck

SCHEMA: Final = "outrider.audit/1"
FALSE_ALARM: Final = 1e-4
"""Odds that an audit of a faultless engine fails, over all of its statistical tests."""


class Part(Protocol):
    """What every part says of itself."""

    @property
    def passed(self) -> bool: ...


@dataclass(frozen=True)
class DraftCount:
    """Draft tokens that the servers' own counters say they made during the audit."""

    drafted: int
    plain: int = 0
    """Those of the server that is to be plain: with any, speculation is compared with itself."""

    @property
    def passed(self) -> bool:
        return self.drafted > 0 and not self.plain


@dataclass(frozen=True)
class AuditReport:
    """What an audit saw. None stands for a part that does not apply."""

    greedy: TokenComparison
    seeded: TokenComparison | None = None
    """Sampling with a seed under a rule that keeps plain decoding's tokens."""
    rows: RowCheck | None = None
    rule: RuleCheck | None = None
    draws: DrawCheck | None = None
    distribution: DistributionCheck | None = None
    control: ControlCheck | None = None
    drafts: DraftCount | None = None
    chosen: TokenComparison | None = None
    """Tokens where the engine chooses draft lengths; greedy, or with the seed where tokens are promised."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts that were run, in order."""
        parts: dict[str, Part | None] = {
            "greedy": self.greedy,
            "seeded": self.seeded,
            "chosen": self.chosen,
            "rows": self.rows,
            "rule": self.rule,
            "draws": self.draws,
            "distribution": self.distribution,
            "control": self.control,
            "drafts": self.drafts,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the parts that found a fault; the control's, when it was not seen."""
        return tuple(name for name, part in self.parts.items() if not part.passed)

    @property
    def passed(self) -> bool:
        return not self.failed


def report_json(report: AuditReport, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One document in plain JSON; ``settings`` says what was audited and how."""
    return {
        "schema": SCHEMA,
        "passed": report.passed,
        "failed": list(report.failed),
        "settings": dict(settings),
        "false_alarm": FALSE_ALARM,
        "greedy": _comparison_json(report.greedy),
        "seeded": None if report.seeded is None else _comparison_json(report.seeded),
        "chosen": None if report.chosen is None else _comparison_json(report.chosen),
        "rows": _part_json(report.rows),
        "rule": _part_json(report.rule),
        "draws": _part_json(report.draws),
        "distribution": None if report.distribution is None else _distribution_json(report.distribution),
        "control": _part_json(report.control),
        "drafts": _part_json(report.drafts),
    }


def _part_json(part: RowCheck | RuleCheck | DrawCheck | ControlCheck | DraftCount | None) -> dict[str, Any] | None:
    return None if part is None else asdict(part) | {"passed": part.passed}


def _comparison_json(part: TokenComparison) -> dict[str, Any]:
    return asdict(part) | {
        "passed": part.passed,
        "divergences": [asdict(each) | {"factor": each.factor} for each in part.divergences],
    }


def _distribution_json(part: DistributionCheck) -> dict[str, Any]:
    return asdict(part) | {
        "passed": part.passed,
        "tests": [
            asdict(test) | {"rejected": test.rejected, "smallest_bias": test.smallest_bias} for test in part.tests
        ],
        "visible_bias": {name: part.visible_bias(name) for name in HISTOGRAMS},
    }
