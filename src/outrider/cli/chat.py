"""`outrider chat`: a conversation at the terminal, or one message from a pipe."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from outrider.cli import options
from outrider.cli.figures import figures_line
from outrider.cli.generate import print_stream
from outrider.errors import RequestError


def chat(
    message: Annotated[str | None, typer.Argument(help="One message to answer; without it, a conversation.")] = None,
    model: options.Model = "smollm2-135m",
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    speculative_config: options.Speculative = "auto",
    dtype: options.Dtype = "bfloat16",
    max_model_len: options.MaxModelLen = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> int:
    """Talk with the model; an empty line or end of input ends the conversation."""
    from outrider.llm import LLM
    from outrider.sampling.params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    llm = LLM(
        model,
        dtype=dtype,
        speculative_config=options.read_speculative(speculative_config),
        max_model_len=max_model_len,
        trust_remote_code=trust_remote_code,
    )
    history = [{"role": "system", "content": system}] if system else []
    while said := message if message is not None else _ask():
        try:
            asked = [*history, {"role": "user", "content": said}]
            output = print_stream(llm, llm.chat_tokens(asked), params)
        except RequestError as error:
            # The conversation so far is kept; only this message was not answered.
            print(f"outrider: {error}", file=sys.stderr)
            if message is not None:
                return 2
            continue
        history = [*asked, {"role": "assistant", "content": output.outputs[0].text}]
        print(figures_line(output.metrics), file=sys.stderr)
        if message is not None:
            break
    return 0


def _ask() -> str | None:
    if sys.stdin.isatty():
        print("you> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() or None
