"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from outrider.errors import ConfigError

Model = Annotated[str, typer.Option(help="Demo name, local folder, GGUF file or Hub id.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
Speculative = Annotated[
    str, typer.Option(help="'auto', 'none', or a JSON object such as '{\"method\": \"ngram\"}' (vLLM's keys).")
]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and answer together.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens up to this mass.")]
TopK = Annotated[int, typer.Option(help="Keep this many likeliest tokens; 0 keeps all.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest one's probability.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text, whatever drafts.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]


def read_speculative(text: str) -> str | Mapping[str, Any] | None:
    """The value of ``--speculative-config``."""
    if text == "none":
        return None
    if not text.lstrip().startswith("{"):
        return text
    try:
        value: Mapping[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f'--speculative-config {text!r} is not valid JSON ({error}); for example \'{{"method": "ngram"}}\''
        ) from None
    return value
