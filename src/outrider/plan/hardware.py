"""Devices: what they read, hold and compute at most, each number with where it comes from.

FLOP/s are dense: data sheets that quote sparsity are halved. Memory is in bytes of 10^9 a GB, as sold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from outrider.errors import ConfigError
from outrider.plan.cost import Machine

GB = 1e9
TERA = 1e12
GIVEN = "as given"
_SIZES = ("bandwidth", "memory")
_DIMM = 32


@dataclass(frozen=True)
class Device:
    """One device. ``flops`` by number format: bfloat16, float32, and int8 and fp8 where it multiplies them.

    ``sources`` says for "bandwidth", "memory" and each number format where its figure comes from.
    """

    name: str
    bandwidth: float
    memory: float
    flops: Mapping[str, float]
    sources: Mapping[str, str]

    def machine(self, *formats: str) -> Machine:
        """The roofline of the first of ``formats`` that the device multiplies in."""
        return Machine(self.flops[self._format(formats)], self.bandwidth)

    def sources_of(self, *formats: str) -> dict[str, str]:
        """Where "bandwidth", "memory" and the "flops" of ``machine`` come from."""
        return {name: self.sources[name] for name in _SIZES} | {"flops": self.sources[self._format(formats)]}

    def _format(self, formats: Sequence[str]) -> str:
        known = next((each for each in formats if each in self.flops), None)
        if known is None:
            raise ConfigError(f"{self.name} has no rate for {' or '.join(formats)}; it has {', '.join(self.flops)}")
        return known

    def override(self, bandwidth: float | None, memory: float | None, flops: float | None) -> Device:
        """The same with a user's figures (None: as it is); ``flops`` holds for every number format."""
        if bandwidth is memory is flops is None:
            return self
        given = {"bandwidth": bandwidth, "memory": memory, **dict.fromkeys(self.flops, flops)}
        return replace(
            self,
            bandwidth=self.bandwidth if bandwidth is None else bandwidth,
            memory=self.memory if memory is None else memory,
            flops=self.flops if flops is None else dict.fromkeys(self.flops, flops),
            sources={name: self.sources[name] if value is None else GIVEN for name, value in given.items()},
        )


def _but(device: Device, **sources: str) -> Device:
    return replace(device, sources=MappingProxyType({**device.sources, **sources}))


def _gpu(
    name: str, bandwidth: float, memory: float, sheet: str, tensor: str = "dense as quoted", /, **teraflops: float
) -> Device:
    """``tensor`` says how the sheet quotes all rates but float32's."""
    rates = {format: rate * TERA for format, rate in teraflops.items()}
    sources = dict.fromkeys(_SIZES, sheet) | {
        format: sheet if format == "float32" else f"{sheet}, {tensor}" for format in rates
    }
    return Device(name, bandwidth * GB, memory * GB, MappingProxyType(rates), MappingProxyType(sources))


def _cpu(
    name: str, channels: int, transfers: int, cores: int, clock: float, sheet: str, units: str, **per_cycle: float
) -> Device:
    """A processor: millions of transfers a second of 8 bytes each; cores, their clock in GHz, operations a cycle."""
    sources = {
        "bandwidth": f"{sheet}: {channels} channels of DDR5-{transfers}",
        "memory": f"assumed: {_DIMM} GB for each of {channels} channels",
    }
    for format, rate in per_cycle.items():
        sources[format] = f"{sheet}: {cores} cores at {clock:g} GHz base, {rate:g} operations a cycle ({units})"
    rates = {format: rate * cores * clock * 1e9 for format, rate in per_cycle.items()}
    memory = channels * _DIMM * GB
    return Device(name, channels * transfers * 8e6, memory, MappingProxyType(rates), MappingProxyType(sources))


_HALVED = "halved: quoted with sparsity"
_B200 = "NVIDIA DGX B200 data sheet, 2024, an eighth"
_GPUS = (
    _gpu("L4", 300, 24, "NVIDIA L4 data sheet, 2023", _HALVED, bfloat16=121, float32=30.3, int8=242.5, fp8=242.5),
    _gpu("A10", 600, 24, "NVIDIA A10 data sheet, 2021", bfloat16=125, float32=31.2, int8=250),
    _gpu("L40S", 864, 48, "NVIDIA L40S data sheet, 2023", bfloat16=362.05, float32=91.6, int8=733, fp8=733),
    _gpu("A100-40GB", 1555, 40, "NVIDIA A100 data sheet, 2020", bfloat16=312, float32=19.5, int8=624),
    _gpu("A100-80GB", 2039, 80, "NVIDIA A100 80GB SXM data sheet, 2021", bfloat16=312, float32=19.5, int8=624),
    _gpu(
        "H100-SXM", 3350, 80, "NVIDIA H100 data sheet, 2023", _HALVED,
        bfloat16=989.5, float32=67, int8=1979, fp8=1979,
    ),
    _gpu(
        "H100-PCIe", 2000, 80, "NVIDIA H100 data sheet, 2022", _HALVED,
        bfloat16=756.5, float32=51, int8=1513, fp8=1513,
    ),
    _gpu(
        "H200", 4800, 141, "NVIDIA H200 data sheet, 2023", _HALVED,
        bfloat16=989.5, float32=67, int8=1979, fp8=1979,
    ),
    _but(
        _gpu("B200", 8000, 180, _B200, _HALVED, bfloat16=2250, float32=80, int8=4500, fp8=4500),
        float32="NVIDIA Blackwell technical brief, 2024",
    ),
    _gpu(
        "MI300X", 5300, 192, "AMD Instinct MI300X data sheet, 2023",
        bfloat16=1307.4, float32=163.4, int8=2614.9, fp8=2614.9,
    ),
)  # fmt: skip
_CPUS = (
    _cpu(
        "EPYC-9654", 12, 4800, 96, 2.4, "AMD EPYC 9654 data sheet, 2022", "two 256-bit multiply-adds",
        bfloat16=64, float32=32, int8=128,
    ),
    _but(
        _cpu(
            "Xeon-8480", 8, 4800, 56, 2.0, "Intel Xeon Platinum 8480+ data sheet, 2023", "AMX tiles",
            bfloat16=1024, float32=64, int8=2048,
        ),
        float32="Intel Xeon Platinum 8480+ data sheet, 2023: 56 cores at 2 GHz base, two 512-bit multiply-adds a cycle",
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
