"""The accept rule on real rows: the exact law of what it emits, against the target's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from outrider.audit.capture import CapturedRound
from outrider.audit.samples import Progress, silent
from outrider.sampling.rng import KeyedRandomness
from outrider.types import Draft
from outrider.verify.base import Verifier
from outrider.verify.reference import Law, Model, Prefix, Row, exact_law, plain_law, total_variation

TOLERANCE: Final = 1e-9
KEYS: Final = 16
"""Seeds under which each round of a coupled rule is judged."""


@dataclass(frozen=True)
class RuleCheck:
    """What the rule did with the rows of real rounds, each cut to a few tokens."""

    verifier: str
    rounds: int
    rows: int
    """Target rows in them; each round was enumerated whole, so its distance bounds that of each of its rows."""
    spread: int
    """Rounds whose drafts were drawn from a reported distribution; the others are point masses."""
    worst: float
    """Largest total variation between what a round emits, continued by plain decoding, and plain decoding."""
    off: int
    """Rounds beyond the tolerance."""
    keyed: int
    """Rounds judged under one key each, where the rule shares its noise with plain decoding; 0 for other rules."""
    keyed_off: int
    """Those whose tokens were not plain decoding's own under the same key."""

    @property
    def passed(self) -> bool:
        # Without a round there is nothing to pass.
        return self.rounds > 0 and not self.off and not self.keyed_off


def check_rule(rounds: Sequence[CapturedRound], greedy: bool, progress: Progress = silent) -> RuleCheck:
    """Enumerate every round; a rule that shares noise is held to plain decoding key by key as well."""
    gaps = []
    for i, each in enumerate(rounds):
        gaps.append(law_gap(each.verifier, each.p_TM, each.q_KM, greedy))
        progress("rule check", i + 1, len(rounds))
    shared = [each for each in rounds if each.verifier.shared_noise]
    keyed = [keyed_tokens_agree(each.verifier, each.p_TM, key) for each in shared for key in range(KEYS)]
    return RuleCheck(
        ", ".join(sorted({each.verifier.name for each in rounds})),
        len(rounds),
        sum(len(each.p_TM) for each in rounds),
        sum(each.q_KM is not None for each in rounds),
        max(gaps, default=0.0),
        sum(gap > TOLERANCE for gap in gaps),
        len(keyed),
        keyed.count(False),
    )


def law_gap(verifier: Verifier, p_TM: Sequence[Row], q_KM: Sequence[Row] | None, greedy: bool) -> float:
    """Total variation between one round, continued by plain decoding to its full length, and plain decoding.

    A row stands for its position, whatever was drafted before it: a rule that is exact is exact for that target too.
    """
    p = _by_position(p_TM)
    expected = _by_position([_one_hot(row) for row in p_TM]) if greedy else p
    q = (lambda _: 0) if q_KM is None else _by_position(q_KM)
    law: defaultdict[Prefix, float] = defaultdict(float)
    for emitted, chance in exact_law(verifier, p, q, len(p_TM) - 1).items():
        for tokens, more in plain_law(expected, len(p_TM), emitted).items():
            law[tokens] += chance * more
    plain: Law = plain_law(expected, len(p_TM))
    return total_variation(law, plain)


def keyed_tokens_agree(verifier: Verifier, p_TM: Sequence[Row], key: int) -> bool:
    """Whether a round under this key emits what the race of each row has, drafts notwithstanding."""
    logp_TM = torch.from_numpy(np.stack(p_TM)).log()
    # Half of the keys draft what plain decoding will say, so that long rounds are judged too.
    draws = KeyedRandomness(key, True).round(0)
    plain = [draws.emit(i, logp_M) for i, logp_M in enumerate(logp_TM)]
    drafted = tuple(plain[:-1]) if key % 2 else (0,) * (len(p_TM) - 1)
    verdict = verifier.judge(Draft(drafted), logp_TM, draws)
    return [*drafted[: verdict.kept], verdict.token] == plain[: verdict.kept + 1]


def _by_position(rows: Sequence[Row]) -> Model:
    return lambda prefix: rows[len(prefix)]


def _one_hot(row: Row) -> Row:
    hot = np.zeros_like(row)
    hot[row.argmax()] = 1.0
    return hot
