"""The target that drafts for itself over few keys: its law, its place in the engine, and who cannot have it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.draft.base import Drafter
from outrider.draft.sparse_self import SINK, WINDOW, SparseSelfDrafter, build_sparse_self, sparse_self
from outrider.errors import CapabilityError, ConfigError, ModelError
from outrider.models.base import Feed
from outrider.models.decoder import DecoderRunner
from outrider.models.load import LoadedModel
from outrider.models.toy import ToyRunner
from outrider.testing import DrafterContract, StubSequence
from outrider.types import CommittedStates, Draft, RequestState
from tests.support import GREEDY, MODEL, LetterTokenizer
from tests.unit.decoders import BACKENDS, VOCAB, families, load, on, random_weights, reference
from tests.unit.tiny_llama import write_target

K = 5


def drafted(family: str, tokens: list[int], fresh: int | None = None) -> tuple[int, ...]:
    """K greedy draft tokens behind these, whose states but the last came from a target pass.

    ``fresh``: all K were refused for this token; K behind it.
    """
    config = families()[family]
    runner = load(config, random_weights(config))
    drafter = sparse_self(runner, dict(random_weights(config)), K)
    sequence = StubSequence(0, tokens, GREEDY)
    drafter.open(sequence)
    runner.open(0)
    # In two passes, as a long prompt is read.
    for start, end in ((0, 7), (7, len(tokens) - 1)):
        scores = runner.score([Feed(0, tuple(tokens[start:end]), 0)], layers=drafter.layers)
        assert scores.states is not None
        drafter.remember([CommittedStates(0, start, scores.states[0])])
    draft = drafter.propose([sequence], [K])[0]
    if fresh is None:
        return draft.tokens
    scores = runner.score([Feed(0, (tokens[-1],), 0)], layers=drafter.layers)
    assert scores.states is not None
    sequence.append([fresh])
    drafter.remember([CommittedStates(0, len(tokens) - 1, scores.states[0])])
    return drafter.propose([sequence], [K])[0].tokens


def expected(family: str, tokens: list[int]) -> tuple[int, ...]:
    """The same by Transformers: committed positions saw all before them, own ones see the sink and the window."""
    model = reference(families()[family])
    text = list(tokens)
    for _ in range(K):
        position = torch.arange(len(text))
        behind = position[:, None] - position
        near = (behind <= WINDOW) | (position < SINK)
        seen = (behind >= 0) & (near | (position < len(tokens) - 1)[:, None])
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        with torch.no_grad():
            logits_SV = model(torch.tensor([text]), attention_mask=mask[None, None]).logits[0]
        text.append(int(logits_SV[-1].argmax()))
    return tuple(text[len(tokens) :])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["llama-tied", "llama-odd-head", "llama-one-kv-head"])
def test_drafts_are_the_targets_own_over_few_keys(family: str, backend: str) -> None:
    with on(backend):
        for seed, length in enumerate((9, 40, WINDOW + 2, 150, 300)):
            generator = torch.Generator().manual_seed(seed)
            tokens = torch.randint(0, VOCAB, (length,), generator=generator).tolist()
            assert drafted(family, tokens) == expected(family, tokens)


@pytest.mark.parametrize("length", [40, WINDOW + 1, 150])
def test_a_refusal_loses_no_key(length: int) -> None:
    for seed in range(4):
        tokens = torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
        assert drafted("llama-tied", tokens, fresh=seed) == expected("llama-tied", [*tokens, seed])


def test_the_window_matters() -> None:
    """Negative control: over all keys the target would say something else."""
    model, differs = reference(families()["llama-tied"]), 0
    for seed in range(4):
        tokens = torch.randint(0, VOCAB, (300,), generator=torch.Generator().manual_seed(seed)).tolist()
        text = list(tokens)
        for _ in range(K):
            with torch.no_grad():
                text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
        differs += tuple(text[300:]) != expected("llama-tied", tokens)
    assert differs > 0


class _Fed(SparseSelfDrafter):
    """Runs the target itself over what is committed, as the engine does for it."""

    runner: DecoderRunner

    def open(self, sequence: RequestState) -> None:
        super().open(sequence)
        self.runner.open(sequence.id)

    def close(self, sequence_id: int) -> None:
        super().close(sequence_id)
        self.runner.close(sequence_id)

    def sync(self, sequences: Sequence[RequestState]) -> None:
        for sequence in sequences:
            start = self.runner.length(sequence.id)
            lacking = tuple(sequence.tokens[start:-1])
            if lacking:
                scores = self.runner.score([Feed(sequence.id, lacking, 0)], layers=self.layers)
                assert scores.states is not None
                self.remember([CommittedStates(sequence.id, start, scores.states[0])])

    def propose(self, sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        self.sync(sequences)
        return super().propose(sequences, budgets)


class TestSparseSelfDrafter(DrafterContract):
    vocab_size = VOCAB

    def make_drafter(self) -> Drafter:
        config = families()["llama-tied"]
        runner = load(config, random_weights(config))
        drafter = sparse_self(runner, dict(random_weights(config)), K)
        drafter.__class__ = _Fed
        assert isinstance(drafter, _Fed)
        drafter.runner = runner
        return drafter


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_are_plain_decodings(backend: str, tmp_path: Path) -> None:
    """Inside the window every draft token is right; beyond it some are, and what is said never changes."""
    with on(backend):
        target = write_target(tmp_path)
        llm = LLM(str(target), dtype="float32", speculative_config=None, max_model_len=256, max_num_seqs=3)
        drafting = llm.with_speculation({"method": "sparse_self", "num_speculative_tokens": 4})
        for prompts, inside in ((["abc", "d", "so what. "], True), (["a long story. " * 9, "abc", "xyz" * 30], False)):
            for params in (
                SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
                SamplingParams(temperature=1, seed=4, max_tokens=40, ignore_eos=True),
            ):
                plain, drafted = llm.generate(prompts, params), drafting.generate(prompts, params)
                assert [each.outputs[0].token_ids for each in drafted] == [each.outputs[0].token_ids for each in plain]
                assert {each.metrics.drafter for each in drafted} == {"sparse_self"}
                rates = [each.metrics.acceptance_rate for each in drafted]
                assert min(rates) == 1 if inside else 0 < min(rates) < 1


def test_who_cannot_have_it() -> None:
    toy: Any = ToyRunner(MODEL)
    with pytest.raises(CapabilityError, match=r"does not run toy; use method='ngram'"):
        build_sparse_self(LoadedModel(toy, cast("Any", LetterTokenizer()), cast("Any", None)), K, "float32")
    gemma = families()["gemma3"]
    runner = load(gemma, random_weights(gemma))
    with pytest.raises(ModelError, match="plain Llama blocks"):
        sparse_self(runner, {}, K)
    for name, value in (("model", "x"), ("dtype", "float32"), ("quantization", "int8"), ("prompt_lookup_max", 2)):
        with pytest.raises(ConfigError, match=f"{name}=.* means nothing with method='sparse_self'"):
            SpeculativeConfig.from_dict({"method": "sparse_self", name: value})


def test_it_asks_for_the_state_before_each_block() -> None:
    config = families()["llama-tied"]
    drafter = sparse_self(load(config, random_weights(config)), dict(random_weights(config)), K)
    assert isinstance(drafter, SparseSelfDrafter)
    assert drafter.layers == (0, 1, 2, 3)
