"""Settings that every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples on every machine and every run; no test may depend on how fast it runs.
settings.register_profile(
    "outrider", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("outrider")
torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test once on each of the decoder's backends that are here."""
    from tests.unit.decoders import on

    with on(request.param):
        yield request.param
