"""The GPUs, MIG devices and the CPU of a machine, and probes of runtimes in child processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from tests.puppet_nvml import a_gpu, a_mig_gpu, install

from stoker.gpu import devices as gpu_devices
from stoker.gpu.devices import find_devices, probe_in_child
from stoker.gpu.facts import Driver
from stoker.system.resources import main_memory

FIRST, SECOND = (f"GPU-0000000{n}-0000-4000-8000-123456789abc" for n in (0, 1))
PART = "MIG-00000005-1111-5111-9111-123456789abc"


def test_gpus_and_the_cpu_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that `--device` takes; the CPU with what can be had of the main memory."""
    install(monkeypatch, a_gpu(0), a_gpu(1))
    found = find_devices({})
    assert (found.driver, found.no_gpu) == (Driver("580.95.05", "13.0"), "")
    assert [(device.setting, device.kind, device.uuid) for device in found.devices] == [
        ("cuda:0", "gpu", FIRST),
        ("cuda:1", "gpu", SECOND),
        ("cpu", "cpu", ""),
    ]
    gpu, *_, cpu = found.devices
    assert (gpu.compute_capability, gpu.pci_bus, gpu.note) == ("9.0", "00000000:08:00.0", "")
    assert cpu.name.endswith(" cores")
    assert cpu.memory_total_bytes == main_memory()[0] > 0


def test_a_divided_gpu_is_followed_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole cannot be used; each part can, by its UUID."""
    install(monkeypatch, a_mig_gpu(0, 5))
    whole, part, _ = find_devices({}).devices
    assert (whole.setting, whole.kind) == ("", "gpu")
    assert PART in whole.note
    assert (part.setting, part.kind, part.compute_capability) == (PART, "mig", "9.0")


@pytest.mark.parametrize(
    ("visible", "settings"),
    [
        ("1", ["", "cuda:0", ""]),
        ("1,0", ["cuda:1", "cuda:0", ""]),
        (SECOND, ["", "cuda:0", ""]),
        ("2", ["", "", PART]),
        (PART, ["", "", PART]),
        ("", ["", "", ""]),
    ],
)
def test_hidden_gpus_are_listed_as_such(
    monkeypatch: pytest.MonkeyPatch, visible: str, settings: list[str]
) -> None:
    """CUDA_VISIBLE_DEVICES renumbers; a GPU that it hides has no name."""
    install(monkeypatch, a_gpu(0), a_gpu(1), a_mig_gpu(2, 5))
    found = find_devices({"CUDA_VISIBLE_DEVICES": visible})
    first, second, whole, part, _ = found.devices
    assert [device.setting for device in (first, second, part)] == settings
    assert whole.setting == ""
    for device in (first, second, part):
        assert device.note == ("" if device.setting else f"CUDA_VISIBLE_DEVICES={visible} hides it")


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_a_driver_there_is_the_cpu(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """The reason names what is missing."""
    install(monkeypatch).error = error
    found = find_devices()
    assert (found.driver, [device.kind for device in found.devices]) == (None, ["cpu"])
    assert found.no_gpu.startswith("no NVIDIA driver is usable here (NVML: ")


def ends(returncode: int, stdout: str = "", stderr: str = "") -> Callable[..., Any]:
    """A process that ends so."""
    return lambda command, **_: subprocess.CompletedProcess(command, returncode, stdout, stderr)


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        (ends(0, 'Hello\n\n{"problem": null}\n'), None),
        (ends(0, '{"problem": "libcudnn.so.9 is missing"}'), "libcudnn.so.9 is missing"),
        (ends(-11, "", "Fatal error\nin CUDA\n"), "TensorFlow was ended by SIGSEGV: in CUDA"),
        (ends(3), "TensorFlow exited with code 3: it said nothing"),
        (
            ends(
                0,
                '{"problem": "no GPU"}',
                2 * "W dso_loader.cc Could not load dynamic library 'libcudnn.so.9';",
            ),
            "no GPU; it did not find libcudnn.so.9",
        ),
    ],
)
def test_a_probe_that_crashes_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, end: Callable[..., Any], problem: str | None
) -> None:
    """The listing goes on, and the reason is what could be learnt."""
    monkeypatch.setattr(gpu_devices.subprocess, "run", end)
    assert probe_in_child(FIRST, "tensorflow") == problem


def test_a_probe_that_hangs_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that waits forever does not stop the others."""

    def hang(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(gpu_devices.subprocess, "run", hang)
    assert probe_in_child(FIRST, "onnx") == "ONNX Runtime (CUDA) did not answer within 180 s"


def test_a_probe_sees_its_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the operator's own variables are."""
    seen: dict[str, str] = {}

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.update(env)
        return subprocess.CompletedProcess(command, 0, '{"problem": null}', "")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(gpu_devices.subprocess, "run", run)
    probe_in_child(PART, "onnx")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == (PART, "PCI_BUS_ID")


def test_a_real_probe_says_what_is_wrong_with_a_gpu_that_is_not_there() -> None:
    """The whole way through a child: no machine has this GPU."""
    problem = probe_in_child("GPU-00000000-dead-beef-0000-000000000000", "onnx")
    assert problem is not None
    assert "CUDA provider" in problem
