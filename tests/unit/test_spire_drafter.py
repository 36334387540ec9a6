"""The SPIRe drafter in the engine, over a small real decoder: on torch ops and on native kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.control.fixed import FixedController
from outrider.draft.base import Drafter, StateDrafter
from outrider.draft.build import build_drafter
from outrider.draft.ngram import NgramDrafter
from outrider.draft.none import NoDrafter
from outrider.draft.spire.build import build_spire
from outrider.draft.spire.config import SpireConfig
from outrider.draft.spire.step_native import NativeSpireStep
from outrider.draft.spire.step_torch import TorchSpireStep
from outrider.draft.spire.weights import SpireWeights, load, save
from outrider.engine.engine import Engine
from outrider.errors import CapabilityError, ModelError
from outrider.models.base import Feed
from outrider.models.decoder import DecoderRunner
from outrider.models.load import LoadedModel
from outrider.models.toy import ToyRunner
from outrider.sampling.params import SamplingParams
from outrider.testing import StubSequence
from outrider.train.methods.spire.model import SpireModule
from outrider.train.methods.spire.train import start_from_target
from outrider.types import Choice, CommittedStates, Draft, Offer, RequestState
from tests.support import GREEDY, MODEL, LetterTokenizer
from tests.unit.decoders import BACKENDS, VOCAB, families, on, random_weights, reference
from tests.unit.decoders import load as load_decoder

LLAMA = families()["llama-tied"]
PROMPTS = [[5, 9, 2, 40, 7], [1], [*range(3, 90)]]
SEEDED = SamplingParams(temperature=1.0, seed=3, max_tokens=24)
K = 4


@pytest.fixture(params=BACKENDS)
def runner(request: pytest.FixtureRequest) -> Iterator[DecoderRunner]:
    with on(request.param):
        yield load_decoder(LLAMA, random_weights(LLAMA))


def target_of(runner: Any) -> LoadedModel:
    return LoadedModel(runner, cast("Any", LetterTokenizer()), cast("Any", None))


def whole_target() -> SpireWeights:
    """Every block of the target, every key, no feedback: the target itself, written as a draft."""
    sizes = {
        "blocks": (0, 1, 2, 3),
        "reads": (0, 1, 2, 3),
        "draft_vocab_size": VOCAB,
        "window": None,
        "feedback": False,
    }
    config = SpireConfig.of_target(load_decoder(LLAMA, random_weights(LLAMA)).config, **sizes)
    tensors = dict(random_weights(LLAMA))
    module = SpireModule(config, 8)
    start_from_target(module, tensors, tensors["model.embed_tokens.weight"])
    named = {name.removesuffix(".weight"): p.detach() for name, p in module.named_parameters()}
    return SpireWeights(config, named, torch.arange(VOCAB))


def small_draft() -> SpireWeights:
    """Two late blocks, half of the vocabulary, a short window."""
    whole = whole_target()
    ids = torch.arange(0, VOCAB, 2)
    config = replace(whole.config, blocks=(2, 3), reads=(2, 3), draft_vocab_size=len(ids), window=7, feedback=True)
    tensors = {name: t for name, t in whole.tensors.items() if not name.startswith("layers.")}
    for ours, theirs in ((0, 2), (1, 3)):
        at = f"layers.{theirs}."
        tensors |= {f"layers.{ours}.{n.removeprefix(at)}": t for n, t in whole.tensors.items() if n.startswith(at)}
    tensors |= {"head": tensors["head"][ids], "mix": torch.randn(2, 3, generator=torch.Generator().manual_seed(0))}
    return SpireWeights(config, tensors, ids)


def generate(
    runner: DecoderRunner, drafter: Drafter, prompts: list[list[int]], *params: SamplingParams, k: int = K
) -> list[Any]:
    engine = Engine(runner, drafter, FixedController(k), LetterTokenizer())
    ids = [engine.add(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    while engine.has_work:
        engine.step()
    outputs = {output.request_id: output for output in engine.collect()}
    return [outputs[each] for each in ids]


def dense(native: Any, pool: Any, weight_OI: torch.Tensor, gate: str = "") -> Any:
    return native.module.Matrix.dense(pool, np.ascontiguousarray(weight_OI.numpy()), gate=gate)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as the weights are, where the native ones would be in int8."""
    monkeypatch.setattr("outrider.draft.spire.step_native._matrix", dense)


