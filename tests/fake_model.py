"""Loading without files: what ``outrider.llm`` gets instead of a real model when a test says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from outrider.models.load import LoadedModel
from outrider.models.resolve import ModelFiles, resolve
from outrider.models.toy import ToyModel, ToyRunner
from outrider.testing import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

LIMIT = 128


class LetterModel(ToyModel):
    """Writes lower-case letters and spaces, and ends of text now and then."""

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        return super().logits(tokens) + self._taste

    @property
    def _taste(self) -> torch.Tensor:
        taste_V = torch.full((257,), -60.0)
        taste_V[[*b"abcdefghijklmnopqrstuvwxyz "]] = 0.0
        taste_V[ByteTokenizer.eos_id] = -2.0
        return taste_V


class OtherBytes(ByteTokenizer):
    """The same ids for other strings."""

    @property
    def vocab(self) -> dict[str, int]:
        return {**super().vocab, "<0x41>": 0x42, "<0x42>": 0x41}

    def same_vocabulary(self, other: Any) -> str | None:
        return "they differ"


class FakeModels:
    """Stands in for ``load_runner``: "toy", "toy-draft" and two misfits; any other name takes the real way.

    ``runners`` holds every runner made, the target's first, and ``quantizations`` what each was asked for.
    """

    def __init__(self) -> None:
        self.runners: list[ToyRunner] = []
        self.quantizations: list[str | None] = []
        self.runner_class: type[ToyRunner] = ToyRunner

    def load(
        self,
        ref: str,
        *,
        dtype: str = "bfloat16",
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        longest: int = LIMIT,
        quantization: str | None = None,
        trust_remote_code: bool = False,
    ) -> LoadedModel:
        del dtype
        self.quantizations.append(quantization)
        if ref not in ("toy", "toy-draft", "toy-other-tokenizer", "toy-recurrent"):
            resolve(ref, trust_remote_code=trust_remote_code)
        model = LetterModel(257, 2, seed=3, scale=1.0 if ref == "toy-draft" else 1.5)
        runner = self.runner_class(
            model,
            max_num_seqs,
            max_model_len or min(LIMIT, longest),
            name=ref,
            rollback="none" if ref == "toy-recurrent" else "truncate",
        )
        self.runners.append(runner)
        tokenizer = OtherBytes() if ref == "toy-other-tokenizer" else ByteTokenizer()
        return LoadedModel(runner, cast("Any", tokenizer), ModelFiles(ref, Path()))


def fake_models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    """Make ``LLM("toy")`` work without a file."""
    import outrider.draft.build
    import outrider.llm

    models = FakeModels()
    for module in (outrider.llm, outrider.draft.build):
        monkeypatch.setattr(module, "load_runner", models.load)
    return models
