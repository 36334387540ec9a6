"""The flat example is the engine, token for token."""

from __future__ import annotations

import pytest

from examples.spec_loop_flat import main, speculate
from outrider.config import EngineConfig
from outrider.draft.model import ModelDrafter
from outrider.models.toy import ToyModel, ToyRunner
from outrider.sampling.params import SamplingParams
from tests.support import VOCAB, LetterTokenizer, make_engine, run_all

TARGET = ToyModel(VOCAB, 2, seed=1)
DRAFTS = {
    "blurred": ToyModel(VOCAB, 2, seed=1, scale=1.0),
    "itself": TARGET,
    "unrelated": ToyModel(VOCAB, 3, seed=5),
}
SEEDS = range(6)


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_equal_to_the_engine_token_for_token(draft: ToyModel, k: int) -> None:
    engine = make_engine(
        ModelDrafter(ToyRunner(draft, 4, 64), VOCAB),
        k,
        runner=ToyRunner(TARGET, 4, 64),
        tokenizer=LetterTokenizer(),
        config=EngineConfig(4, 7),
        rule="standard",
    )
    prompts = [[3, 5], [1] * 10, [7]]
    params = [SamplingParams(seed=seed, max_tokens=25) for seed in SEEDS]
    ids = {(i, p.seed): engine.add(prompt, p) for i, prompt in enumerate(prompts) for p in params}
    outputs = run_all(engine)
    for (i, seed), request_id in ids.items():
        assert seed is not None
        tokens, passes = speculate(TARGET, draft, prompts[i], 25, k, seed)
        assert outputs[request_id].outputs[0].token_ids == tuple(tokens)
        assert outputs[request_id].metrics.rounds == passes


def test_it_runs_and_shows_fewer_passes(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    passes = [int(line.split(" target passes")[0].rsplit(" ", 1)[1]) for line in lines]
    assert passes == sorted(passes, reverse=True)
    assert passes[0] == 200 > passes[-1]
