"""`outrider chat`: a conversation at the terminal, or one message from a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options
from outrider.cli.figures import figures_line
from outrider.cli.generate import print_stream, refuse_aborted
from outrider.config import DEFAULT_DTYPE, DEFAULT_MODEL
from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.prompts import Message
    from outrider.sampling.params import SamplingParams


def chat(
    message: Annotated[str | None, typer.Argument(help="One message to answer; without it, a conversation.")] = None,
    model: options.Model = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    speculative_config: options.Speculative = "auto",
    dtype: options.Dtype = DEFAULT_DTYPE,
    quantization: options.Quantization = None,
    max_model_len: options.MaxModelLen = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> int:
    """Talk with the model; an empty line or end of input ends the conversation."""
    from outrider.sampling.params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    llm = options.load_llm(model, dtype, quantization, speculative_config, max_model_len, trust_remote_code)
    history: list[Message] = [{"role": "system", "content": system}] if system else []
    if message is not None:
        _answer(llm, history, message, params)
        return 0
    failed = False
    while said := _ask():
        try:
            history = _answer(llm, history, said, params)
        except RequestError as error:
            # The conversation so far is kept; only this message was not answered.
            print(f"outrider: {error}", file=sys.stderr)
            failed = True
    return 2 if failed else 0


def _answer(llm: LLM, history: list[Message], said: str, params: SamplingParams) -> list[Message]:
    """Print the model's answer; returns the conversation with it."""
    if not said:
        raise RequestError("the message is empty: give at least one word")
    asked = [*history, {"role": "user", "content": said}]
    output = print_stream(llm, llm.chat_tokens(asked), params)
    refuse_aborted(output)
    print(figures_line(output.metrics), file=sys.stderr)
    return [*asked, {"role": "assistant", "content": output.outputs[0].text}]


def _ask() -> str:
    if sys.stdin.isatty():
        print("you> ", end="", file=sys.stderr, flush=True)
    return options.read_stdin(sys.stdin.readline).strip()
