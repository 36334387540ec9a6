"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.errors import ConfigError, RequestError
from outrider.pauses import settle

if TYPE_CHECKING:
    from outrider.llm import LLM

Model = Annotated[str, typer.Option(help="Demo name, local folder, GGUF file or Hub id.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
Quantization = Annotated[
    str | None, typer.Option(help="int8, int8-dynamic (fastest) or gguf (a GGUF file's blocks); none by default.")
]
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
EndpointModel = Annotated[str | None, typer.Option(help="The endpoints' name of the model.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]


def api_key() -> str | None:
    """The key for other people's servers."""
    return os.environ.get("OPENAI_API_KEY") or None


def read_speculative(text: str) -> str | Mapping[str, Any] | None:
    """The value of ``--speculative-config``."""
    if text == "none":
        return None
    if not text.lstrip().startswith("{"):
        return text
    try:
        value: Mapping[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f'--speculative-config {text[:60]!r} is not valid JSON ({error}); for example \'{{"method": "ngram"}}\''
        ) from None
    return value


def load_llm(
    model: str,
    dtype: str,
    quantization: str | None,
    speculative_config: str,
    max_model_len: int | None,
    trust_remote_code: bool,
) -> LLM:
    """The LLM that the options describe, with a word of warning where its bytes are not promised."""
    from outrider.llm import LLM

    llm = LLM(
        model,
        dtype=dtype,
        quantization=quantization,
        speculative_config=read_speculative(speculative_config),
        max_model_len=max_model_len,
        trust_remote_code=trust_remote_code,
    )
    settle()
    if llm.engine.drafter.name != "none" and not llm.engine.runner.capabilities.deterministic_shape:
        print(
            f"outrider: {model}: the output's law is plain decoding's, but bytes may differ at near-ties "
            "(only Outrider's own decoder keeps them)",
            file=sys.stderr,
        )
    return llm


def refuse_given(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Raise ConfigError for the first of these parameters that is on the command line; ``why`` follows its name."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


def read_stdin(read: Callable[[], str]) -> str:
    """Text from standard input. Raises RequestError for what is not UTF-8."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text ({error.reason} at byte {error.start})") from None
