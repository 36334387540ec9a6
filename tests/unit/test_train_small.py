"""The small draft: its shape, its loss, its batches of whole texts, its run, and the model folder that it becomes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider import LLM, SamplingParams
from outrider.cli.main import run as command
from outrider.errors import ConfigError
from outrider.models.decoder_config import DecoderConfig
from outrider.train.capture import CaptureSettings, CaptureStore, from_bits
from outrider.train.checkpoint import load_checkpoint, save_checkpoint
from outrider.train.config import TrainConfig
from outrider.train.continuations import Document
from outrider.train.loop import Progress, train
from outrider.train.methods import METHODS, method_named
from outrider.train.methods.small.config import SmallConfig
from outrider.train.methods.small.export import save_small, whole_model
from outrider.train.methods.small.model import SmallModule
from outrider.train.methods.small.train import SmallTraining
from outrider.train.texts import TextSampler
from tests.unit.decoders import SMALL, SMOLLM2, VOCAB, families, load, random_weights
from tests.unit.test_train_data import documents
from tests.unit.tiny_llama import write_target

LLAMA = families()["llama-tied"]
TENSORS = dict(random_weights(LLAMA))
TEXTS = documents((60, 12), (50, 30), (90, 5), (20, 0), (33, 33))
SHAPE = SmallConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    norm_eps=1e-5,
    rope_theta=1e4,
    draft_vocab_size=VOCAB,
    max_positions=128,
)
CONFIG = TrainConfig(method="small", draft_vocab_size=VOCAB, segment=8, batch=6, steps=12, warmup=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CaptureStore:
    store = CaptureStore(tmp_path_factory.mktemp("captured"), CaptureSettings((1, 3), 64, 5, 2))
    store.append(load(LLAMA, iter(TENSORS.items())), TEXTS, lambda _: None)
    return store


# --- shape --------------------------------------------------------------------------------------------------


def body(module: SmallModule) -> int:
    return sum(p.numel() for name, p in module.named_parameters() if "embed_tokens" not in name and "head" not in name)


def test_it_has_an_eighth_of_the_targets_body() -> None:
    """And every width of SmolLM2's draft suits vector units and the kernels of other engines."""
    from transformers import LlamaConfig

    sizes = {**SMALL, **SMOLLM2, "num_hidden_layers": 30}
    target = DecoderConfig.from_hf(LlamaConfig(**sizes))
    small = SmallConfig.of_target(target, draft_vocab_size=50, max_positions=64)
    assert (small.num_layers, small.hidden_size, small.num_heads, small.num_kv_heads) == (15, 288, 9, 3)
    assert all(width % 32 == 0 for width in (small.hidden_size, small.intermediate_size, small.head_dim))
    d, ff, kv = 576, 1536, 192
    blocks = 30 * (2 * d * d + 2 * d * kv + 3 * d * ff + 2 * d) + d
    assert body(SmallModule(small)) / blocks == pytest.approx(1 / 8, rel=1e-3)
    assert SmallConfig.from_dict(json.loads(json.dumps(small.to_dict()))) == small


