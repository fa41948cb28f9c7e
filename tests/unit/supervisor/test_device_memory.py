"""How much memory of a device models may use, and how much device processes use; GPUs are puppets."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from tests.puppet_nvml import PuppetGpu, a_gpu, a_mig_gpu, install, set_memory

from stoker.deployment import Deployment
from stoker.errors import DeviceUnavailable, InvalidSettings
from stoker.residency.footprints import HOST
from stoker.supervisor import device_memory as module
from stoker.supervisor.device_memory import DeviceMemory

MB = 1 << 20
OURS = os.getpid()
"""A process of the group of `process`, which may be that itself or one that it has started."""
UUID = a_gpu().answers["nvmlDeviceGetUUID"]


def process(device: str = "cuda:0", report: str = "", framework: str = "onnx") -> Any:
    """A device process; it has not said which device it uses unless there is a report."""
    return SimpleNamespace(
        group=SimpleNamespace(device=device, models=[SimpleNamespace(framework=framework)]),
        child=SimpleNamespace(process=SimpleNamespace(pid=os.getpgid(OURS))),
        report=SimpleNamespace(device=report) if report else None,
    )


def model(*devices: str, framework: str = "onnx") -> Deployment:
    path = Path("m.onnx")
    return Deployment("m", 1, framework, path, path, max_batch_rows=1, max_body_bytes=1, devices=devices)  # type: ignore[arg-type]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PuppetGpu:
    """The only GPU, with 1 GiB, of which others use 100 MiB."""
    gpu = a_gpu()
    set_memory(gpu, 100)
    install(monkeypatch, gpu)
    return gpu


def used_mb(memory: DeviceMemory, place: str = UUID) -> int:
    asyncio.run(memory.measure())
    return memory.used(place) >> 20


def test_the_memory_of_each_process_is_read_from_the_driver(gpu: PuppetGpu) -> None:
    """Processes in the groups of device processes count, others do not; without any, nothing is used."""
    processes = [process()]
    memory = DeviceMemory(400, processes)
    memory.learn(["cuda:0"])
    set_memory(gpu, 900, {OURS: 300, 1: 500})
    assert used_mb(memory) == 300
    set_memory(gpu, 700, {1: 500})
    assert used_mb(memory) == 0
    assert memory.budget(UUID) == 400 * MB


@pytest.mark.parametrize("reported", [None, {}, {1: 500}, {OURS: None}])
def test_a_driver_that_hides_processes(gpu: PuppetGpu, reported: dict[int, int | None] | None) -> None:
    """The growth of used memory since the start counts, as in containers with pids of their own."""
    memory = DeviceMemory(400, [process()])
    memory.learn(["cuda:0"])
    set_memory(gpu, 350, reported)
    assert used_mb(memory) == 250
    set_memory(gpu, 50, reported)
    assert used_mb(memory) == 0


def test_a_mig_device_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver tells of no processes."""
    gpu = a_mig_gpu(0, 1)
    part = next(filter(None, gpu.parts))
    set_memory(part, 100)
    install(monkeypatch, gpu)
    uuid = part.answers["nvmlDeviceGetUUID"]
    memory = DeviceMemory("auto", [process(uuid)])
    memory.learn([uuid])
    set_memory(part, 400, {OURS: None})
    assert (used_mb(memory, uuid), memory.budget(uuid) >> 20) == (300, 1024 - 100 - 512)


def test_the_last_answer_of_the_driver_counts(gpu: PuppetGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is restarted costs no model its place."""
    memory = DeviceMemory(400, [process()])
    memory.learn(["cuda:0"])
    set_memory(gpu, 350)
    assert used_mb(memory) == 250
    install(monkeypatch).error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert used_mb(memory) == 250


def test_auto_leaves_a_reserve(gpu: PuppetGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the device, at least 512 MiB; what a predecessor uses is as good as free."""
    monkeypatch.setattr(module, "main_memory", lambda: (64 << 30, 20 << 30))
    memory = DeviceMemory("auto", [])
    memory.learn(["cuda:0", "cpu", UUID])
    budgets_mb = [memory.budget(place) >> 20 for place in (UUID, HOST)]
    assert budgets_mb == [1024 - 100 - 512, int(20 * 1024 - 6.4 * 1024)]
    assert memory.used_by_place() == {UUID: 0}
    set_memory(gpu, 700)
    with pytest.raises(
        InvalidSettings, match="leaves models nothing: 324 MiB of cuda:0 are free, and 512 MiB"
    ):
        DeviceMemory("auto", []).learn(["cuda:0"])
    successor = DeviceMemory("auto", [process()], memory.free_bytes)
    successor.learn(["cuda:0"])
    assert (successor.budget(UUID) >> 20, used_mb(successor)) == (412, 600)


def test_budgets_that_cannot_be_honoured_are_refused(gpu: PuppetGpu) -> None:
    """More than there is, a driver that tells no memory, a device that is not there; the last is left to its load."""
    with pytest.raises(InvalidSettings, match="memory_mb 2000 is more than the 1024 MiB of cuda:0"):
        DeviceMemory(2000, []).learn(["cuda:0"])
    del gpu.answers["nvmlDeviceGetMemoryInfo"]
    for memory_mb in (400, "auto"):
        with pytest.raises(InvalidSettings, match="the driver does not tell the memory of cuda:0"):
            DeviceMemory(memory_mb, []).learn_available(["cuda:7", "cuda:0"])  # type: ignore[arg-type]
    with pytest.raises(DeviceUnavailable, match="cuda:7"):
        asyncio.run(DeviceMemory(400, []).measure(["cuda:7"]))


def test_a_runtime_without_gpus_uses_host_memory(gpu: PuppetGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of `auto` says that it runs on the CPU: from then on its framework is expected there."""
    monkeypatch.setattr(module, "main_memory", lambda: (64 << 30, 20 << 30))
    monkeypatch.setattr(module, "private_memory", lambda _: 70 * MB)
    processes = [process("auto"), process("auto", framework="torch")]
    memory = DeviceMemory("auto", processes)
    memory.learn(["auto"])
    assert memory.places_of(model("auto")) == {UUID}
    processes[:] = [process("auto", "cpu"), process("auto", "cuda:0", framework="torch")]
    asyncio.run(memory.measure())
    assert memory.places_of(model("auto")) == {HOST}
    assert memory.places_of(model("auto", framework="torch")) == {UUID}
    assert memory.used_by_place() == {HOST: 70 * MB, UUID: 0}
    assert memory.budget(HOST) > 10 << 30
    monkeypatch.setattr(module, "main_memory", lambda: (64 << 30, 1 << 30))
    tight = DeviceMemory("auto", processes)
    tight.learn(["auto"])
    assert tight.budget(HOST) == 0
