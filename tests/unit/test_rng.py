from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from outrider.sampling.rng import KeyedRandomness, _log_exponentials, child_seed, fresh_seed

FALSE_ALARM = 1e-9
PROBABILITIES = (0.5, 0.25, 0.15, 0.10)

GOLDEN_EMIT = [80, 300, 810, 522, 601, 387]
GOLDEN_DRAFT = [414, 271, 682, 655, 288, 997]
GOLDEN_ACCEPT = "100111001001"
GOLDEN_LAST_SEED = [763]


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def logs(probabilities: tuple[float, ...] = PROBABILITIES) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def emitted(seed: int, count: int, logp_V: torch.Tensor, shared: bool = False) -> list[int]:
    randomness = KeyedRandomness(seed, shared)
    return [randomness.round(start).emit(0, logp_V) for start in range(count)]


def drafted(seed: int, count: int, logq_V: torch.Tensor, i: int = 0) -> list[int]:
    randomness = KeyedRandomness(seed, False)
    return [randomness.round(start).draft(i, logq_V) for start in range(count)]


def test_the_stream_is_pinned() -> None:
    """A change here changes the text of every seeded request: a decision for a release note, not a refactoring."""
    flat_V = torch.zeros(1000)
    assert emitted(7, 6, flat_V) == GOLDEN_EMIT
    assert drafted(7, 6, flat_V) == GOLDEN_DRAFT
    accepts = [KeyedRandomness(7, False).round(5).accept(i, 0.5) for i in range(12)]
    assert "".join("01"[a] for a in accepts) == GOLDEN_ACCEPT
    assert emitted(2**64 - 1, 1, flat_V) == GOLDEN_LAST_SEED


def test_emit_depends_on_position_and_not_on_the_round() -> None:
    randomness = KeyedRandomness(3, False)
    flat_V = torch.zeros(5000)
    assert len({randomness.round(20 - i).emit(i, flat_V) for i in range(9)}) == 1
    assert len(set(emitted(3, 20, flat_V))) > 15
    assert emitted(3, 20, flat_V) != emitted(4, 20, flat_V)


def test_a_draw_does_not_depend_on_the_draws_before_it() -> None:
    flat_V = torch.zeros(5001)
    used = KeyedRandomness(3, False)
    used.round(4).emit(1, flat_V), used.round(9).accept(0, 0.5), used.round(9).draft(2, flat_V[:7])
    for start in (7, 2):
        fresh = KeyedRandomness(3, False)
        assert used.round(start).emit(1, flat_V) == fresh.round(start).emit(1, flat_V)
        assert used.round(start).draft(1, flat_V) == KeyedRandomness(3, False).round(start).draft(1, flat_V)


def test_draft_shares_the_noise_of_emit_only_when_coupled() -> None:
    flat_V = torch.zeros(5000)
    for i in range(5):
        coupled, free = KeyedRandomness(3, True).round(9), KeyedRandomness(3, False).round(9)
        assert coupled.draft(i, flat_V) == coupled.emit(i, flat_V)
        assert free.draft(i, flat_V) != free.emit(i, flat_V)


def test_draft_noise_differs_between_rounds_at_the_same_position() -> None:
    randomness = KeyedRandomness(3, False)
    flat_V = torch.zeros(5000)
    assert len({randomness.round(20 - i).draft(i, flat_V) for i in range(9)}) > 6


def test_a_tokens_noise_does_not_depend_on_the_vocabulary() -> None:
    draws = KeyedRandomness(11, False).round(4)
    wide_V = torch.zeros(49152)
    for size in (1, 2, 7, 1001):
        only_V = torch.full_like(wide_V, -torch.inf)
        only_V[:size] = 0.0
        assert draws.emit(0, only_V) == draws.emit(0, wide_V[:size])