@pytest.mark.usefixtures("exact")
def test_the_target_as_its_own_draft_is_always_right(runner: DecoderRunner, tmp_path: Path) -> None:
    """Also past the prompt's chunks, after every catch-up, at every position of a draft."""
    save(whole_target(), tmp_path, {}, int8=False)
    drafter = build_spire(tmp_path, target_of(runner), K)
    params = [SamplingParams(temperature=0, max_tokens=26)] * len(PROMPTS)
    for output in generate(runner, drafter, PROMPTS, *params):
        metrics = output.metrics
        assert metrics.drafted == metrics.accepted
        # The last round is cut by max_tokens; all others emit k + 1. A lone first token may come from nothing known.
        assert metrics.rounds <= -(-26 // (K + 1)) + 1


@pytest.mark.parametrize("params", [SamplingParams(temperature=0, max_tokens=24), SEEDED])
def test_bytes_are_plain_decodings(runner: DecoderRunner, params: SamplingParams, tmp_path: Path) -> None:
    save(small_draft(), tmp_path, {}, int8=False)
    plain = generate(runner, NoDrafter(), PROMPTS, *[params] * 3)
    drafter = build_spire(tmp_path, target_of(runner), K)
    for together in (PROMPTS, PROMPTS[:1], PROMPTS[::-1]):
        drafted = generate(runner, drafter, together, *[params] * len(together))
        expected = [plain[PROMPTS.index(prompt)].outputs[0].token_ids for prompt in together]
        assert [output.outputs[0].token_ids for output in drafted] == expected
        assert all(output.metrics.drafted > 0 for output in drafted)


@pytest.mark.parametrize("window", [7, None])
def test_a_draft_does_not_depend_on_how_the_prompt_was_read(
    runner: DecoderRunner, window: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Chunks of any size hand over the same states, a sink far behind the window among them: logits are the same."""
    # Less than the longest chunk and more than the shortest.
    monkeypatch.setattr("outrider.draft.spire.drafter._AT_ONCE", 16)
    whole = small_draft()
    save(replace(whole, config=replace(whole.config, window=window)), tmp_path, {}, int8=False)
    prompt, params = PROMPTS[2], SamplingParams(temperature=0, max_tokens=12)
    drafted = []
    for chunk in (512, 30, 7):
        drafter = build_spire(tmp_path, target_of(runner), K)
        config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=chunk)
        engine = Engine(runner, drafter, FixedController(K), LetterTokenizer(), config)
        engine.add(prompt, params)
        logits: list[torch.Tensor] = []
        step = drafter._step.step

        def watched(*given: Any, step: Any = step, logits: list[torch.Tensor] = logits) -> torch.Tensor:
            logits.append(step(*given))
            return logits[-1]

        drafter._step.step = watched  # type: ignore[assignment]
        while engine.has_work:
            engine.step()
        drafted.append(torch.cat(logits))
    assert torch.equal(drafted[0], drafted[1])
    assert torch.equal(drafted[0], drafted[2])


def test_states_handed_over_are_the_committed_ones(runner: DecoderRunner, tmp_path: Path) -> None:
    """In order, each once, none of a rejected draft: what is known is the committed tokens but the last."""
    save(small_draft(), tmp_path, {}, int8=False)
    drafter = build_spire(tmp_path, target_of(runner), K)
    known: dict[int, int] = {}
    remember = drafter.remember

    def watched(committed: Sequence[CommittedStates]) -> None:
        for sequence_id, start, states_LND in committed:
            assert start == known.get(sequence_id, 0)
            known[sequence_id] = start + states_LND.shape[1]
        remember(committed)

    drafter.remember = watched  # type: ignore[method-assign]
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=16)
    engine = Engine(runner, drafter, FixedController(K), LetterTokenizer(), config)
    for prompt in PROMPTS:
        engine.add(prompt, SamplingParams(temperature=0, max_tokens=14))
    rejected = 0
    while engine.has_work:
        rejected += sum(r.drafted - r.kept for r in engine.step().rounds)
        for sequence in engine.running:
            assert known[sequence.id] == runner.length(sequence.id)
    assert rejected > 10


def test_states_are_transformers_hidden_states(runner: DecoderRunner) -> None:
    tokens = PROMPTS[2][:20]
    with torch.inference_mode():
        hidden = reference(LLAMA)(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    runner.open(0)
    scores = runner.score([Feed(0, tuple(tokens), 1)], layers=(3, 0, 1))
    assert scores.states is not None
    for states_ND, layer in zip(scores.states[0], (3, 0, 1), strict=True):
        torch.testing.assert_close(states_ND.float(), hidden[layer][0], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("exact")
def test_rounds_without_drafts_leave_nothing_behind(runner: DecoderRunner, tmp_path: Path) -> None:
    """Budget 0 and back: states come with every pass, so the drafter is never stale."""

    class Pauses(FixedController):
        turn = 0

        def choose(self, sequences: Any, offers: Any) -> list[Choice]:
            self.turn += 1
            return [replace(each, tokens=0 if self.turn % 3 else K) for each in super().choose(sequences, offers)]

    save(whole_target(), tmp_path, {}, int8=False)
    drafter = build_spire(tmp_path, target_of(runner), K)
    engine = Engine(runner, drafter, Pauses(K), LetterTokenizer())
    engine.add(PROMPTS[0], SamplingParams(temperature=0, max_tokens=40))
    rounds = [r for _ in range(60) if engine.has_work for r in engine.step().rounds]
    assert sum(r.drafted for r in rounds) >= 12
    assert all(r.drafted == r.kept for r in rounds)


@pytest.mark.parametrize("k", [10**9, 10**400])
def test_a_length_beyond_the_context_takes_no_memory(runner: DecoderRunner, k: int, tmp_path: Path) -> None:
    save(small_draft(), tmp_path, {}, int8=False)
    sizes: Any = {"dtype": "float32", "max_num_batched_tokens": 64, "trust_remote_code": False}
    for config in (SpeculativeConfig("spire", k, model=str(tmp_path)), SpeculativeConfig("ngram", k)):
        drafter = build_drafter(config, target_of(runner), **sizes)
        (output,) = generate(runner, drafter, PROMPTS[:1], GREEDY, k=k)
        assert output.outputs == generate(runner, NoDrafter(), PROMPTS[:1], GREEDY)[0].outputs


def test_nothing_is_offered_before_the_prompt_was_read(runner: DecoderRunner, tmp_path: Path) -> None:
    """A round that cannot draft is no refusal of drafts; what a slot knew of another sequence counts for nothing."""
    save(small_draft(), tmp_path, {}, int8=False)
    drafter = build_spire(tmp_path, target_of(runner), K)
    sequence, states_LND = StubSequence(7, PROMPTS[0]), torch.zeros(2, len(PROMPTS[0]), runner.config.hidden_size)
    assert drafter.offers(sequence) == ()
    for _ in range(2):
        drafter.open(sequence)
        assert drafter.offers(sequence) == ()
        drafter.remember([CommittedStates(sequence.id, 0, states_LND[:, :-1])])
        assert drafter.offers(sequence) == (Offer("spire"),)
        drafter.close(sequence.id)


def test_slots_are_given_back(runner: DecoderRunner, tmp_path: Path) -> None:
    save(small_draft(), tmp_path, {}, int8=False)
    drafter = build_spire(tmp_path, target_of(runner), K)
    for _ in range(3):
        outputs = generate(runner, drafter, PROMPTS * 2, *[SamplingParams(temperature=0, max_tokens=6)] * 6)
        assert all(output.metrics.drafted > 0 for output in outputs)


def test_a_temperature_draws_from_what_the_draft_says(runner: DecoderRunner, tmp_path: Path) -> None:
    """Without a seed drafts are drawn, and tokens outside the draft's vocabulary have q = 0."""
    save(small_draft(), tmp_path, {}, int8=False)
    drafter = build_spire(tmp_path, target_of(runner), K)
    seen: list[Any] = []
    propose = drafter.propose

    def watched(sequences: Sequence[RequestState], budgets: Sequence[int]) -> list[Draft]:
        seen.extend(drafts := propose(sequences, budgets))
        return drafts

    drafter.propose = watched  # type: ignore[method-assign]
    generate(runner, drafter, PROMPTS, *[SamplingParams(temperature=1.0, max_tokens=20)] * 3)
    rows = [draft for draft in seen if draft.tokens]
    assert rows
    for draft in rows:
        assert all(token % 2 == 0 for token in draft.tokens)
        assert bool((draft.logq_KV[:, 1::2] == -torch.inf).all())
        torch.testing.assert_close(draft.logq_KV.exp().sum(-1), torch.ones(len(draft.tokens)))


def test_weights_survive_the_disk(tmp_path: Path) -> None:
    weights = small_draft()
    save(weights, tmp_path / "exact", {"by": "a test"}, int8=False)
    again = load(tmp_path / "exact")
    assert again.config == weights.config
    assert torch.equal(again.draft_ids, weights.draft_ids)
    assert again.tensors.keys() == weights.tensors.keys()
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in weights.tensors.items())
    save(weights, tmp_path / "int8", {}, int8=True)
    rough = load(tmp_path / "int8")
    for name, tensor in weights.tensors.items():
        step = tensor.abs().amax(-1, keepdim=True) / 127 if tensor.dim() == 2 and name != "mix" else torch.zeros(1)
        assert bool(((rough.tensors[name] - tensor).abs() <= step / 2 + 1e-7).all()), name
    # What was int8 once stays what it is.
    save(rough, tmp_path / "twice", {}, int8=True)
    torch.testing.assert_close(load(tmp_path / "twice").tensors, rough.tensors, rtol=1e-6, atol=1e-7)


def test_what_is_no_draft_is_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    with pytest.raises(ModelError, match=r"config\.json"):
        load(tmp_path)
    weights = small_draft()
    save(weights, tmp_path, {}, int8=False)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    for broken, message in (
        ({name: t for name, t in stored.items() if name != "norm"}, "'norm' is missing"),
        (stored | {"head": stored["head"][:, :3].contiguous()}, "'head' has shape"),
        (stored | {"draft_ids": stored["draft_ids"].flip(0).contiguous()}, "draft_ids"),
        (stored | {"draft_ids": stored["draft_ids"] + VOCAB}, "draft_ids"),
        (stored | {"draft_ids": stored["draft_ids"].float() + 0.4}, "draft_ids"),
        (stored | {"norm": torch.full_like(stored["norm"], torch.nan)}, "'norm' has entries that are no numbers"),
    ):
        save_file(broken, path)
        with pytest.raises(ModelError, match=message):
            load(tmp_path)
    card = json.loads((tmp_path / "config.json").read_text())
    for name, value in (
        ("window", -1), ("window", "7"), ("window", 7.5), ("sink", None), ("sink", 10**12), ("norm_eps", float("nan")),
        ("norm_eps", True), ("rope_theta", 0), ("vocab_size", "49"), ("sees_itself", None), ("reads", [-1, 2]),
        ("blocks", 3),
    ):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(card | {name: value}))
        with pytest.raises(ModelError, match=f"{name}=.* must be"):
            load(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    (tmp_path / "config.json").write_text(json.dumps(card))
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"format": "spire", "blocks": 3}')
    with pytest.raises(ModelError, match="not the configuration"):
        load(tmp_path)


