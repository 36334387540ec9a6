"""The catalogue of devices, and what fits into their memory."""

from __future__ import annotations

import re

import pytest

from outrider.errors import ConfigError
from outrider.plan.architecture import Architecture, Storage
from outrider.plan.hardware import DEVICES, find_device
from outrider.plan.memory import Model, plan_memory

WANTED = ("L4", "A10", "L40S", "A100-40GB", "A100-80GB", "H100-SXM", "H100-PCIe", "H200", "B200", "MI300X")
# 2 layers, 2 bytes a number: 2 * 2 * 2 * 10 * 2 = 160 bytes of cache a token.
SMALL = Architecture(2, 20, 2, 2, 10, 40, vocab=100, tied=True)


def model(architecture: Architecture = SMALL, quantization: str | None = None) -> Model:
    return Model("m", "m", architecture, Storage(quantization=quantization))


def test_every_device_says_what_it_does_and_who_says_so() -> None:
    assert set(WANTED) < set(DEVICES)
    for name, device in DEVICES.items():
        assert device.name == name
        assert set(device.sources) == {"bandwidth", "memory", *device.flops}
        for source in (device.sources[each] for each in ("bandwidth", *device.flops)):
            assert re.search(r"(data sheet|brief), 20[12]\d", source)
        assert 1e11 < device.bandwidth < 1e13
        assert 1e10 < device.memory < 1e12
        # Every halving of a number's width doubles the rate at least, and no rate is off by a unit.
        assert 1e12 < device.flops["float32"] < device.flops["bfloat16"] < 1e16
        for narrow in ("int8", "fp8"):
            if narrow in device.flops:
                assert device.flops[narrow] == pytest.approx(2 * device.flops["bfloat16"], rel=0.02)


def test_intensity_of_known_devices() -> None:
    """The article's HOI of 600 is the H100 SXM at FP8; about 296 FLOP a byte are its bfloat16."""
    device = find_device("H100-SXM")
    assert device.machine("fp8").flops / device.bandwidth == pytest.approx(600, rel=0.02)
    assert device.machine("bfloat16").flops / device.bandwidth == pytest.approx(296, rel=0.01)


def test_processors_are_counted_from_their_parts() -> None:
    epyc, xeon = find_device("EPYC-9654"), find_device("Xeon-8480")
    assert epyc.bandwidth == pytest.approx(460.8e9)
    assert xeon.bandwidth == pytest.approx(307.2e9)
    assert epyc.machine("float32").flops == pytest.approx(7.37e12, rel=0.001)
    assert xeon.machine("bfloat16").flops == pytest.approx(114.7e12, rel=0.001)


def test_a_name_in_any_case() -> None:
    assert find_device("h100-sxm") is DEVICES["H100-SXM"]
    with pytest.raises(ConfigError, match=r"'TPU' is unknown; use 'this' \(measured here\) or one of L4, A10"):
        find_device("TPU")


def test_the_first_number_format_that_a_device_has() -> None:
    device = find_device("A100-80GB")
    assert device.machine("int8", "bfloat16").flops == 624e12
    assert device.machine("fp8", "bfloat16").flops == 312e12
    with pytest.raises(ConfigError, match="A100-80GB has no rate for fp8; it has bfloat16, float32, int8"):
        device.machine("fp8")


def test_a_users_figures_go_before_the_catalogue() -> None:
    device = find_device("L4")
    assert device.override(None, None, None) is device
    mine = device.override(5e11, None, 1e14)
    assert (mine.bandwidth, mine.memory, mine.machine("fp8").flops) == (5e11, 24e9, 1e14)
    assert mine.sources_of("bfloat16") == {
        "bandwidth": "as given",
        "memory": "NVIDIA L4 data sheet, 2023",
        "flops": "as given",
    }


def test_memory_adds_up() -> None:
    memory = plan_memory("d", 1e6, model(), batch=3, context=100)
    assert memory.usable == 0.9e6
    assert memory.weights == SMALL.parameters * 2
    assert memory.per_request == 16_000
    assert memory.needed == memory.weights + 48_000
    assert memory.fits


def test_a_draft_adds_weights_and_cache() -> None:
    target, draft = model(), model(SMALL.trunk(1), "int8")
    memory = plan_memory("d", 1e6, target, 1, 100, draft)
    assert memory.draft_weights == SMALL.trunk(1).parameters
    assert memory.per_request == 16_000 + 8_000
    sparse = plan_memory("d", 1e6, target, 1, 100, draft, sparse=True)
    assert sparse.per_request == 16_000 + 80 * 13


def test_a_target_that_drafts_for_itself_shares_its_weights() -> None:
    target = model()
    memory = plan_memory("d", 1e6, target, 1, 80, target, sparse=True)
    assert memory.draft_weights == 0.0
    assert memory.per_request == 160 * 80 + 160 * 11


@pytest.mark.parametrize("draft", [None, model(SMALL.trunk(1))])
def test_what_still_fits_is_exactly_that(draft: Model | None) -> None:
    def fits(batch: int, context: int) -> bool:
        return plan_memory("d", 1e6, model(), batch, context, draft, sparse=True).fits

    memory = plan_memory("d", 1e6, model(), 2, 3000, draft, sparse=True)
    assert memory.longest_context is not None
    assert fits(2, memory.longest_context)
    assert not fits(2, memory.longest_context + 1)
    assert fits(memory.largest_batch, 3000)
    assert not fits(memory.largest_batch + 1, 3000)


def test_refusal_has_the_numbers() -> None:
    memory = plan_memory("d", 1e6, model(), batch=2, context=3000)
    assert not memory.fits
    weights = SMALL.parameters * 2 / 1e6
    assert memory.refusal() == (
        f"needs {weights + 0.96:.1f} MB ({weights:.1f} MB of weights, 1.0 MB of KV for 2 x 3000 tokens), more than the "
        f"0.9 MB for them on d; what fits: a context of {memory.longest_context} at batch 2 or a batch of 1 at "
        "context 3000"
    )


def test_refusal_where_the_weights_alone_are_too_much() -> None:
    memory = plan_memory("d", 1e4, model(), batch=1, context=1)
    assert (memory.longest_context, memory.largest_batch) == (None, 0)
    assert memory.refusal().endswith("what fits: nothing, so take another device or a quantization")


def test_windows_alone_have_no_longest_context() -> None:
    windows = Architecture(2, 20, 2, 2, 10, 40, vocab=100, local_layers=2, window=10)
    assert plan_memory("d", 1e6, model(windows), 1, 100).longest_context is None
