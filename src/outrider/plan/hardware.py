"""Devices: what they read, hold and compute at most, each number with where it comes from.

FLOP/s are dense: data sheets that quote sparsity are halved. Memory is in bytes of 10^9 a GB, as sold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from outrider.errors import ConfigError
from outrider.plan.cost import Machine

GB = 1e9
TERA = 1e12


@dataclass(frozen=True)
class Device:
    """One device. ``flops`` by number format: bfloat16, float32, and int8 and fp8 where it multiplies them."""

    name: str
    bandwidth: float
    memory: float
    flops: Mapping[str, float]
    source: str

    def machine(self, *formats: str) -> Machine:
        """The roofline of the first of ``formats`` that the device multiplies in."""
        known = next((self.flops[each] for each in formats if each in self.flops), None)
        if known is None:
            raise ConfigError(f"{self.name} has no rate for {' or '.join(formats)}; it has {', '.join(self.flops)}")
        return Machine(known, self.bandwidth)

    def override(self, bandwidth: float | None, memory: float | None, flops: float | None) -> Device:
        """The same with a user's figures (None: as it is); ``flops`` holds for every number format."""
        given = {"bandwidth": bandwidth, "memory": memory, "flops": flops}
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            return self
        return replace(
            self,
            bandwidth=self.bandwidth if bandwidth is None else bandwidth,
            memory=self.memory if memory is None else memory,
            flops=self.flops if flops is None else dict.fromkeys(self.flops, flops),
            source=f"{', '.join(given)} as given; else {self.source}",
        )


def _gpu(name: str, bandwidth: float, memory: float, source: str, **teraflops: float) -> Device:
    rates = {format: rate * TERA for format, rate in teraflops.items()}
    return Device(name, bandwidth * GB, memory * GB, MappingProxyType(rates), source)


def _cpu(
    name: str, channels: int, transfers: int, memory: float, cycles: float, source: str, **per_cycle: float
) -> Device:
    """A processor: millions of transfers a second of 8 bytes each; cores times clock, and operations a core's cycle."""
    rates = {format: rate * cycles for format, rate in per_cycle.items()}
    return Device(name, channels * transfers * 8e6, memory * GB, MappingProxyType(rates), source)


_GPUS = (
    _gpu(
        "L4", 300, 24, "NVIDIA L4 data sheet, 2023; tensor figures halved",
        bfloat16=121, float32=30.3, int8=242.5, fp8=242.5,
    ),
    _gpu("A10", 600, 24, "NVIDIA A10 data sheet, 2021; dense as quoted", bfloat16=125, float32=31.2, int8=250),
    _gpu(
        "L40S", 864, 48, "NVIDIA L40S data sheet, 2023; dense as quoted",
        bfloat16=362.05, float32=91.6, int8=733, fp8=733,
    ),
    _gpu("A100-40GB", 1555, 40, "NVIDIA A100 data sheet, 2020; dense as quoted", bfloat16=312, float32=19.5, int8=624),
    _gpu(
        "A100-80GB", 2039, 80, "NVIDIA A100 80GB SXM data sheet, 2021; dense as quoted",
        bfloat16=312, float32=19.5, int8=624,
    ),
    _gpu(
        "H100-SXM", 3350, 80, "NVIDIA H100 data sheet, 2023; tensor figures halved",
        bfloat16=989.5, float32=67, int8=1979, fp8=1979,
    ),
    _gpu(
        "H100-PCIe", 2000, 80, "NVIDIA H100 data sheet, 2022; tensor figures halved",
        bfloat16=756.5, float32=51, int8=1513, fp8=1513,
    ),
    _gpu(
        "H200", 4800, 141, "NVIDIA H200 data sheet, 2023; tensor figures halved",
        bfloat16=989.5, float32=67, int8=1979, fp8=1979,
    ),
    _gpu(
        "B200", 8000, 180,
        "NVIDIA DGX B200 data sheet, 2024, by eight, tensor figures halved; float32 of the Blackwell technical brief",
        bfloat16=2250, float32=80, int8=4500, fp8=4500,
    ),
    _gpu(
        "MI300X", 5300, 192, "AMD Instinct MI300X data sheet, 2023; dense as quoted",
        bfloat16=1307.4, float32=163.4, int8=2614.9, fp8=2614.9,
    ),
)  # fmt: skip
_CPUS = (
    _cpu(
        "EPYC-9654", 12, 4800, 384, 96 * 2.4e9,
        "AMD EPYC 9654 data sheet: 12 channels of DDR5-4800, here with 32 GB each; 96 cores at 2.4 GHz base with two "
        "256-bit multiply-adds a cycle",
        bfloat16=64, float32=32, int8=128,
    ),
    _cpu(
        "Xeon-8480", 8, 4800, 256, 56 * 2.0e9,
        "Intel Xeon Platinum 8480+ data sheet: 8 channels of DDR5-4800, here with 32 GB each; 56 cores at 2.0 GHz base "
        "with AMX tiles, and two 512-bit multiply-adds a cycle in float32",
        bfloat16=1024, float32=64, int8=2048,
    ),
)  # fmt: skip
DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in (*_GPUS, *_CPUS)})
THIS = "this"
"""The name under which a command measures the machine it runs on."""


def find_device(name: str) -> Device:
    """A device of the catalogue, whatever the case of its name. Raises ConfigError listing those there are."""
    found = next((device for key, device in DEVICES.items() if key.lower() == name.lower()), None)
    if found is None:
        raise ConfigError(
            f"hardware {name!r} is unknown; use {THIS!r} (measured here) or one of {', '.join(DEVICES)}, "
            "with your own bandwidth, memory and FLOP/s where they differ"
        )
    return found