def test_a_draft_for_another_target_is_refused(tmp_path: Path) -> None:
    weights = small_draft()
    save(
        SpireWeights(replace(weights.config, reads=(2, 9)), weights.tensors, weights.draft_ids),
        tmp_path,
        {},
        int8=False,
    )
    with pytest.raises(CapabilityError, match="another target"):
        build_spire(tmp_path, target_of(load_decoder(LLAMA, random_weights(LLAMA))), K)
    with pytest.raises(CapabilityError, match="does not run"):
        build_spire(tmp_path, target_of(ToyRunner(MODEL, 1, 32)), K)


def test_only_drafters_that_ask_for_states_get_them(runner: DecoderRunner) -> None:
    assert not isinstance(NgramDrafter(), StateDrafter)
    assert not isinstance(NoDrafter(), StateDrafter)
    asked: list[Any] = []
    score = runner.score

    def watched(*given: Any, **named: Any) -> Any:
        asked.append(named)
        return score(*given, **named)

    runner.score = watched  # type: ignore[method-assign]
    generate(runner, NgramDrafter(), PROMPTS[:1], GREEDY)
    assert asked
    assert all(not named for named in asked)


@pytest.mark.parametrize(("rough", "tolerance"), [(False, 1e-4), (True, 0.1)])
@pytest.mark.parametrize("changes", [{}, {"sees_itself": False}, {"feedback": False}, {"window": None}], ids=str)
def test_native_steps_are_those_of_torch(
    changes: dict[str, Any], rough: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of drafts behind remembered states, some of them rejected; int8 is near."""
    from outrider import kernels

    native = kernels.load().native
    if native is None:
        pytest.skip("no native kernels here")
    if not rough:
        monkeypatch.setattr("outrider.draft.spire.step_native._matrix", dense)
    weights = small_draft()
    weights = replace(weights, config=replace(weights.config, **changes))
    table_VD = dict(random_weights(LLAMA))["model.embed_tokens.weight"].float()
    pool = native.module.Pool(2, native.level)
    embedding = native.module.Matrix.dense(pool, table_VD.numpy())
    sizes = {"slots": 2, "ring": 64, "max_model_len": 64}
    steps = (
        TorchSpireStep(weights, lambda ids: table_VD[list(ids)], **sizes),
        NativeSpireStep(weights, native, pool, embedding, **sizes),
    )
    generator = torch.Generator().manual_seed(2)
    for turn in range(4):
        start, states_LND = turn * 5, torch.randn(2, 5, weights.config.hidden_size, generator=generator)
        drafts: list[torch.Tensor] = []
        for step in steps:
            step.remember(1, range(start, start + 5), states_LND)
            tokens = [[7, 9], [11, 2], [5, 5]]
            positions = [start + 5, turn]
            logits = [step.step(t, [1, 0], [p + i for p in positions]) for i, t in enumerate(tokens)]
            drafts.append(torch.stack(logits))
        wanted, got = drafts
        assert float((got - wanted).norm() / wanted.norm()) < tolerance
    for step in steps:
        seen = step.step([3], [1], [25])
        step.close(1)
        alone = step.step([3], [1], [25])
        assert not torch.equal(seen, alone), "what was remembered is forgotten"
