"""GPUs: constant facts, readings of one moment, and the GPUs that CUDA_VISIBLE_DEVICES leaves to this server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

import msgspec
from msgspec import Struct

THROTTLE_REASONS: Final = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
"""Why clocks are below their maximum, in the order of NVML's bits (nvmlClocksEventReason…)."""

_UUID_WORDS: Final = 6
_ABSENT: Final = -(1 << 63)


class Driver(Struct, frozen=True):
    """The NVIDIA driver.

    Attributes:
        version: For instance `580.95.05`; None if unknown.
        cuda: The newest version of CUDA that it supports, for instance `13.0`; None if unknown.
    """

    version: str | None
    cuda: str | None


class MigDevice(Struct, frozen=True):
    """A part of a GPU in MIG mode, which CUDA treats as a device.

    Attributes:
        uuid: `MIG-…`.
        name: Name of the GPU and profile, for instance `NVIDIA H200 MIG 1g.18gb`.
        memory_total_bytes: Size of its memory; None if unknown.
        memory_free_bytes: Its free memory; None if unknown.
    """

    uuid: str
    name: str
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None


class Gpu(Struct, frozen=True):
    """A GPU that the NVIDIA driver sees. A value that the driver does not give is None.

    Attributes:
        index: Its number in the driver's order, that of the PCI bus.
        uuid: `GPU-…`.
        name: Product name.
        memory_total_bytes: Size of its memory.
        memory_free_bytes: Its free memory.
        compute_capability: For instance `9.0`.
        pci_bus: PCI bus id, for instance `00000000:18:00.0`.
        mig_mode: Whether it is divided: then CUDA can use its MIG devices, and not the whole GPU.
        mig_devices: Its MIG devices.
    """

    index: int
    uuid: str
    name: str
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: str | None = None
    pci_bus: str | None = None
    mig_mode: bool = False
    mig_devices: tuple[MigDevice, ...] = ()


class GpuReading(Struct, frozen=True):
    """A GPU at one moment. A value that its driver does not give is None, such as the utilisation in MIG mode.

    Attributes:
        index: Its number in the driver's order.
        uuid: `GPU-…`.
        memory_total_bytes, memory_used_bytes, memory_free_bytes: Its memory.
        utilization_percent: Share of the last sample period in which a kernel ran.
        power_mw: Its power.
        power_limit_mw: The driver's limit of its power.
        temperature_c: Temperature in °C.
        energy_mj: Energy in millijoules since the driver was loaded.
        throttle_bits: Why its clocks are below their maximum; bit N stands for `THROTTLE_REASONS[N]`.
    """

    index: int
    uuid: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization_percent: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    temperature_c: int | None = None
    energy_mj: int | None = None
    throttle_bits: int | None = None

    WORDS: ClassVar[int] = 1 + _UUID_WORDS + 9
    """The number of int64 words of a reading, without its index."""

    def to_words(self) -> list[int]:
        """Return the reading as `WORDS` int64 words. Adding pages of zeros to them loses nothing."""
        uuid = self.uuid.encode()[: 8 * _UUID_WORDS].ljust(8 * _UUID_WORDS, b"\0")
        packed = [int.from_bytes(uuid[at : at + 8], "little") for at in range(0, len(uuid), 8)]
        values = [getattr(self, f.name) for f in msgspec.structs.fields(self)[2:]]
        return [1, *packed, *(_ABSENT if value is None else value for value in values)]

    @classmethod
    def from_words(cls, index: int, words: list[int]) -> Self | None:
        """Inverse of `to_words`; None for words that are all zero."""
        if not words[0]:
            return None
        packed, values = words[1 : 1 + _UUID_WORDS], words[1 + _UUID_WORDS :]
        uuid = b"".join(word.to_bytes(8, "little") for word in packed).rstrip(b"\0").decode()
        return cls(index, uuid, *(None if value == _ABSENT else value for value in values))

    def throttle_reasons(self) -> dict[str, bool]:
        """Return whether each reason holds; an empty dict if unknown."""
        bits = self.throttle_bits
        if bits is None:
            return {}
        return {reason: bool(bits >> bit & 1) for bit, reason in enumerate(THROTTLE_REASONS)}


class GpuMemory(Struct, frozen=True):
    """The memory of a GPU or MIG device at one moment.

    Attributes:
        processes: Bytes of each computing process by its id, as far as the driver knows. It does not for processes
            outside a container, in some virtual machines, and often on MIG devices.
    """

    total_bytes: int
    used_bytes: int
    processes: Mapping[int, int]


class Visible(Struct, frozen=True):
    """A device that CUDA_VISIBLE_DEVICES leaves to this server.

    Attributes:
        gpu: The GPU.
        part: Its MIG device, if the variable names that alone.
    """

    gpu: Gpu
    part: MigDevice | None = None


def visible_devices(found: Sequence[Gpu], environ: Mapping[str, str]) -> list[Visible]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; all if it is not set.

    As in CUDA, an entry is a number in the order of the PCI bus, the UUID of a GPU or its beginning, or the UUID of a
    MIG device. The first entry that is none of these ends the list.
    """
    entries = environ.get("CUDA_VISIBLE_DEVICES")
    if entries is None:
        return [Visible(gpu) for gpu in found]
    visible: list[Visible] = []
    for entry in entries.split(","):
        device = _find_visible(entry.strip(), found)
        if device is None:
            break
        if device not in visible:
            visible.append(device)
    return visible


def _find_visible(entry: str, found: Sequence[Gpu]) -> Visible | None:
    if entry.startswith("MIG-"):
        parts = [Visible(gpu, part) for gpu in found for part in gpu.mig_devices]
        return next((visible for visible in parts if visible.part and visible.part.uuid == entry), None)
    if entry.startswith("GPU-"):
        matching = [gpu for gpu in found if gpu.uuid.startswith(entry)]
        return Visible(matching[0]) if len(matching) == 1 else None
    return next((Visible(gpu) for gpu in found if entry.isdecimal() and gpu.index == int(entry)), None)


def library_folders(folders: Sequence[str]) -> list[Path]:
    """Return the folders of libraries below folders of packages, in the same order.

    Since CUDA 13 one folder has all libraries but cuDNN; before, each package had its own.
    """
    return [place for folder in folders for place in sorted(Path(folder, "nvidia").glob("*/lib"))]