def test_layout_and_dtype_of_the_row_do_not_matter() -> None:
    draws = KeyedRandomness(5, False).round(2)
    logits_TV = torch.randn(9, 4099, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    for i in range(9):
        token = draws.emit(i, logits_TV[i])
        assert token == draws.emit(i, logits_TV[i : i + 1].clone()[0])
        assert token == draws.emit(i, logits_TV.T.contiguous().T[i])
        assert token == draws.emit(i, logits_TV[i].bfloat16())
        assert token == draws.emit(i, logits_TV[i].double())


@pytest.mark.parametrize("shift", [0.0, -30.0])
def test_emit_draws_from_the_distribution_also_unnormalised(shift: float) -> None:
    count = 20_000
    counts = np.bincount(emitted(1, count, logs() + shift), minlength=4)
    limit = chi2.isf(FALSE_ALARM, df=3)
    assert chi_square(counts, count * np.array(PROBABILITIES)) < limit
    # The same test tells this distribution from one that differs by 0.03 in two places.
    assert chi_square(counts, count * np.array([0.47, 0.28, 0.15, 0.10])) > limit


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    count = 20_000
    tokens = emitted(1, count, logs())
    joint = count * np.outer(PROBABILITIES, PROBABILITIES)
    limit = chi2.isf(FALSE_ALARM, df=15)
    for pairs in (
        list(pairwise(tokens)),
        list(zip(tokens, emitted(2, count, logs()), strict=True)),
        list(zip(tokens, drafted(1, count, logs()), strict=True)),
        # The same position, drafted in two rounds.
        list(zip(drafted(1, count, logs())[1:], drafted(1, count, logs(), i=1)[:-1], strict=True)),
    ):
        counts = np.zeros((4, 4))
        np.add.at(counts, tuple(np.array(pairs).T), 1)
        assert chi_square(counts, joint) < limit
    doubled = np.diag(np.bincount(tokens, minlength=4))
    assert chi_square(doubled, joint) > limit


def test_acceptances_are_independent_over_positions_and_rounds() -> None:
    count, probability = 10_000, 0.3
    randomness = KeyedRandomness(9, False)
    grid = np.array([[randomness.round(start).accept(i, probability) for i in (0, 1)] for start in range(count)])
    joint = count * np.outer([0.7, 0.3], [0.7, 0.3]).ravel()
    limit = chi2.isf(FALSE_ALARM, df=3)
    # Beside each other in one round; the same absolute position in two rounds; the same draft position in two rounds.
    pairs = [(grid[:, 0], grid[:, 1]), (grid[1:, 0], grid[:-1, 1]), (grid[1:, 0], grid[:-1, 0])]
    for first, second in pairs:
        assert chi_square(np.bincount(2 * first + second, minlength=4), joint) < limit
    assert chi_square(np.bincount(3 * grid[:, 0], minlength=4), joint) > limit


FEW = [3, 11, 4097, 30001, 49151]


def rows_to_race() -> dict[str, torch.Tensor]:
    noise_V = torch.randn(49152, generator=torch.Generator().manual_seed(0))
    only_few_V, far_behind_V = torch.full((49152,), -torch.inf), torch.full((49152,), -8.5)
    only_few_V[FEW], far_behind_V[123] = noise_V[FEW], 0.0
    return {
        "peaked": torch.log_softmax(6 * noise_V, -1),
        "flat": torch.zeros(49152),
        "one ahead of a heavy tail": far_behind_V,
        "half of it impossible": torch.where(noise_V > 0, 3 * noise_V, -torch.inf),
        "a few": only_few_V,
        "many low ids": torch.where((torch.arange(49152) < 900) & (noise_V > 0), noise_V, -torch.inf),
        "unnormalised": 2 * noise_V - 5000,
        "a small vocabulary": noise_V[:7],
    }


@pytest.mark.parametrize("kind", rows_to_race())
def test_the_winner_is_that_of_a_race_of_all_tokens(kind: str) -> None:
    """Noise is made and logarithms are taken only where they could matter; by the definition, here of every token."""
    row_V = rows_to_race()[kind]
    winners = []
    for position in range(60):
        philox = np.random.Philox(key=[7, 1], counter=[0, 0, position, 0])
        words = philox.random_raw((len(row_V) + 1) // 2).view(np.uint32)[: len(row_V)]
        winners.append(int((row_V.numpy() - _log_exponentials(words)).argmax()))
    assert emitted(7, 60, row_V) == winners
    assert len(set(winners)) > 2, "tokens other than the likeliest win, or this shows little"


def test_certain_and_impossible_events() -> None:
    draws = [KeyedRandomness(1, False).round(start) for start in range(500)]
    assert all(draw.accept(0, 1.0) for draw in draws)
    assert not any(draw.accept(0, 0.0) for draw in draws)


def test_impossible_tokens_never_win_however_unlikely_the_rest() -> None:
    logp_V = torch.full((100,), -torch.inf)
    logp_V[42] = -80.0
    assert set(emitted(1, 200, logp_V)) == {42}
    with pytest.raises(AssertionError, match="possible token"):
        emitted(1, 1, torch.full((100,), -torch.inf))
    with pytest.raises(AssertionError, match="NaN"):
        emitted(1, 1, torch.tensor([0.0, torch.nan]))


def test_the_extreme_words_give_finite_noise() -> None:
    noise = _log_exponentials(np.array([0, 1, 2**31, 2**32 - 1], dtype=np.uint32))
    assert np.isfinite(noise).all()
    assert (np.diff(noise) > 0).all()


def test_seeds() -> None:
    assert [child_seed(5, i) for i in range(3)] == [5, 6, 7]
    assert child_seed(2**64 - 1, 1) == 0
    assert 0 <= fresh_seed() < 2**64
    assert fresh_seed() != fresh_seed()
