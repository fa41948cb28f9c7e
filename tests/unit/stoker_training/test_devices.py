"""The lines of a training about its devices."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

pytestmark = pytest.mark.tensorflow

GIB = 1024**3


@pytest.fixture
def two_gpus(monkeypatch):
    """TensorFlow sees two GPUs, NVML three: handles are (index or UUID)."""
    from stoker_training import frameworks

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(frameworks.tf.config, "list_physical_devices", lambda _: ["GPU:0", "GPU:1"])
    detail = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
    monkeypatch.setattr(frameworks.tf.config.experimental, "get_device_details", lambda _: detail)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", ("GPU-zero", "GPU-one", "GPU-two").__getitem__)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA H200")
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetMemoryInfo",
        lambda handle: SimpleNamespace(total=140 * GIB, free=(100 + handle) * GIB),
    )
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetPciInfo", lambda handle: SimpleNamespace(busId=f"00000000:{handle}8:00.0")
    )
    return frameworks


def test_each_gpu_is_described_in_full(two_gpus):
    """Name, PCI bus, compute capability, total and free memory stand in one line a device."""
    lines = two_gpus.describe_devices(two_gpus.found_gpus())
    assert lines == [
        "Device GPU:0: NVIDIA H200, PCI bus 00000000:08:00.0, compute capability 9.0, "
        "143,360 MiB memory, 102,400 MiB free.",
        "Device GPU:1: NVIDIA H200, PCI bus 00000000:18:00.0, compute capability 9.0, "
        "143,360 MiB memory, 103,424 MiB free.",
    ]


def test_visible_devices_are_mapped_to_nvml(two_gpus, monkeypatch):
    """CUDA_VISIBLE_DEVICES renumbers TensorFlow's devices, by index or UUID; NVML's are not renumbered."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-two, 1")
    assert [gpu.pci_bus for gpu in two_gpus.found_gpus()] == ["00000000:28:00.0", "00000000:18:00.0"]


@pytest.mark.parametrize(
    ("absent", "bus"), [("nvmlInit", ""), ("nvmlDeviceGetMemoryInfo", ", PCI bus 00000000:08:00.0")]
)
def test_name_and_capability_are_known_without_nvml(two_gpus, monkeypatch, absent, bus):
    """A machine without a working NVML still gets name and compute capability."""

    def fail(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, absent, fail)
    assert str(two_gpus.found_gpus()[0]) == f"NVIDIA H200{bus}, compute capability 9.0"


def test_facts_of_another_device_are_left_out(two_gpus, monkeypatch):
    """Where the numbering does not match, no bus and no memory is better than a wrong one."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA A100")
    assert str(two_gpus.found_gpus()[1]) == "NVIDIA H200, compute capability 9.0"


def test_a_machine_without_gpus_says_so():
    """The line is `CPU only`."""
    from stoker_training import frameworks

    (line,) = frameworks.describe_devices([])
    assert line.startswith("Devices: CPU only (")
