"""The GPUs, MIG devices and the CPU of a machine."""

from __future__ import annotations

import pynvml
import pytest
from tests.puppet_nvml import a_gpu, a_mig_gpu, install

from stoker.gpu.facts import Driver
from stoker.gpu.survey import find_devices
from stoker.system.resources import main_memory

FIRST, SECOND = (f"GPU-0000000{n}-0000-4000-8000-123456789abc" for n in (0, 1))
PART = "MIG-00000005-1111-5111-9111-123456789abc"


def test_gpus_and_the_cpu_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are those for `--device`; the memory of the CPU is the main memory."""
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


def test_divided_gpu_precedes_its_mig_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole GPU cannot be used; each MIG device can, by its UUID."""
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
def test_hidden_gpus_have_a_note_and_no_name(
    monkeypatch: pytest.MonkeyPatch, visible: str, settings: list[str]
) -> None:
    """CUDA_VISIBLE_DEVICES renumbers the others."""
    install(monkeypatch, a_gpu(0), a_gpu(1), a_mig_gpu(2, 5))
    found = find_devices({"CUDA_VISIBLE_DEVICES": visible})
    first, second, whole, part, _ = found.devices
    assert [device.setting for device in (first, second, part)] == settings
    assert whole.setting == ""
    for device in (first, second, part):
        assert device.note == ("" if device.setting else f"CUDA_VISIBLE_DEVICES={visible} hides it")


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_machine_without_a_driver_has_the_cpu(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """The reason is NVML's."""
    install(monkeypatch).error = error
    found = find_devices()
    assert (found.driver, [device.kind for device in found.devices]) == (None, ["cpu"])
    assert found.no_gpu.startswith("no NVIDIA driver is usable here (NVML: ")
