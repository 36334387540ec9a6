"""Numeric noise of a model: the same tokens through its runner in passes of different shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

from outrider.audit.greedy import Compared, Noise, Split
from outrider.audit.samples import Token, Tokens
from outrider.config import EngineConfig
from outrider.models.base import Feed, TargetRunner

if TYPE_CHECKING:
    from outrider.engine.engine import EngineTokenizer

PLACES: Final = 48
"""Places of each answer that are measured: around the one where the two ways part, or from its start."""
LIKELY: Final = 8
"""Tokens of a place whose moves are the noise that near-ties are held against: the others cannot win."""

_FAR: Final = 1e9
_MEASURED, _NEIGHBOUR = -1, -2  # sequence ids that no engine gives out


class RunnerExplainer:
    """Asks the runner itself, while no engine uses it. ``width`` is the rows of a whole round, k + 1."""

    def __init__(self, runner: TargetRunner, tokenizer: EngineTokenizer, width: int) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._width = width

    def noise(self, answers: Sequence[Compared]) -> Noise | None:
        """Every answer alone, in rounds of ``width`` rows, and in such rounds beside the next answer."""
        measured = [each for each in answers if each.plain.tokens]
        rows = company = overall = 0.0
        positions = 0
        for i, each in enumerate(measured):
            neighbour = measured[(i + 1) % len(measured)].question.ids
            prompt, answer = each.question.ids, _ids(each.plain.tokens)
            places = _around(each.split, len(answer))
            alone_TV = forced_logits(self._runner, prompt, answer, places, 1)
            likely, whole = _moved(alone_TV, forced_logits(self._runner, prompt, answer, places, self._width))
            rows, overall = max(rows, likely), max(overall, whole)
            if self._runner.max_num_seqs > 1:
                beside_TV = forced_logits(self._runner, prompt, answer, places, self._width, neighbour)
                likely, whole = _moved(alone_TV, beside_TV)
                company, overall = max(company, likely), max(overall, whole)
            positions += len(places)
        return Noise(rows, company, overall, positions) if measured else None

    def margin(self, compared: Compared, split: Split) -> float | None:
        """From the logits of plain decoding's own passes: the prompt, then token by token."""
        if split.plain is None or split.speculative is None:
            return None
        prefix = _ids(compared.plain.tokens[: compared.count])
        place = range(split.position, split.position + 1)
        logits_V = forced_logits(self._runner, compared.question.ids, prefix, place, 1)[0]
        plain, speculative = _ids((split.plain, split.speculative))
        return abs(float(logits_V[plain] - logits_V[speculative]))

    def text(self, token: Token) -> str:
        return self._tokenizer.token_text(*_ids((token,)))


def forced_logits(
    runner: TargetRunner,
    prompt: Sequence[int],
    answer: Sequence[int],
    places: range,
    width: int,
    neighbour: Sequence[int] | None = None,
) -> torch.Tensor:
    """Logits (len(places), V) that choose the tokens of ``answer`` at ``places``; ``width`` rows are fed a pass.

    As in a speculative round whose drafts are all kept, the first pass reads the prompt's last chunk too.
    ``neighbour`` is read, token by token, in the same passes.
    """
    kept: list[torch.Tensor] = []
    place = 0
    with _opened(runner, neighbour is not None):
        for feed in _feeds(prompt, answer, width):
            feeds = [feed] if neighbour is None else [feed, _beside(runner, neighbour)]
            for logits_V in runner.score(feeds).logits[0].float():
                if place in places:
                    # A row on its own: the pass's other rows are not held.
                    kept.append(logits_V.clone())
                place += 1
    return torch.stack(kept)


def _feeds(prompt: Sequence[int], answer: Sequence[int], width: int) -> Iterator[Feed]:
    """The last token of ``answer`` is never fed: nothing after it is asked for."""
    chunk = EngineConfig.max_num_batched_tokens
    last = (len(prompt) - 1) // chunk * chunk
    for start in range(0, last, chunk):
        yield Feed(_MEASURED, tuple(prompt[start : start + chunk]), 0)
    stream = tuple(answer[:-1])
    yield Feed(_MEASURED, (*prompt[last:], *stream[: width - 1]), min(width, len(stream) + 1))
    for start in range(width - 1, len(stream), width):
        tokens = stream[start : start + width]
        yield Feed(_MEASURED, tokens, len(tokens))


def _beside(runner: TargetRunner, neighbour: Sequence[int]) -> Feed:
    length = runner.length(_NEIGHBOUR)
    if length >= min(len(neighbour), runner.max_model_len):
        # It starts over, so that there is always a neighbour.
        runner.close(_NEIGHBOUR)
        runner.open(_NEIGHBOUR)
        length = 0
    return Feed(_NEIGHBOUR, (neighbour[length],), 1)


@contextmanager
def _opened(runner: TargetRunner, company: bool) -> Iterator[None]:
    slots = (_MEASURED, _NEIGHBOUR) if company else (_MEASURED,)
    try:
        for slot in slots:
            runner.open(slot)
        yield
    finally:
        for slot in slots:
            runner.close(slot)


def _around(split: Split | None, length: int) -> range:
    start = 0 if split is None else max(0, split.position - PLACES // 2)
    return range(start, min(start + PLACES, length))


def _moved(a_TV: torch.Tensor, b_TV: torch.Tensor) -> tuple[float, float]:
    """Largest move of a likely token's logit, and largest root mean square move of a place."""
    # What is ruled out at -inf in both has not moved; what is so in one only, or is no number, has left all bounds.
    moved_TV = (b_TV - a_TV).masked_fill(a_TV == b_TV, 0.0).abs().nan_to_num(nan=_FAR, posinf=_FAR)
    likely_TM = a_TV.topk(min(LIKELY, a_TV.shape[-1])).indices
    return float(moved_TV.gather(-1, likely_TM).max()), float(moved_TV.square().mean(-1).sqrt().max())


def _ids(tokens: Tokens) -> tuple[int, ...]:
    ids = tuple(token for token in tokens if isinstance(token, int))
    assert len(ids) == len(tokens), "an engine in this process answers in ids"
    return ids
