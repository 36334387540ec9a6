"""Random workloads: who arrives when, how long to draft, who is cancelled; and an engine that plays them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from outrider.config import EngineConfig, VerifierName
from outrider.draft.model import ModelDrafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.none import NoDrafter
from outrider.engine.engine import Engine
from outrider.engine.stream import StreamCursor
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import AdversarialDrafter, RandomDrafter, ScheduledController, audit
from tests.support import MODEL, VOCAB, LetterTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outrider.draft.base import Drafter
    from outrider.types import RequestOutput, RequestState, StepTrace, StreamChunk

EOS = 5
LONGEST = 40
OTHER = ToyModel(VOCAB, 2, seed=1, scale=1.0)

DRAFTERS: Mapping[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "ngram": lambda: NgramDrafter(1, 3),
    "same model": lambda: ModelDrafter(ToyRunner(MODEL, 4, LONGEST), VOCAB),
    "other model": lambda: ModelDrafter(ToyRunner(OTHER, 4, LONGEST), VOCAB, max_num_batched_tokens=3),
    "model of short context, two slots": lambda: ModelDrafter(ToyRunner(OTHER, 2, 16), VOCAB, frozenset({EOS})),
    "random": lambda: RandomDrafter(VOCAB, zeros=0.3),
    "adversarial": lambda: AdversarialDrafter(VOCAB, EOS),
}


@dataclass(frozen=True)
class Job:
    """One request: when it arrives, and at which step, if any, its user goes away."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: int = 0
    cancel_at: int | None = None


@dataclass(frozen=True)
class Schedule:
    """Everything that decides a run. A sequence's budget is a function of its own length: neighbours never show."""

    jobs: tuple[Job, ...]
    drafter: str = "none"
    budgets: tuple[int, ...] = (0,)
    rule: VerifierName = "auto"
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 512
    fail_on_call: int | None = None
    sync: bool = False

    def plain(self) -> Schedule:
        return replace(self, drafter="none", budgets=(0,))

    def solo(self, job: Job) -> Schedule:
        return replace(self, jobs=(replace(job, arrival=0, cancel_at=None),))


@dataclass
class Played:
    """What a run left behind; requests are numbered as in the schedule."""

    engine: Engine
    outputs: dict[int, RequestOutput] = field(default_factory=dict)
    chunks: dict[int, list[StreamChunk]] = field(default_factory=dict)
    traces: list[StepTrace] = field(default_factory=list)
    failures: int = 0

    def tokens(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        """Token ids of every answer of every request."""
        return {i: tuple(answer.token_ids for answer in out.outputs) for i, out in sorted(self.outputs.items())}


def engine_for(schedule: Schedule) -> Engine:
    """A fresh engine with the schedule's drafter and sizes."""

    def budget(sequence: RequestState, call: int) -> int:
        del call
        return schedule.budgets[len(sequence.tokens) % len(schedule.budgets)]

    return Engine(
        ToyRunner(MODEL, 4, LONGEST, fail_on_call=schedule.fail_on_call),
        DRAFTERS[schedule.drafter](),
        ScheduledController(budget),
        LetterTokenizer(EOS),
        EngineConfig(schedule.max_num_seqs, schedule.max_num_batched_tokens),
        schedule.rule,
    )


def play(schedule: Schedule) -> Played:
    """Run a schedule to its end, audited after every step that returns."""
    played = Played(engine_for(schedule))
    engine, ids, cursors = played.engine, dict[int, str](), dict[int, StreamCursor]()
    step = 0
    while len(ids) < len(schedule.jobs) or engine.has_work:
        _arrivals(schedule, step, engine, ids, cursors)
        for i, job in enumerate(schedule.jobs):
            if i in ids and job.cancel_at == step:
                engine.cancel(ids[i])
        _step(schedule, played)
        for i, cursor in cursors.items():
            played.chunks.setdefault(i, []).extend(cursor.chunks())
        done = {output.request_id: output for output in engine.collect()}
        played.outputs |= {i: done[request_id] for i, request_id in ids.items() if request_id in done}
        step += 1
    return played


def _arrivals(
    schedule: Schedule, step: int, engine: Engine, ids: dict[int, str], cursors: dict[int, StreamCursor]
) -> None:
    for i, job in enumerate(schedule.jobs):
        if i not in ids and job.arrival <= step:
            ids[i] = engine.add(job.prompt, job.params)
            request = engine.request(ids[i])
            assert request is not None
            cursors[i] = StreamCursor(request)


def _step(schedule: Schedule, played: Played) -> None:
    try:
        played.traces.append(played.engine.step())
    except RuntimeError:
        played.failures += 1
    else:
        audit(played.engine, sync=schedule.sync)


def params(kinds: str = "greedy coupled block") -> st.SearchStrategy[SamplingParams]:
    """Parameters of the named kinds: "greedy", "coupled" (seeded under the rule "auto"), "block" (seeded by no one)."""
    made = {
        "greedy": st.builds(_params, st.just(0.0), st.just(None), _SIZES),
        "coupled": st.builds(_params, _TEMPERATURES, st.integers(0, 2**64 - 1), _SIZES),
        "block": st.builds(_params, _TEMPERATURES, st.just(None), _SIZES),
    }
    return st.one_of(*(made[kind] for kind in kinds.split()))


def _params(temperature: float, seed: int | None, sizes: tuple[int, int, int, bool]) -> SamplingParams:
    n, longest, top_k, ends = sizes
    return SamplingParams(
        n=n,
        temperature=temperature,
        seed=seed,
        max_tokens=longest,
        min_tokens=longest // 4,
        top_k=top_k,
        stop=("ab", "cde") if ends else (),
        stop_token_ids=(7,) if ends else (),
        ignore_eos=not ends,
    )


_TEMPERATURES = st.sampled_from([0.5, 1.0, 2.0])
_SIZES = st.tuples(st.sampled_from([1, 1, 1, 2]), st.integers(1, 14), st.sampled_from([0, 3]), st.booleans())
_PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=LONGEST - 1).map(tuple)


def jobs(kinds: str = "greedy coupled block", cancels: bool = True) -> st.SearchStrategy[Job]:
    """Requests that arrive in the first steps and may be cancelled at any."""
    when = st.one_of(st.none(), st.integers(0, 12)) if cancels else st.none()
    return st.builds(Job, _PROMPTS, params(kinds), st.integers(0, 5), when)


def schedules(
    kinds: str = "greedy coupled block", drafters: tuple[str, ...] = tuple(DRAFTERS), cancels: bool = True
) -> st.SearchStrategy[Schedule]:
    """Workloads of up to five requests, any drafter, ragged budgets, prompts cut into small chunks."""
    return st.builds(
        Schedule,
        st.lists(jobs(kinds, cancels), min_size=1, max_size=5).map(tuple),
        st.sampled_from(drafters),
        st.lists(st.integers(0, 8), min_size=1, max_size=4).map(tuple),
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.sampled_from([1, 2, 5, 512]),
        sync=st.booleans(),
    )
