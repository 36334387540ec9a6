"""A report for people: a line a part, the differences found, and a paragraph in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.audit.control import ControlCheck
from outrider.audit.distribution import HISTOGRAMS, DistributionCheck
from outrider.audit.draws import DrawCheck
from outrider.audit.greedy import Divergence, TokenComparison
from outrider.audit.report import FALSE_ALARM, AuditReport, DraftCount
from outrider.audit.rows import RowCheck
from outrider.audit.rule import RuleCheck

_FIRST, _BOTH = HISTOGRAMS


def table(report: AuditReport) -> str:
    """A line for every part, then one for every difference."""
    rows = [("part", "result", "what was seen"), *_rows(report)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [f"{part:<{widths[0]}}  {result:<{widths[1]}}  {seen}" for part, result, seen in rows]
    return "\n".join([*lines, *_differences(report)])


def paragraph(report: AuditReport) -> str:
    """What was shown and what was not."""
    verdict = "No fault was found."
    if not report.passed:
        verdict = f"FAILED: {', '.join(_NAMES[name] for name in report.failed)}."
    said = [verdict, _greedy_words(report.greedy)]
    if report.seeded is not None:
        said.append(_seeded_words(report.seeded))
    if report.chosen is not None:
        said.append(_chosen_words(report.chosen))
    if report.rows is not None:
        said.append(_row_words(report.rows))
    if report.rule is not None:
        said.append(_rule_words(report.rule))
    if report.draws is not None:
        said.append(_draw_words(report.draws))
    if report.distribution is not None:
        said.append(_distribution_words(report.distribution))
    said.append(_control_words(report.control))
    if report.drafts is not None and not report.drafts.passed:
        said.append(_draft_words(report.drafts))
    said.append(_not_shown(report))
    return " ".join(said)


_NAMES = {
    "greedy": "greedy tokens",
    "seeded": "seeded tokens",
    "chosen": "lengths chosen",
    "rows": "target rows",
    "rule": "rule check",
    "draws": "random draws",
    "distribution": "end to end",
    "control": "negative control",
    "drafts": "drafts",
}


def _rows(report: AuditReport) -> Iterator[tuple[str, str, str]]:
    for name, part in (("greedy", report.greedy), ("seeded", report.seeded), ("chosen", report.chosen)):
        if part is not None:
            yield _NAMES[name], _comparison_result(part), _comparison_seen(part)
    if report.rows is not None:
        yield _NAMES["rows"], "equal" if report.rows.passed else "FAULT", _rows_seen(report.rows)
    if report.rule is not None:
        yield _NAMES["rule"], "exact" if report.rule.passed else "FAULT", _rule_seen(report.rule)
    if report.draws is not None:
        yield _NAMES["draws"], "fair" if report.draws.passed else "BIASED", _draws_seen(report.draws)
    if report.distribution is not None:
        result = "same law" if report.distribution.passed else "BIASED"
        yield _NAMES["distribution"], result, _distribution_seen(report.distribution)
    if report.control is not None:
        result = "caught" if report.control.caught else "NOT SEEN"
        yield _NAMES["control"], result, f"{report.control.mistake}; {report.control.by}"
    if report.drafts is not None:
        result = "made" if report.drafts.passed else "BOTH SIDES" if report.drafts.plain else "NONE"
        seen = f"{report.drafts.drafted} by its own count" + f", {report.drafts.plain} by the plain server's" * bool(
            report.drafts.plain
        )
        yield _NAMES["drafts"], result, seen


def _comparison_result(part: TokenComparison) -> str:
    if not part.divergences and part.passed:
        return "equal"
    return "near-ties" if part.passed else "FAULT"


def _comparison_seen(part: TokenComparison) -> str:
    same = part.prompts - len(part.divergences)
    seen = f"{same}/{part.prompts} prompts the same, {part.tokens} tokens compared"
    if part.judged is not None:
        seen += f", {part.judged} of them judged against a draft"
    if part.noise is not None:
        seen += f"; noise {part.noise.largest:.3g} logits over {part.noise.positions} places"
    return seen


def _differences(report: AuditReport) -> Iterator[str]:
    for part in (report.greedy, report.seeded, report.chosen):
        for each in part.divergences if part is not None else ():
            yield _difference(each)


def _difference(each: Divergence) -> str:
    plain, other = _token(each.split.plain, each.plain_text), _token(each.split.speculative, each.speculative_text)
    line = f"{each.prompt}: at token {each.split.position} plain says {plain}, speculative {other}"
    if each.margin is not None:
        line += f"; margin {each.margin:.3g} logits"
    if each.factor is not None:
        line += f", {each.factor:.2g} x the noise"
    return f"  {line}: {'near-tie' if each.near_tie else 'fault'}"


def _token(token: int | str | None, text: str) -> str:
    return "nothing" if token is None else f"{text!r} ({token})" if text != token else repr(token)


def _rows_seen(check: RowCheck) -> str:
    return f"{check.rows - check.off}/{check.rows} rows shown to the accept rule have plain decoding's own bits"


def _draws_seen(check: DrawCheck) -> str:
    return "; ".join(f"{test.count} {purpose}, p = {test.p_value:.2g}" for purpose, test in check.tests.items())


def _rule_seen(rule: RuleCheck) -> str:
    if not rule.rounds:
        return "no draft was judged, so there was nothing to check: use prompts whose answers repeat their words"
    seen = f"{rule.rounds} rounds ({rule.rows} rows) of rule {rule.verifier!r}, worst total variation {rule.worst:.1g}"
    if rule.off:
        seen += f", {rule.off} beyond rounding error"
    if rule.keyed:
        seen += f"; {rule.keyed - rule.keyed_off}/{rule.keyed} keyed rounds say what plain decoding says"
    return seen


def _distribution_seen(check: DistributionCheck) -> str:
    least = min(check.tests, key=lambda test: test.test.p_value)
    seen = (
        f"{len(check.tests)} histograms of {check.samples} + {check.samples} answers, smallest p = "
        f"{least.test.p_value:.2g} ({least.histogram} of {least.prompt}; alarm below {least.alarm:.1g})"
    )
    if check.judged.told:
        judged = check.judged
        seen += f"; judged against a draft: {judged.first} first and {judged.second} second tokens of {judged.of}"
    return seen


def _greedy_words(part: TokenComparison) -> str:
    if not part.divergences:
        words = f"At temperature 0 all {part.prompts} prompts gave plain decoding's own tokens ({part.tokens} of them)"
    else:
        faults = len(part.faults)
        words = (
            f"At temperature 0, {len(part.divergences)} of {part.prompts} prompts left plain decoding's tokens: "
            f"{len(part.divergences) - faults} at near-ties, which rounding explains, and {faults} as faults"
        )
    if part.exact and part.noise is not None:
        words += f"; the model's promise of the same bits in any company was {'kept' if part.sound else 'BROKEN'}"
    elif not part.sound:
        words += "; the same tokens read another way gave logits further apart than rounding explains"
    return words + "."


def _seeded_words(part: TokenComparison) -> str:
    if part.divergences:
        return f"With the seed, {len(part.divergences)} of {part.prompts} answers were not plain decoding's own."
    return f"With the seed, all {part.prompts} sampled answers were plain decoding's own, token for token."


def _chosen_words(part: TokenComparison) -> str:
    if part.divergences:
        words = (
            f"With draft lengths of the engine's choice, {len(part.divergences)} of {part.prompts} answers left plain "
            f"decoding's tokens, {len(part.faults)} of them as faults"
        )
    elif part.judged == 0:
        words = "Left to choose its draft lengths, the engine drafted nothing, so of these nothing was shown"
    else:
        words = (
            f"With draft lengths of the engine's choice, too, all {part.prompts} answers were plain decoding's own "
            f"({part.judged} tokens judged against a draft)"
        )
    if not part.sound:
        words += "; but logits of the same tokens were not what was promised of them"
    return words + "."


def _row_words(check: RowCheck) -> str:
    if not check.passed:
        return f"Of {check.rows} target rows that the accept rule was shown, {check.off} were not plain decoding's."
    return f"All {check.rows} target rows that the accept rule was shown were plain decoding's own, to the bit."


def _draw_words(check: DrawCheck) -> str:
    if not check.passed:
        return f"Not drawn with the odds they should have: {', '.join(check.rejected)}."
    total = sum(test.count for test in check.tests.values())
    return f"The {total} random draws behind the sampled tokens had the odds they should have."


def _rule_words(rule: RuleCheck) -> str:
    if not rule.rounds:
        return "No draft was judged, so the accept rule was not checked."
    if not rule.passed:
        return (
            f"The accept rule {rule.verifier!r} does not emit the target's law on {rule.off} of {rule.rounds} rounds."
        )
    return (
        f"The accept rule {rule.verifier!r} was led through every random outcome of {rule.rounds} real rounds, "
        f"cut to a few tokens, and emits the target's law to within {rule.worst:.0g}."
    )


def _distribution_words(check: DistributionCheck) -> str:
    if not check.passed:
        return f"End to end, {len(check.rejected)} of {len(check.tests)} histograms are not plain decoding's."
    words = (
        f"End to end, a bias of {check.visible_bias(_FIRST):.0%} of the probability of a first token, or "
        f"{check.visible_bias(_BOTH):.0%} of the first two, would have been seen with 95 % power, and none was"
    )
    if check.rare(_BOTH):
        words += (
            f"; rare outcomes count as one, up to {check.rare(_FIRST):.0%} of the first tokens of a prompt and "
            f"{check.rare(_BOTH):.0%} of the pairs, and biases among themselves are not seen"
        )
    return words + "."


def _draft_words(drafts: DraftCount) -> str:
    if drafts.plain:
        return (
            "The plain server drafted too, so speculation was compared with itself: give one that does not speculate."
        )
    return "The server drafted nothing meanwhile, so nothing was shown about speculation."


def _control_words(control: ControlCheck | None) -> str:
    if control is None:
        return "No deliberate mistake could be planted in a server, so that the tests can fail was not shown here."
    if control.caught:
        small = f"; a smaller one ({', '.join(control.unseen)}) was not: here it changes too little" * bool(
            control.unseen
        )
        return f"A deliberate mistake ({control.mistake}) was caught{small}."
    return (
        f"A deliberate mistake ({control.mistake}) was NOT seen by the same test, so a pass means little: take more "
        "--samples, or prompts whose answers repeat their words from the first token on, so that drafts are made."
    )


def _not_shown(report: AuditReport) -> str:
    unseen = "other prompts and settings"
    if report.distribution is None:
        return f"Not shown: {unseen}."
    return (
        f"Not shown: smaller biases, differences among rare outcomes, sampled tokens after the second, {unseen}. "
        f"Chance alone makes the tests fail a faultless engine with odds of at most {FALSE_ALARM:.2g}."
    )
