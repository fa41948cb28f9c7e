"""The devices of this machine: GPUs, MIG devices and the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.gpu.facts import Driver, Gpu, MigDevice, Visible, visible_devices
from stoker.gpu.nvml import describe_driver, gpus
from stoker.gpu.selection import cpu_device, mig_hint
from stoker.system.resources import main_memory


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device of this machine. A value that its driver does not give is None.

    Attributes:
        setting: Its name in the setting `device`; empty if it cannot be used.
        kind: `cpu`, `gpu`, or `mig` for a part of the GPU before it.
        name: Product name.
        uuid: Its UUID; empty for the CPU.
        compute_capability: For instance `9.0`.
        pci_bus: PCI bus id.
        memory_total_bytes: Size of its memory.
        memory_free_bytes: Its free memory.
        note: Why it cannot be used; empty if it can.
    """

    setting: str
    kind: Literal["cpu", "gpu", "mig"]
    name: str
    uuid: str = ""
    compute_capability: str | None = None
    pci_bus: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """All devices of this machine.

    Attributes:
        driver: The NVIDIA driver; None if there is none.
        no_gpu: Why there is no GPU; empty if there is one.
        devices: The GPUs, each followed by its MIG devices, and the CPU.
    """

    driver: Driver | None
    no_gpu: str
    devices: tuple[FoundDevice, ...]


def find_devices(environ: Mapping[str, str] = os.environ) -> Survey:
    """Find the devices by the driver, without a runtime.

    Args:
        environ: The environment; its CUDA_VISIBLE_DEVICES applies.
    """
    try:
        driver, found = describe_driver(), gpus()
    except OSError as error:
        return Survey(None, str(error), (_cpu(),))
    no_gpu = "" if found else "the NVIDIA driver sees no GPU"
    return Survey(driver, no_gpu, (*_found_gpus(found, environ), _cpu()))


def _cpu() -> FoundDevice:
    total, available = main_memory()
    return FoundDevice(
        "cpu",
        "cpu",
        cpu_device().description,
        memory_total_bytes=total,
        memory_free_bytes=available,
    )


def _found_gpus(found: Sequence[Gpu], environ: Mapping[str, str]) -> Iterator[FoundDevice]:
    visible = visible_devices(found, environ)
    hidden = f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')} hides it"
    for gpu in found:
        whole = Visible(gpu) in visible
        note = mig_hint(gpu) if gpu.mig_mode else "" if whole else hidden
        yield FoundDevice(
            "" if note else f"cuda:{visible.index(Visible(gpu))}",
            "gpu",
            gpu.name,
            gpu.uuid,
            gpu.compute_capability,
            gpu.pci_bus,
            gpu.memory_total_bytes,
            gpu.memory_free_bytes,
            note,
        )
        for part in gpu.mig_devices:
            yield _mig(gpu, part, "" if whole or Visible(gpu, part) in visible else hidden)


def _mig(gpu: Gpu, part: MigDevice, note: str) -> FoundDevice:
    return FoundDevice(
        "" if note else part.uuid,
        "mig",
        part.name,
        part.uuid,
        gpu.compute_capability,
        gpu.pci_bus,
        part.memory_total_bytes,
        part.memory_free_bytes,
        note,
    )
