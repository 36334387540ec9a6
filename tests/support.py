"""A tiny engine to try things on: a toy model over letters, and helpers that run requests through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.control.fixed import FixedController
from outrider.control.step_cost import StepCost
from outrider.draft.none import NoDrafter
from outrider.engine.engine import Engine, EngineTokenizer
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import ScriptedDrafter, audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.config import EngineConfig, VerifierName
    from outrider.control.base import Controller
    from outrider.draft.base import Drafter
    from outrider.types import RequestOutput, RequestState

VOCAB = 12
MODEL = ToyModel(VOCAB, 2, seed=1)
GREEDY = SamplingParams(temperature=0.0)


class LetterTokenizer:
    """Token 0 is 'a', token 1 is 'b' and so on; which of them end a text is up to the test."""

    def __init__(self, *eos_ids: int) -> None:
        self._eos_ids = frozenset(eos_ids)

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token) for token in ids)

    def token_text(self, token: int) -> str:
        return self.decode([token])


class SteadyCost(StepCost):
    """Learns nothing from the clock, so that what is chosen depends on past rounds and not on this machine."""

    def observe(self, rows: int, seconds: float) -> None:
        del rows, seconds


def make_engine(
    drafter: Drafter | None = None,
    k: int | Controller = 4,
    *,
    runner: ToyRunner | None = None,
    tokenizer: EngineTokenizer | None = None,
    config: EngineConfig | None = None,
    rule: VerifierName = "auto",
) -> Engine:
    """An engine over ``MODEL`` unless told otherwise; ``k`` is a draft length or a controller."""
    return Engine(
        runner or ToyRunner(MODEL, max_num_seqs=4, max_model_len=64),
        drafter or NoDrafter(),
        FixedController(k) if isinstance(k, int) else k,
        tokenizer or LetterTokenizer(),
        config,
        rule,
    )


def run_all(engine: Engine) -> dict[str, RequestOutput]:
    """Step until nothing is left to do, audited after every step; outputs by request id."""
    outputs: dict[str, RequestOutput] = {}
    while engine.has_work:
        engine.step()
        audit(engine)
        outputs |= {output.request_id: output for output in engine.collect()}
    return outputs


def run_one(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> RequestOutput:
    """One request on its own."""
    request_id = engine.add(prompt, params)
    return run_all(engine)[request_id]


def oracle(text: Sequence[int]) -> ScriptedDrafter:
    """A drafter that knows the whole sequence, prompt included, and proposes exactly what comes next."""

    def script(sequence: RequestState, budget: int) -> Sequence[int]:
        at = len(sequence.tokens)
        return text[at : at + budget]

    return ScriptedDrafter(script)
