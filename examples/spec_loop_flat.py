"""Speculative decoding with nothing hidden: the whole algorithm, flat, on a toy model.

Run it: ``python examples/spec_loop_flat.py``. The engine does the same in a batch, with real KV and any drafter;
a test holds this file equal to it, token for token. Rule: token-level rejection sampling (Leviathan et al. 2023,
Chen et al. 2023). Shapes: V vocabulary, K draft tokens, T = K + 1 rows of the target.
"""

from __future__ import annotations

import math

import torch

from outrider.models.toy import ToyModel
from outrider.sampling.rng import KeyedRandomness


def speculate(
    target: ToyModel, draft: ToyModel, prompt: list[int], max_tokens: int, k: int, seed: int
) -> tuple[list[int], int]:
    """Generate ``max_tokens`` tokens; returns them and the number of target passes they took."""
    noise = KeyedRandomness(seed, shared_noise=False)
    tokens = list(prompt)
    passes = 0
    while len(tokens) - len(prompt) < max_tokens:
        # A round emits up to k + 1 tokens, so the last rounds draft fewer.
        room = max_tokens - (len(tokens) - len(prompt))
        draws = noise.round(len(tokens))

        # 1. Draft: a cheap model guesses k tokens, one after the other, and keeps each distribution q it drew from.
        guesses: list[int] = []
        logq_KV: list[torch.Tensor] = []
        for i in range(min(k, room - 1)):
            logq_V = torch.log_softmax(draft.logits(tokens + guesses), -1)
            guesses.append(draws.draft(i, logq_V))
            logq_KV.append(logq_V)

        # 2. Score: one pass of the target gives its distribution p at every guess, and one row more.
        #    (A table has no passes; a transformer computes these rows together for the price of one.)
        rows = [target.logits(tokens + guesses[:i]) for i in range(len(guesses) + 1)]
        logp_TV = torch.log_softmax(torch.stack(rows), -1)
        passes += 1

        # 3. Verify: keep guess x with probability min(1, p(x) / q(x)); at the first refusal draw from what p has
        #    more than q, max(p - q, 0), and stop. If all were kept, the last row gives one more token for free.
        for i, guess in enumerate(guesses):
            ratio = math.exp(min(0.0, float(logp_TV[i, guess]) - float(logq_KV[i][guess])))
            if draws.accept(i, ratio):
                tokens.append(guess)
                continue
            residual_V = (logp_TV[i].exp() - logq_KV[i].exp()).clamp_min(0)
            # Where p and q agree to the last digit nothing is left: the refusal was a rounding error, p is right.
            weights_V = residual_V.log() if residual_V.any() else logp_TV[i]
            tokens.append(draws.emit(i, weights_V))
            break
        else:
            tokens.append(draws.emit(len(guesses), logp_TV[len(guesses)]))
    return tokens[len(prompt) :], passes


def main() -> None:
    """Show that more guesses mean fewer passes of the target."""
    target = ToyModel(vocab_size=12, context=2, seed=1)
    # The draft is the target's own table, blurred: right often, not always.
    draft = ToyModel(vocab_size=12, context=2, seed=1, scale=1.0)
    for k in (0, 1, 2, 4):
        tokens, passes = speculate(target, draft, prompt=[3, 5], max_tokens=200, k=k, seed=7)
        print(f"k={k}: {len(tokens)} tokens in {passes} target passes, {len(tokens) / passes:.2f} tokens a pass")


if __name__ == "__main__":
    main()
