"""`outrider generate`: continue prompts, streaming, with one line of figures each."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options
from outrider.cli.figures import figures_line, output_json
from outrider.config import DEFAULT_DTYPE, DEFAULT_MODEL
from outrider.errors import RequestError
from outrider.types import FinishReason

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling.params import SamplingParams
    from outrider.types import RequestOutput


def generate(
    prompts: Annotated[list[str], typer.Argument(help="Texts to continue; '-' reads one from standard input.")],
    model: options.Model = DEFAULT_MODEL,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    n: Annotated[int, typer.Option("--n", help="Answers per prompt.")] = 1,
    min_tokens: Annotated[int, typer.Option(help="No end of text before this many tokens.")] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of text.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="Report this many likeliest tokens (JSON).")] = None,
    speculative_config: options.Speculative = "auto",
    dtype: options.Dtype = DEFAULT_DTYPE,
    quantization: options.Quantization = None,
    max_model_len: options.MaxModelLen = None,
    trust_remote_code: options.TrustRemoteCode = False,
    compare: Annotated[bool, typer.Option("--compare", help="Time plain and speculative decoding in turn.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> int:
    """Continue each prompt and report how fast it went."""
    from outrider.sampling.params import SamplingParams

    params = SamplingParams(
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
    llm = options.load_llm(model, dtype, quantization, speculative_config, max_model_len, trust_remote_code)
    failed = False
    for prompt in prompts:
        try:
            text = options.read_stdin(sys.stdin.read) if prompt == "-" else prompt
            refuse_aborted(_answer(llm, text, params, compare, as_json))
        except RequestError as error:
            # The other prompts are still served; the exit code tells that one was not.
            print(f"outrider: prompt {prompt[:40]!r}: {error}", file=sys.stderr)
            failed = True
    return 2 if failed else 0


def _answer(llm: LLM, prompt: str, params: SamplingParams, compare: bool, as_json: bool) -> RequestOutput:
    if compare:
        from outrider.cli.compare import compare_speeds, comparison_json, comparison_lines

        comparison = compare_speeds(llm, prompt, params)
        print(json.dumps(comparison_json(comparison)) if as_json else comparison_lines(comparison))
        return comparison.speculative
    if as_json:
        output = llm.generate(prompt, params)[0]
        print(json.dumps(output_json(output)))
        return output
    output = print_stream(llm, prompt, params)
    print(figures_line(output.metrics), file=sys.stderr)
    return output


def refuse_aborted(output: RequestOutput) -> None:
    """An answer that the model could not finish is an error at the command line, whatever was printed of it."""
    for answer in output.outputs:
        if answer.finish_reason == FinishReason.ABORT:
            raise RequestError(f"the answer was broken off: {answer.stop_reason}")


def print_stream(llm: LLM, prompt: str | list[int], params: SamplingParams) -> RequestOutput:
    """Print an answer as it comes; several answers are printed one after the other once finished."""
    output: RequestOutput | None = None
    for chunk in llm.stream(prompt, params):
        if params.n == 1:
            print(chunk.text, end="", flush=True)
        output = chunk.output or output
    assert output is not None
    if params.n > 1:
        for answer in output.outputs:
            print(f"[{answer.index}] {answer.text}")
    else:
        print(flush=True)
    return output
