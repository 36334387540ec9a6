"""Counts of one request, built from round traces and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.types import PhaseSeconds, RequestMetrics, RoundTrace


@dataclass
class RequestCounter:
    """Adds up the rounds of all answers of a request. Times are seconds of a monotonic clock."""

    arrived: float
    drafter: str
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    first_token: float | None = None
    last_token: float | None = None
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)
    _first_emitted: int = 0
    _survived: list[int] = field(default_factory=list)

    def observe(self, trace: RoundTrace, now: float) -> None:
        """Count a finished round. Accepted tokens are those really committed: none lies beyond a stop."""
        accepted = min(trace.kept, trace.emitted)
        self.rounds += 1
        self.drafted += trace.drafted
        self.accepted += accepted
        self.emitted += trace.emitted
        self._survived += [0] * (accepted - len(self._survived))
        for position in range(accepted):
            self._survived[position] += 1
        if self.first_token is None:
            self.first_token = now
        if self.first_token == now:
            self._first_emitted += trace.emitted
        self.last_token = now

    def metrics(self, answers: int) -> RequestMetrics:
        """Figures so far. ``tpot`` is per answer and leaves out the first step's tokens: their time is in ``ttft``."""
        ttft = tpot = None
        if self.first_token is not None and self.last_token is not None:
            ttft = self.first_token - self.arrived
            if self.emitted > self._first_emitted:
                tpot = (self.last_token - self.first_token) * answers / (self.emitted - self._first_emitted)
        return RequestMetrics(
            ttft=ttft,
            tpot=tpot,
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=self.accepted,
            survival=tuple(count / self.rounds for count in self._survived),
            emitted=self.emitted,
            drafter=self.drafter,
            seconds=self.seconds,
        )
