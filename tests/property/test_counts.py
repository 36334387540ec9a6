"""Invariant 6: what rounds emit, what streams show and what the request ends with are the same tokens."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given

from outrider.types import FinishReason, RequestOutput, RoundTrace
from tests.property.schedules import EOS, LONGEST, Job, Played, Schedule, play, schedules
from tests.support import LetterTokenizer


@given(schedules())
def test_invariant_6_a_round_emits_what_it_kept_and_one(schedule: Schedule) -> None:
    by_sequence: defaultdict[int, list[RoundTrace]] = defaultdict(list)
    for trace in play(schedule).traces:
        for round_ in trace.rounds:
            assert round_.kept <= round_.drafted
            assert 1 <= round_.emitted <= round_.kept + 1
            by_sequence[round_.sequence_id].append(round_)
    for rounds in by_sequence.values():
        for earlier, _ in pairwise(rounds):
            assert earlier.emitted == earlier.kept + 1, "only a sequence's last round may be cut"


@given(schedules(cancels=False))
def test_invariant_6_a_length_limit_never_cuts_a_round(schedule: Schedule) -> None:
    """Drafts are budgeted so that all of them could be used: only a stop makes a round shorter."""
    played = play(schedule)
    for output in played.outputs.values():
        if all(answer.finish_reason is FinishReason.LENGTH for answer in output.outputs):
            assert all(round_.emitted == round_.kept + 1 for round_ in _rounds(played, output))


@given(schedules())
def test_invariant_6_emitted_streamed_and_returned_agree(schedule: Schedule) -> None:
    played = play(schedule)
    for i, output in played.outputs.items():
        for answer in output.outputs:
            chunks = [chunk for chunk in played.chunks[i] if chunk.index == answer.index]
            assert tuple(token for chunk in chunks for token in chunk.token_ids) == answer.token_ids
            assert "".join(chunk.text for chunk in chunks) == answer.text
            assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [answer.finish_reason]
        emitted = [round_.emitted for round_ in _rounds(played, output)]
        assert sum(emitted) == sum(len(answer.token_ids) for answer in output.outputs) == output.metrics.emitted
        assert output.metrics.rounds == len(emitted)
        assert played.chunks[i][-1].output == output, "the last chunk carries the whole output"
        assert output.metrics.accepted <= output.metrics.drafted


@given(schedules(cancels=False))
def test_invariant_6_every_answer_ends_where_it_must(schedule: Schedule) -> None:
    played = play(schedule)
    for job, output in zip(schedule.jobs, (played.outputs[i] for i in range(len(schedule.jobs))), strict=True):
        for answer in output.outputs:
            _check_end(job, answer.token_ids, answer.text, answer.finish_reason)


def _rounds(played: Played, output: RequestOutput) -> list[RoundTrace]:
    return [round_ for trace in played.traces for round_ in trace.rounds if round_.request_id == output.request_id]


def _check_end(job: Job, tokens: tuple[int, ...], text: str, reason: FinishReason | None) -> None:
    """An end read off the finished answer alone, by the definitions of the parameters."""
    params = job.params
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
    full = LetterTokenizer().decode(tokens)
    limit = min(params.max_tokens or LONGEST, LONGEST - len(job.prompt))
    assert not stops & set(tokens[:-1]), "nothing follows a stop token"
    assert not stops & set(tokens[: params.min_tokens]), "no stop token before min_tokens"
    if reason is FinishReason.LENGTH:
        assert (len(tokens), text) == (limit, full)
        assert tokens[-1] not in stops
    elif tokens[-1] in stops:
        assert text == full[:-1], "the token that ends a text is not part of it"
    else:
        cut = full[len(text) :]
        assert any(cut.startswith(stop) and full.endswith(stop[-1]) for stop in params.stop), "cut at a stop string"
    assert reason in (FinishReason.LENGTH, FinishReason.STOP)
