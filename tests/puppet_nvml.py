"""A puppet of the module `pynvml`: GPUs that are made up, and a driver that can be taken away."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import pynvml
import pytest

__all__ = ["GIB", "PuppetGpu", "PuppetNvml", "a_gpu", "a_mig_device", "a_mig_gpu", "install", "set_memory"]

GIB = 1 << 30


@dataclass(eq=False)
class PuppetGpu:
    """A GPU or MIG device: a handle of NVML.

    Attributes:
        answers: What NVML's functions say of it; all others are not supported.
        parts: Its MIG devices; None for a place where there is none.
        error: NVML's number of what is said instead of a handle; 0 for nothing.
    """

    answers: dict[str, Any]
    parts: list[PuppetGpu | None] = field(default_factory=list)
    error: int = 0


def a_gpu(number: int = 0, **answers: Any) -> PuppetGpu:
    """A GPU of which everything is known; `answers` go before that."""
    known = {
        "nvmlDeviceGetUUID": f"GPU-{number:08x}-0000-4000-8000-123456789abc",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 * GIB, used=40 * GIB, free=100 * GIB),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=f"00000000:{number}8:00.0"),
        "nvmlDeviceGetMigMode": [pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_DISABLE],
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=12),
        "nvmlDeviceGetPowerUsage": 412_500,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetTemperatureV": 61,
        "nvmlDeviceGetTotalEnergyConsumption": 9_876_543_210,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x24,
    }
    return PuppetGpu({**known, **answers})


def a_mig_device(number: int) -> PuppetGpu:
    """A part of a GPU."""
    return PuppetGpu(
        {
            "nvmlDeviceGetUUID": f"MIG-{number:08x}-1111-5111-9111-123456789abc",
            "nvmlDeviceGetName": "NVIDIA H200 MIG 1g.18gb",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=18 * GIB, used=2 * GIB, free=16 * GIB),
        }
    )


def a_mig_gpu(number: int, *parts: int) -> PuppetGpu:
    """A GPU in MIG mode, with MIG devices in every other place; it has no utilisation."""
    gpu = a_gpu(number)
    del gpu.answers["nvmlDeviceGetUtilizationRates"]
    gpu.answers["nvmlDeviceGetMigMode"] = [pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE]
    gpu.answers["nvmlDeviceGetMaxMigDeviceCount"] = 7
    gpu.parts = [place for part in parts for place in (None, a_mig_device(part))]
    return gpu


_FUNCTIONS: Final = {
    "nvmlInit": "_init",
    "nvmlShutdown": "_shutdown",
    "nvmlSystemGetDriverVersion": "_driver_version",
    "nvmlSystemGetCudaDriverVersion_v2": "_cuda_version",
    "nvmlDeviceGetCount": "_count",
    "nvmlDeviceGetHandleByIndex": "_gpu",
    "nvmlDeviceGetHandleByUUID": "_found",
    "nvmlDeviceGetMigDeviceHandleByIndex": "_part",
}
"""Those of the module that are no query of a GPU, and what they are called here."""


class PuppetNvml:
    """The module.

    Attributes:
        gpus: The machine's.
        error: NVML's number of what `nvmlInit` and each count of the GPUs fail with; 0 for nothing.
        opened, closed: How often it was initialised and shut down.
    """

    NVMLError = pynvml.NVMLError

    def __init__(self, *gpus: PuppetGpu) -> None:
        self.gpus = list(gpus)
        self.error = 0
        self.opened = self.closed = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        if name in _FUNCTIONS:
            return getattr(self, _FUNCTIONS[name])
        if name.startswith("nvmlDeviceGet"):
            return self._answerer(name)
        raise AttributeError(name)

    def _answerer(self, name: str) -> Callable[..., Any]:
        def answer(handle: PuppetGpu, *_: Any) -> Any:
            if name not in handle.answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return handle.answers[name]

        return answer

    def _check(self) -> None:
        if self.error:
            raise pynvml.NVMLError(self.error)

    def _init(self) -> None:
        self._check()
        self.opened += 1

    def _shutdown(self) -> None:
        self.closed += 1

    def _driver_version(self) -> str:
        return "580.95.05"

    def _cuda_version(self) -> int:
        return 13_000

    def _count(self) -> int:
        self._check()
        return len(self.gpus)

    def _gpu(self, index: int) -> PuppetGpu:
        if self.gpus[index].error:
            raise pynvml.NVMLError(self.gpus[index].error)
        return self.gpus[index]

    def _found(self, uuid: str) -> PuppetGpu:
        for number, gpu in enumerate(self.gpus):
            for found in (gpu, *filter(None, gpu.parts)):
                if found.answers.get("nvmlDeviceGetUUID") == uuid:
                    return self._gpu(number) if found is gpu else found
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _part(self, gpu: PuppetGpu, index: int) -> PuppetGpu:
        part = gpu.parts[index] if index < len(gpu.parts) else None
        if part is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return part


def set_memory(gpu: PuppetGpu, used_mb: int, processes: Mapping[int, int | None] | None = None) -> None:
    """Let a GPU have 1 GiB, so much of it in use, of that by processes; None if the driver tells nothing of them."""
    used, total = used_mb << 20, GIB
    gpu.answers["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(total=total, used=used, free=total - used)
    gpu.answers.pop("nvmlDeviceGetComputeRunningProcesses", None)
    if processes is not None:
        gpu.answers["nvmlDeviceGetComputeRunningProcesses"] = [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mb is None else mb << 20)
            for pid, mb in processes.items()
        ]


def install(monkeypatch: pytest.MonkeyPatch, *gpus: PuppetGpu) -> PuppetNvml:
    """Let everything that imports pynvml from now on find a puppet with these GPUs.

    All of them are visible, also after a test that has confined this process to a device, as loading a model does.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    puppet = PuppetNvml(*gpus)
    monkeypatch.setitem(sys.modules, "pynvml", puppet)
    return puppet
