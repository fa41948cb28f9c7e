"""Which device a server uses, and what is said where it is not the one that was hoped for."""

from collections.abc import Callable

import pytest

from stoker import devices
from stoker.devices import choose_device
from stoker.errors import DeviceUnavailable, InvalidSettings
from stoker.nvml import Gpu

Set = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Say what the driver sees, and what is wrong with each framework."""

    def set_machine(gpus: list[Gpu] | None, **problems: str | None) -> None:
        def read() -> list[Gpu]:
            if gpus is None:
                raise OSError("no NVIDIA driver is usable here (NVML: Driver Not Loaded)")
            return gpus

        monkeypatch.setattr(devices, "gpus", read)
        probes = {name: (lambda problem=problem: problem) for name, problem in problems.items()}
        monkeypatch.setattr(devices, "_PROBES", probes)

    return set_machine


TWO = [Gpu(0, "H200", 141 << 30), Gpu(1, "L4", 24 << 30)]


def test_cpu_is_cpu(machine: Set) -> None:
    """Nobody looks for a GPU where none was asked for."""
    machine(TWO, onnx=None)
    device, reason = choose_device("cpu", {"onnx"})
    assert (device.kind, str(device), reason) == ("cpu", "cpu", "as asked for")
    assert device.description.endswith(" cores")


def test_auto_takes_the_first_gpu(machine: Set) -> None:
    """With a driver and frameworks that can use it."""
    machine(TWO, onnx=None, tensorflow=None)
    device, reason = choose_device("auto", {"onnx", "tensorflow", "script"})
    assert (str(device), device.index, device.description) == ("cuda:0", 0, "H200, 141 GiB")
    assert "first GPU" in reason


@pytest.mark.parametrize(
    ("gpus", "problems", "reason"),
    [
        (None, {}, "no GPU: no NVIDIA driver is usable here (NVML: Driver Not Loaded)"),
        ([], {}, "no GPU: the NVIDIA driver sees 0 GPUs, cuda:0 is not among them"),
        (TWO, {"onnx": "libcudnn.so.9 is missing"}, "no GPU: libcudnn.so.9 is missing"),
    ],
)
def test_auto_falls_back_with_one_clear_line(
    machine: Set, gpus: list[Gpu] | None, problems: dict[str, str], reason: str
) -> None:
    """The log says why the processor is used."""
    machine(gpus, **problems)
    device, said = choose_device("auto", {"onnx"})
    assert (device.kind, said) == ("cpu", reason)


def test_a_gpu_that_was_asked_for_is_used(machine: Set) -> None:
    """By its number."""
    machine(TWO, onnx=None)
    device, reason = choose_device("cuda:1", {"onnx"})
    assert (str(device), device.description, reason) == ("cuda:1", "L4, 24 GiB", "as asked for")


@pytest.mark.parametrize(
    ("gpus", "problems", "complaint"),
    [
        (None, {}, "cuda:2 cannot be used: no NVIDIA driver is usable here"),
        (TWO, {}, "cuda:2 cannot be used: the NVIDIA driver sees 2 GPUs, cuda:2 is not among them"),
        (
            [*TWO, TWO[0]],
            {"tensorflow": "TensorFlow was built without CUDA"},
            "TensorFlow was built without CUDA",
        ),
    ],
)
def test_a_gpu_that_was_asked_for_and_cannot_be_used_is_an_error(
    machine: Set, gpus: list[Gpu] | None, problems: dict[str, str], complaint: str
) -> None:
    """Start-up fails, says what is missing, and says how to go on without."""
    machine(gpus, **problems)
    with pytest.raises(DeviceUnavailable) as refused:
        choose_device("cuda:2", {"onnx", "tensorflow"})
    assert complaint in str(refused.value)
    assert "--device auto serves without" in str(refused.value)


def test_only_the_frameworks_in_use_are_asked(machine: Set) -> None:
    """A TensorFlow that cannot use the GPU does not keep an ONNX model from it."""
    machine(TWO, onnx=None, tensorflow="TensorFlow was built without CUDA")
    assert str(choose_device("cuda:0", {"onnx"})[0]) == "cuda:0"
    assert str(choose_device("auto", {"tensorflow"})[0]) == "cpu"


@pytest.mark.parametrize(
    "setting", ["gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1.0", "CPU", "cpu:0", "", "tpu:0"]
)
def test_an_unknown_device_is_refused(machine: Set, setting: str) -> None:
    """The message says what there is."""
    machine(TWO)
    with pytest.raises(InvalidSettings, match="device must be auto, cpu or cuda:N"):
        choose_device(setting, set())
