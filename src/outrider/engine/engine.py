"""The decode loop: one path for prefill, plain decoding (k = 0) and speculation, over a ragged batch."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from itertools import count
from typing import Protocol

import torch

from outrider.config import EngineConfig, VerifierName
from outrider.control.base import Controller
from outrider.draft.base import Drafter, StateDrafter, drafter_names, offers_of, propose_chosen
from outrider.engine.checks import check_prompt, check_speculation, check_tokens
from outrider.engine.clock import PhaseClock
from outrider.engine.detokenizer import TextDecoder
from outrider.engine.judge import Judged, judge
from outrider.engine.metrics import RequestCounter
from outrider.engine.request import Request
from outrider.engine.scheduler import Batch, Scheduler
from outrider.engine.sequence import Limits, Sequence
from outrider.models.base import Feed, Scores, TargetRunner
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import KeyedRandomness, child_seed, fresh_seed
from outrider.types import (
    Choice,
    CommittedStates,
    Draft,
    Offer,
    PhaseSeconds,
    RequestOutput,
    RequestState,
    RoundTrace,
    StepTrace,
)
from outrider.verify import choose_verifier


class EngineTokenizer(TextDecoder, Protocol):
    """What the engine asks of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def token_text(self, token: int) -> str: ...


class Engine:
    """Serves requests with continuous batching; not thread-safe, a step is atomic to its caller.

    After every step, for each sequence past its prompt: ``runner.length == len(tokens) - 1``.
    """

    def __init__(
        self,
        runner: TargetRunner,
        drafter: Drafter,
        controller: Controller,
        tokenizer: EngineTokenizer,
        config: EngineConfig | None = None,
        rejection_sample_method: VerifierName = "auto",
        sequence_ids: Iterator[int] | None = None,
    ) -> None:
        """``sequence_ids`` is shared by engines over one runner, whose slots are named by these ids."""
        config = config or EngineConfig(max_num_seqs=runner.max_num_seqs)
        self.runner = runner
        self.drafter = drafter
        self._state_drafter = drafter if isinstance(drafter, StateDrafter) and drafter.layers else None
        self.controller = controller
        self.tokenizer = tokenizer
        self._limits = Limits(tokenizer.eos_ids, runner.max_model_len)
        self._rule = rejection_sample_method
        self._scheduler = Scheduler(min(config.max_num_seqs, runner.max_num_seqs), config.max_num_batched_tokens)
        self._requests: dict[str, Request] = {}
        self._done: list[Request] = []
        self._request_ids = count()
        self._sequence_ids = count() if sequence_ids is None else sequence_ids
        self._interrupted = False

    # --- requests -----------------------------------------------------------------------------------------

    def check(self, prompt_ids: Seq[int], params: SamplingParams) -> None:
        """Raise RequestError if the request could never be served; changes nothing."""
        check_prompt(prompt_ids, self.runner.max_model_len)
        check_tokens(prompt_ids, params, self.runner.vocab_size, self._limits.eos_ids)
        check_speculation(params, drafter_names(self.drafter))

    def keeps_bytes(self, params: SamplingParams) -> bool:
        """Whether such a request's tokens are plain decoding's own, and not only drawn from the same law."""
        rule = choose_verifier(self._rule, greedy=params.greedy, seeded=params.seed is not None)
        return self.runner.capabilities.deterministic_shape and (params.greedy or rule.shared_noise)

    def add(self, prompt_ids: Seq[int], params: SamplingParams, prompt: str | None = None) -> str:
        """Queue a request; returns its id. Raises RequestError and leaves every other request as it was."""
        self.check(prompt_ids, params)
        request_id = f"req-{next(self._request_ids)}"
        ids = tuple(prompt_ids)
        base_seed = fresh_seed() if params.seed is None else params.seed
        sequences = tuple(self._new_sequence(request_id, i, ids, params, base_seed) for i in range(params.n))
        counter = RequestCounter(time.perf_counter(), self.drafter.name)
        self._requests[request_id] = Request(request_id, prompt, ids, sequences, counter)
        for sequence in sequences:
            self._scheduler.add(sequence)
        return request_id

    def cancel(self, request_id: str) -> None:
        """End a request where it stands and free its slots now; unknown or finished ids are ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return
        for sequence in request.sequences:
            sequence.abort()
            self._release(sequence)
        self._retire(request)

    def cancel_all(self) -> None:
        """End every request where it stands."""
        for request_id in list(self._requests):
            self.cancel(request_id)

    def request(self, request_id: str) -> Request | None:
        """A request still being served, for streaming; None once it has finished."""
        return self._requests.get(request_id)

    def collect(self, request_ids: Collection[str] | None = None) -> list[RequestOutput]:
        """Outputs of the requests (of those named) that ended since the last call; the engine forgets them."""
        wanted = {request.id for request in self._done} if request_ids is None else set(request_ids)
        # Outputs first: if one cannot be made, none is forgotten.
        outputs = [request.output() for request in self._done if request.id in wanted]
        self._done = [request for request in self._done if request.id not in wanted]
        return outputs

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences holding a KV slot."""
        return tuple(self._scheduler.running)

    # --- the loop -----------------------------------------------------------------------------------------

    def step(self) -> StepTrace:
        """One round of every running sequence.

        If the runner, a verifier or a drafter that proposes raises, no token was committed. Whatever raises, the step
        may be called again.
        """
        clock = PhaseClock()
        self._recover()
        self._admit()
        batch = self._scheduler.next_batch(self.runner.length)
        choices = self._choose(batch.ready)
        schedule = clock.lap()
        drafts = self._propose(batch, choices)
        draft = clock.lap()
        scores, starts, rows = self._score(batch, drafts)
        target = clock.lap()
        ready = list(zip(batch.ready, drafts, scores.logits[: len(drafts)], strict=True))
        verdicts = [judge(*each, self.tokenizer.token_text) for each in ready]
        verify = clock.lap()
        rounds = self._commit(ready, choices, verdicts)
        self._hand_states(batch, scores, starts)
        seconds = PhaseSeconds(schedule, draft, target, verify, clock.lap())
        return self._trace(batch, StepTrace(rounds, seconds, *rows))

    def _recover(self) -> None:
        """Put right what a step that raised left behind: drafts in the KV, ended sequences still running."""
        if self._interrupted:
            for seq in self.running:
                if seq.finished:
                    self._release(seq)
                elif self.runner.length(seq.id) >= len(seq.tokens):
                    self._rewind(seq)
            for request in [request for request in self._requests.values() if request.finished]:
                self._retire(request)
        self._interrupted = True

    def _rewind(self, seq: Sequence) -> None:
        # Lengths are absolute, so undoing what was fed needs no memory of it. A cache that cannot be cut is refilled.
        if self.runner.capabilities.rollback == "truncate":
            self.runner.commit(seq.id, len(seq.tokens) - 1)
        else:
            self.runner.close(seq.id)
            self.runner.open(seq.id)

    def _admit(self) -> None:
        while (seq := self._scheduler.next_in_line()) is not None:
            try:
                self.runner.open(seq.id)
                self.drafter.open(seq)
            except BaseException:
                self.runner.close(seq.id)
                self.drafter.close(seq.id)
                raise
            self._scheduler.admit(seq)

    def _choose(self, ready: Seq[Sequence]) -> list[Choice]:
        """What each request asks for, and for the others what the controller chooses."""
        free = [seq for seq in ready if seq.params.speculation.num_speculative_tokens is None]
        choices = dict(zip((seq.id for seq in free), self.controller.choose(free, self._offers), strict=True))
        for seq in ready:
            asked = seq.params.speculation.num_speculative_tokens
            if asked is not None:
                offers = self._offers(seq) if asked else ()
                choices[seq.id] = Choice(asked, offers[0]) if offers else Choice()
        # A round emits at most k + 1 tokens, so more than room - 1 drafts could never all be used; this also
        # keeps len(tokens) + k within the slot.
        limited = ((choices[seq.id], seq.room - 1) for seq in ready)
        return [Choice(max(0, min(choice.tokens, room)), choice.offer) for choice, room in limited]

    def _offers(self, seq: RequestState) -> tuple[Offer, ...]:
        return offers_of(self.drafter, seq)

    def _propose(self, batch: Batch, choices: list[Choice]) -> list[Draft]:
        active = [(seq, choice) for seq, choice in zip(batch.ready, choices, strict=True) if choice.tokens > 0]
        # Long prompts are read along; for a round without a draft the drafter does nothing.
        reading = [seq for seq, _ in batch.filling if seq.params.speculation.drafts]
        if reading:
            self.drafter.sync(reading)
        proposed = propose_chosen(self.drafter, [seq for seq, _ in active], [c for _, c in active]) if active else []
        drafts = {seq.id: draft for (seq, _), draft in zip(active, proposed, strict=True)}
        vocab = self.runner.vocab_size
        assert all(len(drafts[seq.id].tokens) <= c.tokens for seq, c in active), "a drafter exceeded its budget"
        assert all(0 <= t < vocab for draft in proposed for t in draft.tokens), "a draft token is not in the vocabulary"
        return [drafts.get(seq.id, Draft()) for seq in batch.ready]

    def _score(self, batch: Batch, drafts: list[Draft]) -> tuple[Scores, list[int], tuple[int, int]]:
        """Scores, the position at which each feed starts, and how many rows there were, in all and of prompts."""
        feeds = list(self._feeds(batch, drafts))
        starts = [self.runner.length(feed.sequence_id) for feed in feeds]
        fed = sum(len(feed.tokens) for feed in feeds)
        rows = (fed, fed - sum(feed.rows for feed in feeds))
        if self._state_drafter is None:
            return self.runner.score(feeds), starts, rows
        return self.runner.score(feeds, layers=self._state_drafter.layers), starts, rows

    def _hand_states(self, batch: Batch, scores: Scores, starts: Seq[int]) -> None:
        """To a drafter that reads them, the states of what is now committed."""
        if self._state_drafter is None or scores.states is None:
            return
        sequences = (*batch.ready, *(seq for seq, _ in batch.filling))
        committed = []
        for seq, start, states_LND in zip(sequences, starts, scores.states, strict=True):
            if not seq.finished and seq.params.speculation.drafts:
                kept = self.runner.length(seq.id) - start
                whole = kept == states_LND.shape[1]
                committed.append(CommittedStates(seq.id, start, states_LND if whole else states_LND[:, :kept]))
        self._state_drafter.remember(committed)

    def _feeds(self, batch: Batch, drafts: list[Draft]) -> Iterator[Feed]:
        #   tokens:  [ KV holds these | lacking ... pending ] + drafts
        #            ^0               ^length      len(tokens)^
        for seq, draft in zip(batch.ready, drafts, strict=True):
            lacking = tuple(seq.tokens[self.runner.length(seq.id) :])
            yield Feed(seq.id, lacking + draft.tokens, rows=len(draft.tokens) + 1)
        for seq, chunk in batch.filling:
            start = self.runner.length(seq.id)
            yield Feed(seq.id, tuple(seq.tokens[start : start + chunk]), rows=0)

    def _commit(
        self,
        ready: Seq[tuple[Sequence, Draft, torch.Tensor]],
        choices: Seq[Choice],
        judged: Seq[Judged | None],
    ) -> tuple[RoundTrace, ...]:
        now = time.perf_counter()
        rounds = []
        for (seq, draft, _), choice, each in zip(ready, choices, judged, strict=True):
            if each is None:
                # This sequence cannot go on; its neighbours can.
                seq.abort("the model gave NaN logits")
                self._release(seq)
                continue
            emitted = seq.append(each.tokens, each.logprobs)
            drafted = len(draft.tokens)
            trace = RoundTrace(seq.request_id, seq.id, self.drafter.name, drafted, each.kept, emitted, choice)
            self._requests[seq.request_id].counter.observe(trace, now)
            self.runner.commit(seq.id, len(seq.tokens) - 1)
            rounds.append(trace)
            if seq.finished:
                self._release(seq)
        return tuple(rounds)

    def _trace(self, batch: Batch, trace: StepTrace) -> StepTrace:
        """Share out the step's time, hand its record to the controller, and let finished requests go."""
        for request_id in {seq.request_id for seq in (*batch.ready, *(seq for seq, _ in batch.filling))}:
            request = self._requests[request_id]
            request.counter.seconds += trace.seconds
            if request.finished:
                self._retire(request)
        self.controller.observe(trace)
        self._interrupted = False
        return trace

    # --- helpers ------------------------------------------------------------------------------------------

    def _new_sequence(
        self, request_id: str, index: int, prompt: tuple[int, ...], params: SamplingParams, base_seed: int
    ) -> Sequence:
        verifier = choose_verifier(self._rule, greedy=params.greedy, seeded=params.seed is not None)
        randomness = KeyedRandomness(child_seed(base_seed, index), verifier.shared_noise)
        return Sequence(
            next(self._sequence_ids),
            request_id,
            index,
            prompt,
            params,
            verifier,
            randomness,
            self._limits,
            self.tokenizer,
        )

    def _release(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self.runner.close(sequence.id)
        self.drafter.close(sequence.id)
        self.controller.close(sequence.id)

    def _retire(self, request: Request) -> None:
        del self._requests[request.id]
        self._done.append(request)
