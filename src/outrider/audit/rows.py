"""Are the target rows that accept rules were shown plain decoding's own, bit by bit?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.audit.noise import forced_logits
from outrider.audit.samples import Progress, silent
from outrider.audit.watch import ShownRows, Watched, digest
from outrider.models.base import TargetRunner
from outrider.sampling.arrays import as_floats
from outrider.sampling.policy import PolicyRows


@dataclass(frozen=True)
class RowCheck:
    """Target rows along whole answers, after policy, at every draft position and over the whole vocabulary."""

    rows: int
    off: int
    """Those that are not what plain decoding computes after the same tokens."""

    @property
    def passed(self) -> bool:
        return not self.off


def check_rows(watched: Sequence[Watched], runner: TargetRunner, progress: Progress = silent) -> RowCheck:
    """Decode every answer again, a token a pass. For runners that promise bits: others round as it comes."""
    same: list[bool] = []
    for i, each in enumerate(watched):
        same += _compare(each, runner)
        progress("target rows", i + 1, len(watched))
    return RowCheck(len(same), same.count(False))


def _compare(watched: Watched, runner: TargetRunner) -> list[bool]:
    """Whether each row shown for this answer's own tokens has plain decoding's bits."""
    sequence = watched.sequence
    prompt, answer = sequence.tokens[: sequence.prompt_length], sequence.tokens[sequence.prompt_length :]
    logits_TV = as_floats(forced_logits(runner, prompt, answer, range(len(answer)), 1))
    rows_TV = PolicyRows(logits_TV, sequence.params, 0, sequence.stop_ids, not watched.rule.shared_noise)
    own = [digest(rows_TV[i]) for i in range(len(answer))]
    return [
        shown.digests[i] == own[place]
        for shown in watched.shown
        for i, place in enumerate(range(shown.start - len(prompt), len(answer)))
        if i < len(shown.digests) and _on_path(shown, i, answer[place - i : place])
    ]


def _on_path(shown: ShownRows, i: int, said: Sequence[int]) -> bool:
    """Whether the drafts before row i were kept: rows behind a refused one are about another text."""
    return list(shown.draft[:i]) == list(said)
