"""MixedLoss row by row against the formula as the article writes it, values and gradients."""

from __future__ import annotations

import pytest
import torch

from outrider.train.mixed_loss import mixed_loss


def laws(rows: int, vocabulary: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Nine tenths of a law, as where the draft's vocabulary lacks some tokens, and logits."""
    torch.manual_seed(rows)
    p_RV = 0.9 * torch.softmax(2 * torch.randn(rows, vocabulary, dtype=dtype), -1)
    return p_RV, torch.randn(rows, vocabulary, dtype=dtype, requires_grad=True)


def as_written(p_RV: torch.Tensor, logits_RV: torch.Tensor, omega: float, hard: bool) -> torch.Tensor:
    logq_RV = torch.log_softmax(logits_RV, -1)
    alpha_R = torch.minimum(p_RV, logq_RV.exp()).sum(-1)
    aim_RV = torch.nn.functional.one_hot(p_RV.argmax(-1), p_RV.shape[-1]) if hard else p_RV
    return (omega * -(aim_RV * logq_RV).sum(-1) - (1 - omega) * alpha_R).sum()


# More rows than are visited at a time, and a number that no chunk divides.
@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0])
def test_value_and_gradient_are_those_of_the_formula(omega: float, hard: bool, rows: int) -> None:
    p_RV, logits_RV = laws(rows, 50, torch.float64)
    losses, theirs = mixed_loss(p_RV, logits_RV, omega, hard), as_written(p_RV, logits_RV, omega, hard)
    ours = losses.loss
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    q_RV = torch.softmax(logits_RV, -1)
    assert losses.accepted.item() == pytest.approx(torch.minimum(p_RV, q_RV).sum().item())
    assert losses.hits.item() == (p_RV.argmax(-1) == q_RV.argmax(-1)).sum().item()
    # Scaled, as the mean over a batch scales it.
    (gradient,), (expected,) = (torch.autograd.grad(3 * loss, logits_RV) for loss in (ours, theirs))
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


def test_logits_far_from_zero_stay_finite() -> None:
    p_RV, logits_RV = laws(3, 50, torch.float32)
    far_RV = (100 * logits_RV.detach() + 5000).requires_grad_()
    losses = mixed_loss(p_RV, far_RV, 0.5, hard=False)
    (gradient,) = torch.autograd.grad(losses.loss, far_RV)
    assert losses.loss.item() == pytest.approx(as_written(p_RV, far_RV, 0.5, hard=False).item(), rel=1e-5)
    assert torch.isfinite(gradient).all()


def test_bfloat16_logits_lose_what_rounding_takes() -> None:
    p_RV, logits_RV = laws(40, 50, torch.float32)
    half_RV = logits_RV.detach().bfloat16().requires_grad_()
    losses = mixed_loss(p_RV, half_RV, 0.5, hard=False)
    assert losses.loss.item() == pytest.approx(as_written(p_RV, half_RV.float(), 0.5, hard=False).item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(losses.loss, half_RV)
    (expected,) = torch.autograd.grad(as_written(p_RV, logits_RV, 0.5, hard=False), logits_RV)
    torch.testing.assert_close(gradient.float(), expected, rtol=0.05, atol=1e-2)


@pytest.mark.parametrize("hard", [False, True])
def test_tokens_left_out_are_logits_of_zero(hard: bool) -> None:
    """One column for all of them is the loss, with its gradient, of a column of zeros for each."""
    torch.manual_seed(0)
    p_RV, logits_RV = torch.rand(6, 9).softmax(-1) * 0.8, torch.randn(6, 9, requires_grad=True)
    got = mixed_loss(p_RV, logits_RV, 0.4, hard, left_out=2300)
    (gradient,) = torch.autograd.grad(got.loss, logits_RV)
    whole_RV = torch.nn.functional.pad(logits_RV, (0, 2300))
    expected = mixed_loss(torch.nn.functional.pad(p_RV, (0, 2300)), whole_RV, 0.4, hard)
    (expected_gradient,) = torch.autograd.grad(expected.loss, logits_RV)
    torch.testing.assert_close(vars(got), vars(expected))
    torch.testing.assert_close(gradient, expected_gradient)


def test_the_loss_is_the_articles() -> None:
    p_RV = torch.tensor([[0.5, 0.2, 0.1]])  # the rest of the law is outside the draft's vocabulary
    logits_RV = torch.log(torch.tensor([[0.25, 0.5, 0.25]]))
    entropy = -(0.5 * torch.log(torch.tensor(0.25)) + 0.2 * torch.log(torch.tensor(0.5)))
    entropy -= 0.1 * torch.log(torch.tensor(0.25))
    alpha = 0.25 + 0.2 + 0.1
    for omega in (0.0, 0.5, 1.0):
        losses = mixed_loss(p_RV, logits_RV, omega, hard=False)
        assert losses.loss.item() == pytest.approx(omega * entropy.item() - (1 - omega) * alpha)
    assert losses.accepted.item() == pytest.approx(alpha)
    assert losses.hits.item() == 0
    hard = mixed_loss(p_RV, logits_RV, 1.0, hard=True)
    assert hard.loss.item() == pytest.approx(-torch.log(torch.tensor(0.25)).item())