@pytest.mark.parametrize("family", families())
def test_every_family_of_targets_has_a_draft(family: str) -> None:
    target = DecoderConfig.from_hf(families()[family])
    small = SmallConfig.of_target(target, draft_vocab_size=VOCAB, max_positions=16)
    assert SmallModule(small)(torch.ones(1, 5, dtype=torch.int64)).shape == (1, 5, target.hidden_size // 2)


def test_a_state_depends_on_nothing_behind_it() -> None:
    """Nor on the padding of its row, or on other rows."""
    torch.manual_seed(0)
    module = SmallModule(SHAPE)
    tokens_BS = torch.randint(0, VOCAB, (3, 20))
    other_BS = tokens_BS.clone()
    other_BS[0, 11:] = 0
    other_BS[1:] = 7
    whole, cut = module(tokens_BS), module(other_BS)
    torch.testing.assert_close(whole[0, :11], cut[0, :11], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(whole[0, :11], module(tokens_BS[:1, :11])[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(whole[0, 11:], cut[0, 11:], atol=1e-3)


# --- batches ------------------------------------------------------------------------------------------------


def texts_of(store: CaptureStore, positions: int = 48, seed: int = 0) -> TextSampler:
    return TextSampler(store.rows(), store.documents, TEXTS, positions=positions, seed=seed)


@pytest.mark.parametrize("positions", [1, 48, 150, 10_000])
def test_a_batch_is_whole_texts_with_the_targets_law(positions: int, store: CaptureStore) -> None:
    """Each text at most once an epoch; of each, the positions that were captured for learning and no other."""
    sampler, rows = texts_of(store, positions), store.rows()
    seen = []
    for batch in (sampler.batch(1, i) for i in range(sampler.steps_per_epoch)):
        at = 0
        for tokens, valid in zip(batch.tokens_BS.tolist(), batch.valid_BS, strict=True):
            (number,) = [n for n, text in enumerate(TEXTS) if tuple(tokens[: len(text.tokens)]) == text.tokens]
            assert not any(tokens[len(TEXTS[number].tokens) :])
            place = store.documents[number]
            assert valid.nonzero()[:, 0].tolist() == list(range(place.start, len(TEXTS[number].tokens)))
            stored = rows[place.row : place.row + place.rows][place.start - place.length :]
            end = at + len(stored)
            assert torch.equal(batch.final_RD[at:end], from_bits(stored["final"]))
            assert batch.lse_R[at:end].tolist() == stored["lse"].tolist()
            seen.append(number)
            at = end
        assert at == len(batch.final_RD) == int(batch.valid_BS.sum()) > 0
    assert len(seen) == len(set(seen))
    learnt = [place.length - place.start for place in store.documents]
    assert sum(learnt) - sum(learnt[n] for n in seen) < max(positions, *learnt)


def test_a_batch_follows_from_its_number(store: CaptureStore) -> None:
    one, other = texts_of(store), texts_of(store)
    assert one.steps_per_epoch > 1
    for epoch, index in ((0, 1), (2, 0), (0, 1), (1, 1)):
        assert torch.equal(one.batch(epoch, index).tokens_BS, other.batch(epoch, index).tokens_BS)
    orders = {str([one.batch(epoch, i).tokens_BS.tolist() for i in range(2)]) for epoch in range(6)}
    assert len(orders) > 1, "every epoch is the same"


def test_captures_of_other_texts_are_refused(store: CaptureStore) -> None:
    others = [*TEXTS[:2], Document(TEXTS[2].tokens[:-1], 5)]
    with pytest.raises(ConfigError, match="text 2 has other words"):
        TextSampler(store.rows(), store.documents, others, positions=9, seed=0)


# --- training -----------------------------------------------------------------------------------------------


def task_of(config: TrainConfig, store: CaptureStore) -> tuple[SmallTraining, TextSampler]:
    small = replace(SHAPE, draft_vocab_size=config.draft_vocab_size)
    ids = torch.arange(config.draft_vocab_size) + VOCAB - config.draft_vocab_size
    return SmallTraining(config, small, TENSORS, ids, {"by": "a test"}), texts_of(store, config.batch * config.segment)


def trained(config: TrainConfig, store: CaptureStore, folder: Path, watch: Callable[[Progress], None] | None) -> Any:
    train(config, *task_of(config, store), folder, watch or (lambda _: None))
    state = load_checkpoint(folder)
    assert state is not None
    return state


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.parametrize("tokens", [VOCAB, 60])
def test_it_learns(tokens: int, store: CaptureStore, tmp_path: Path) -> None:
    seen: list[Progress] = []
    config = replace(CONFIG, steps=80, learning_rate=3e-3, draft_vocab_size=tokens)
    trained(config, store, tmp_path, seen.append)
    assert sum(each.loss for each in seen[-10:]) < 0.9 * sum(each.loss for each in seen[:10])
    assert sum(each.alpha for each in seen[-10:]) > 1.15 * sum(each.alpha for each in seen[:10])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_stopped_and_gone_on_with_it_is_the_same_run(
    stop: type[BaseException], store: CaptureStore, tmp_path: Path
) -> None:
    whole = trained(CONFIG, store, tmp_path / "whole", None)

    def stops(progress: Progress) -> None:
        if progress.step == 7:
            raise stop

    with pytest.raises(stop):
        train(CONFIG, *task_of(CONFIG, store), tmp_path / "parts", stops, checkpoint_seconds=0.0)
    parts = trained(CONFIG, store, tmp_path / "parts", None)
    assert parts["step"] == 12
    assert same(parts["module"], whole["module"])


@pytest.mark.parametrize("changes", [{"hard_targets": True}, {"omega": 1.0}, {"seed": 1}])
def test_switches_change_what_is_learnt(changes: dict[str, Any], store: CaptureStore, tmp_path: Path) -> None:
    base = trained(replace(CONFIG, steps=2), store, tmp_path / "base", None)
    other = trained(replace(CONFIG, steps=2, **changes), store, tmp_path / "other", None)
    assert not same(base["module"], other["module"])


def test_a_setting_younger_than_a_checkpoint_had_its_default(store: CaptureStore, tmp_path: Path) -> None:
    state = trained(replace(CONFIG, steps=2), store, tmp_path, None)
    del state["config"]["hard_targets"]
    save_checkpoint(tmp_path, state)
    assert trained(replace(CONFIG, steps=3), store, tmp_path, None)["step"] == 3


# --- methods ------------------------------------------------------------------------------------------------


def test_methods_by_name() -> None:
    assert [type(method_named(name)).__name__ for name in METHODS] == list(METHODS.values())
    with pytest.raises(ConfigError, match="method='eagle' is unknown; use one of: spire, small"):
        TrainConfig(method="eagle")


# --- the folder ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


def run_small(target: Path, folder: Path, *arguments: str) -> int:
    rows = [{"prompt": "say abc"}, {"question": "what is a b"}, {"text": "abc abd abe " * 4}, {"prompt": "so"}]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return command(
        [
            *("train", "run", "--method", "small", "--target", str(target), "--dtype", "float32"),
            *("--data", str(folder / "data.jsonl"), "--output", str(folder / "run"), "--max-model-len", "128"),
            *("--max-tokens", "24", "--steps", "30", "--set", "draft_vocab_size=20", "--set", "learning_rate=0.01"),
            *arguments,
        ]
    )


def test_from_prompts_to_a_model_that_others_load(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Transformers computes what was trained; Outrider drafts with it, and says what it says without."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert run_small(target, tmp_path) == 0
    draft = tmp_path / "draft"
    assert command(["train", "export", str(tmp_path / "run"), str(draft)]) == 0
    assert "2 layers of width 24, 20 tokens learnt" in capsys.readouterr().out
    state = load_checkpoint(tmp_path / "run")
    assert state is not None
    module = SmallModule(SmallConfig.from_dict(state["draft"]["config"]))
    module.load_state_dict(state["module"])
    theirs = AutoModelForCausalLM.from_pretrained(draft).eval()
    tokens_BS = torch.tensor([[5, 9, 2, 4, 7, 22, 11, 3] * 6])
    with torch.no_grad():
        logits_SV = theirs(tokens_BS).logits[0]
        learnt_SV = module.lm_head(module(tokens_BS))[0]
    learnt = torch.zeros(logits_SV.shape[1], dtype=torch.bool)
    learnt[state["draft_ids"]] = True
    torch.testing.assert_close(logits_SV[:, learnt], learnt_SV, rtol=0, atol=1e-4)
    assert learnt_SV.abs().max() > 0.1
    assert not logits_SV[:, ~learnt].any()
    assert theirs.config.eos_token_id == 0
    tokenizer = AutoTokenizer.from_pretrained(draft)
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(target).get_vocab()
    assert tokenizer.chat_template
    provenance = json.loads((draft / "provenance.json").read_text())
    assert (provenance["steps"], provenance["texts"], provenance["training"]["method"]) == (30, 4, "small")
    _drafts_and_says_the_same(target, draft)
    measured = ["--prompts", str(tmp_path / "prompts.jsonl"), "--max-tokens", "8", "--temperature", "0", "--json"]
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "abc"}\n')
    arguments = ["train", "evaluate", str(draft), "sparse_self", "--target", str(target), "--max-model-len", "128"]
    assert command([*arguments, *measured]) == 0
    found = json.loads(capsys.readouterr().out)["evaluations"]
    assert [each["tokens"] for each in found] == [8, 8]
    # One token with the prompt, whose states come first with it, then 5 and what was left.
    assert found[1]["tau"] == pytest.approx(8 / 3), "a target that drafts for itself over so few keys is always right"


def _drafts_and_says_the_same(target: Path, draft: Path) -> None:
    llm = LLM(str(target), dtype="float32", speculative_config=None, max_model_len=128)
    drafting = llm.with_speculation({"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3})
    prompts = ["abc", "so what", "the end."]
    for params in (
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=1, seed=4, max_tokens=20, ignore_eos=True),
    ):
        plain, drafted = llm.generate(prompts, params), drafting.generate(prompts, params)
        assert [each.outputs[0].token_ids for each in drafted] == [each.outputs[0].token_ids for each in plain]
        assert all(each.metrics.drafted > 0 for each in drafted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "large"], "method='large' is unknown; use one of: spire, small"),
        (["--set", "feedback=false"], "feedback=False means nothing with method='small'"),
        (["--set", "draft_vocab_size=31"], "draft_vocab_size=31 must be between 1 and the target's 30"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_small(target, tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_int8_is_for_drafts_that_have_it(store: CaptureStore, tmp_path: Path) -> None:
    state = trained(replace(CONFIG, steps=1), store, tmp_path, None)
    with pytest.raises(ConfigError, match=r"method 'small', .* leave --int8 out"):
        method_named("small").export(state, tmp_path, tmp_path / "draft", int8=True)
    assert not (tmp_path / "draft").exists()


def test_a_folder_is_no_model_before_it_is_whole(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up with the weights: no configuration, no part of a file."""
    from outrider.models.resolve import resolve
    from outrider.models.tokenizer import load_tokenizer

    def full(*_: Any) -> bytes:
        raise OSError(28, "No space left on device")

    tokenizer = load_tokenizer(resolve(str(target)))
    module = SmallModule(SHAPE).state_dict()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save_small(SHAPE, module, torch.arange(VOCAB), tokenizer, {}, tmp_path)
    assert list(tmp_path.iterdir()) == []
    save_small(SHAPE, module, torch.arange(VOCAB), tokenizer, {}, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "provenance.json", "tokenizer.json"} <= names


def test_rows_of_tokens_left_out_are_zero() -> None:
    config = replace(SHAPE, draft_vocab_size=3)
    head_VD = whole_model(config, SmallModule(config).state_dict(), torch.tensor([1, 5, 96]))["lm_head.weight"]
    assert head_VD.abs().sum(1).nonzero()[:, 0].tolist() == [1, 5, 96]
    assert math.isclose(float(head_VD.std()), 0.02 * (3 / VOCAB) ** 0.5, rel_tol=0.3)
