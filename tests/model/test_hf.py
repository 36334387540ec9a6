"""The Transformers runner on tiny random models, built here: no weights are read."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from outrider.errors import ModelError
from outrider.models.base import Feed, TargetRunner
from outrider.models.hf import HFRunner
from outrider.models.resolve import ModelFiles
from outrider.testing import RunnerContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VOCAB = 61


def _gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=64, **_ENDS)
    return transformers.GPT2LMHeadModel(config)


def _neox() -> Any:
    config = transformers.GPTNeoXConfig(num_hidden_layers=2, num_attention_heads=2, **_SIZES)
    return transformers.GPTNeoXForCausalLM(config)


def _mistral() -> Any:
    """Every layer slides over 5 tokens."""
    config = transformers.MistralConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=5, **_SIZES
    )
    return transformers.MistralForCausalLM(config)


def _gemma3() -> Any:
    """Sliding and full layers in turn."""
    config = transformers.Gemma3TextConfig(
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"] * 2,
        **_SIZES,
    )
    return transformers.Gemma3ForCausalLM(config)


def _mamba() -> Any:
    config = transformers.MambaConfig(vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=2, **_ENDS)
    return transformers.MambaForCausalLM(config)


_ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    **_ENDS,
}
_BUILDERS = {"gpt2": _gpt2, "neox": _neox, "mistral": _mistral, "gemma3": _gemma3, "mamba": _mamba}
_ATTENTION = ["gpt2", "neox", "mistral", "gemma3"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small only lose time on more, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def tiny(kind: str) -> Any:
    """A model with weights large enough that its answers vary."""
    torch.manual_seed(7)
    model = _BUILDERS[kind]().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "A_log" not in name:
                weight.mul_(6)
    return model


def make(kind: str, max_num_seqs: int = 3) -> HFRunner:
    return HFRunner(tiny(kind), max_num_seqs=max_num_seqs, max_model_len=32, name=kind)


class TestGPT2(RunnerContract):
    def make_runner(self) -> TargetRunner:
        return make("gpt2")


class TestGPTNeoX(RunnerContract):
    def make_runner(self) -> TargetRunner:
        return make("neox")


class TestMistralSlidingWindow(RunnerContract):
    def make_runner(self) -> TargetRunner:
        return make("mistral")


class TestGemma3MixedWindows(RunnerContract):
    def make_runner(self) -> TargetRunner:
        return make("gemma3")


class TestMamba(RunnerContract):
    def make_runner(self) -> TargetRunner:
        return make("mamba")


@pytest.mark.parametrize("kind", _ATTENTION)
def test_attention_caches_roll_back(kind: str) -> None:
    assert make(kind).capabilities.rollback == "truncate"


@torch.inference_mode()
def _without_cache(kind: str, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = tiny(kind)(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("kind", list(_BUILDERS))
def test_logits_equal_the_models_own_without_a_cache(kind: str) -> None:
    runner = make(kind)
    runner.open(0)
    tokens = [(5 * i * i + i) % VOCAB for i in range(20)]
    cuts = [0, 9, 10, 12, 17, 20]
    fed = [Feed(0, tuple(tokens[a:b]), b - a) for a, b in itertools.pairwise(cuts)]
    got_TV = torch.cat([runner.score([feed]).logits[0] for feed in fed])
    torch.testing.assert_close(got_TV, _without_cache(kind, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_a_full_window_can_be_rewound(kind: str) -> None:
    runner = make(kind)
    runner.open(0)
    tokens = [(5 * i * i + i) % VOCAB for i in range(18)]
    runner.score([Feed(0, tuple(tokens), 0)])
    runner.commit(0, 11)
    other = [*tokens[:11], 3, 1, 4]
    got_TV = runner.score([Feed(0, (3, 1, 4), 3)]).logits[0]
    torch.testing.assert_close(got_TV, _without_cache(kind, other)[11:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", list(_BUILDERS))
def test_greedy_equals_generate(kind: str) -> None:
    prompt = [3, 14, 15, 9, 2, 6]
    expected = (
        tiny(kind)
        .generate(torch.tensor([prompt]), attention_mask=torch.ones(1, 6), max_new_tokens=20, do_sample=False)[0]
        .tolist()
    )
    runner = make(kind)
    runner.open(0)
    tokens = list(prompt)
    while len(tokens) < len(expected):
        fed = tuple(tokens[runner.length(0) :])
        tokens.append(int(runner.score([Feed(0, fed, 1)]).logits[0][-1].argmax()))
        runner.commit(0, len(tokens) - 1)
    assert tokens == expected
    assert len(set(expected[6:])) > 2, "an answer of one word would prove little"


def test_recurrent_states_cannot_be_rolled_back() -> None:
    runner = make("mamba")
    assert runner.capabilities.rollback == "none"
    runner.open(0)
    runner.score([Feed(0, (1, 2, 3), 1)])
    runner.commit(0, 3)
    with pytest.raises(AssertionError, match="cannot roll back"):
        runner.commit(0, 2)


def test_only_the_rows_asked_for_reach_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make("neox")
    head = tiny("neox").get_output_embeddings()
    forward, seen = head.forward, []

    def count_rows(states: torch.Tensor) -> Any:
        seen.append(states.shape[1])
        return forward(states)

    monkeypatch.setattr(head, "forward", count_rows)
    runner.open(0)
    runner.score([Feed(0, tuple(range(20)), 0)])
    runner.score([Feed(0, tuple(range(5)), 3)])
    assert seen == [1, 3]


def test_hidden_states_give_the_logits_through_the_head() -> None:
    runner = make("neox")
    runner.open(0)
    scores = runner.score([Feed(0, (1, 2, 3, 4), 2)], hidden=True)
    assert scores.hidden is not None
    with torch.inference_mode():
        torch.testing.assert_close(tiny("neox").get_output_embeddings()(scores.hidden[0]), scores.logits[0])


@pytest.mark.parametrize("kind", ["gemma3", "mamba"])
def test_a_forward_that_dies_midway_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, untouched = make(kind), make(kind)
    for each in (runner, untouched):
        each.open(0)
        each.score([Feed(0, tuple(range(9)), 0)])
    layers = getattr(tiny(kind), "model", None) or tiny(kind).backbone

    def out_of_memory(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(layers.layers[1], "forward", out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            runner.score([Feed(0, (5, 6), 2)])
    after = [each.score([Feed(0, (5, 6), 2)]).logits[0] for each in (runner, untouched)]
    assert runner.length(0) == 11
    assert torch.equal(after[0], after[1])


def test_load_reads_safetensors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny("neox").save_pretrained(tmp_path)
    capfd.readouterr()
    files = ModelFiles("here", tmp_path)
    runner = HFRunner.load(files, dtype=torch.bfloat16, max_num_seqs=1, max_model_len=32, name="here")
    assert capfd.readouterr() == ("", "")
    runner.open(0)
    logits_TV = runner.score([Feed(0, (1, 2, 3), 3)]).logits[0]
    assert logits_TV.dtype == torch.bfloat16
    torch.testing.assert_close(logits_TV.float(), _without_cache("neox", [1, 2, 3]), atol=0.5, rtol=0.1)


@pytest.mark.parametrize("damage", ["no weights", "pickle", "unknown code"])
def test_load_refuses_with_one_line(tmp_path: Path, damage: str) -> None:
    model = tiny("neox")
    model.config.save_pretrained(tmp_path)
    if damage == "pickle":
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    if damage == "unknown code":
        (tmp_path / "config.json").write_text(
            '{"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}'
        )
        (tmp_path / "own.py").write_text("raise SystemExit('remote code ran')\n")
    with pytest.raises(ModelError, match=r"^here: [^\n]+$"):
        HFRunner.load(ModelFiles("here", tmp_path), dtype=torch.float32, max_num_seqs=1, max_model_len=8, name="here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"remove": "gpt_neox.final_layer_norm.weight"}, "here is incomplete: its files lack tensor '.*norm.weight'"),
        ({"add": "gpt_neox.layers.7.odd.weight"}, "its files hold tensor 'gpt_neox.layers.7.odd.weight', which has no"),
    ],
)
def test_load_refuses_weights_that_are_not_the_models(tmp_path: Path, change: dict[str, str], message: str) -> None:
    tiny("neox").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if "remove" in change:
        del weights[change["remove"]]
    else:
        weights[change["add"]] = torch.zeros(2)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=message):
        HFRunner.load(ModelFiles("here", tmp_path), dtype=torch.float32, max_num_seqs=1, max_model_len=8, name="here")


def test_load_takes_tied_weights_that_are_stored_once(tmp_path: Path) -> None:
    tiny("gpt2").save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    runner = HFRunner.load(ModelFiles("here", tmp_path), dtype=torch.float32, max_num_seqs=1, max_model_len=8)
    runner.open(0)
    torch.testing.assert_close(runner.score([Feed(0, (1, 2), 2)]).logits[0], _without_cache("gpt2", [1, 2]))


class _NoCache(torch.nn.Module):
    config = transformers.GPT2Config(n_layer=1)

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids


class _DeafToItsCache(_NoCache):
    def forward(self, input_ids: torch.Tensor, cache: object = None, **_: object) -> Any:
        del cache
        return transformers.modeling_outputs.CausalLMOutput(logits=torch.zeros(1, input_ids.shape[1], 4))


class _NeedsPictures(_NoCache):
    def forward(self, input_ids: torch.Tensor, cache: object = None, **_: object) -> Any:
        raise TypeError(f"where are the\npictures of {input_ids} in {cache}?")


@pytest.mark.parametrize(
    ("model", "reason"),
    [(_NoCache, "takes no cache"), (_DeafToItsCache, "does not keep its context"), (_NeedsPictures, "where are the$")],
)
def test_models_that_cannot_be_driven_are_refused(model: Callable[[], torch.nn.Module], reason: str) -> None:
    with pytest.raises(ModelError, match=f"^odd: .*{reason}"):
        HFRunner(model(), max_num_seqs=1, max_model_len=8, name="odd")
