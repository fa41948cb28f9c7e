"""The GPUs and MIG devices of a machine."""

from __future__ import annotations

import pynvml
import pytest
from tests.puppet_nvml import a_gpu, a_mig_gpu, install

from stoker.gpu.facts import Driver, Gpu
from stoker.gpu.survey import find_devices

FIRST, SECOND = (f"GPU-0000000{n}-0000-4000-8000-123456789abc" for n in (0, 1))
PART = "MIG-00000005-1111-5111-9111-123456789abc"


def test_gpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are those for `--device`."""
    install(monkeypatch, a_gpu(0), a_gpu(1))
    driver, devices = find_devices({})
    assert driver == Driver("580.95.05", "13.0")
    assert [(found.setting, found.device.uuid) for found in devices] == [
        ("cuda:0", FIRST),
        ("cuda:1", SECOND),
    ]
    gpu = devices[0].device
    assert isinstance(gpu, Gpu)
    assert (gpu.compute_capability, gpu.pci_bus, devices[0].note) == ("9.0", "00000000:08:00.0", "")


def test_divided_gpu_precedes_its_mig_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole GPU cannot be used; each MIG device can, by its UUID."""
    install(monkeypatch, a_mig_gpu(0, 5))
    _, (whole, part) = find_devices({})
    assert whole.setting == ""
    assert PART in whole.note
    assert (part.setting, part.device.uuid) == (PART, PART)


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
    _, (first, second, whole, part) = find_devices({"CUDA_VISIBLE_DEVICES": visible})
    assert [found.setting for found in (first, second, part)] == settings
    assert whole.setting == ""
    for found in (first, second, part):
        assert found.note == ("" if found.setting else f"CUDA_VISIBLE_DEVICES={visible} hides it")


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_machine_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Nor a version of the driver."""
    install(monkeypatch).error = error
    assert find_devices() == (None, [])
