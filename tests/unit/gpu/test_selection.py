"""The device of a setting, and the reasons why a GPU cannot be used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stoker.deployment import Device
from stoker.errors import DeviceUnavailable, InvalidSettings
from stoker.gpu import selection
from stoker.gpu.facts import Gpu, MigDevice
from stoker.gpu.selection import choose_device

Set = Callable[..., None]
FIRST = "GPU-aa000000-0000-4000-8000-123456789abc"
SECOND = "GPU-ab000000-0000-4000-8000-123456789abc"
THIRD = "GPU-bb000000-0000-4000-8000-123456789abc"
PARTS = tuple(MigDevice(f"MIG-{n}", f"H200 MIG {n}g", n << 34) for n in (1, 2))
TWO = [Gpu(0, FIRST, "H200", 141 << 30), Gpu(1, SECOND, "L4", 24 << 30)]
DIVIDED = Gpu(0, FIRST, "H200", 141 << 30, mig_mode=True, mig_devices=PARTS)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set the GPUs that the driver sees; None for no driver."""

    def set_machine(found: list[Gpu] | None) -> None:
        def read() -> list[Gpu]:
            if found is None:
                raise OSError("no NVIDIA driver is usable here (NVML: Driver Not Loaded)")
            return found

        monkeypatch.setattr(selection, "gpus", read)

    return set_machine


def choose(
    setting: str, *frameworks: str, visible: str | None = None, **problems: str | None
) -> tuple[Device, str]:
    """Choose a device if CUDA_VISIBLE_DEVICES is `visible` and frameworks have these problems."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return choose_device(setting, frameworks, lambda _, framework: problems.get(framework), environ)


def test_cpu_needs_no_driver(machine: Set) -> None:
    """The setting `cpu` does not search for GPUs."""
    machine(None)
    device, reason = choose("cpu", "onnx")
    assert (device.kind, str(device), device.uuid, reason) == ("cpu", "cpu", "", "as asked for")
    assert device.description.endswith(" cores")


def test_auto_takes_the_first_gpu(machine: Set) -> None:
    """The driver is there, and the frameworks can use the GPU."""
    machine(TWO)
    device, reason = choose("auto", "onnx", "tensorflow", "script")
    assert (str(device), device.index, device.description) == ("cuda:0", 0, "H200, 141 GiB")
    assert "first GPU" in reason


@pytest.mark.parametrize(
    ("found", "problems", "reason"),
    [
        (None, {}, "no GPU: no NVIDIA driver is usable here (NVML: Driver Not Loaded)"),
        ([], {}, "no GPU: the NVIDIA driver sees 0 GPUs"),
        (TWO, {"onnx": "libcudnn.so.9 is missing"}, "no GPU: libcudnn.so.9 is missing"),
    ],
)
def test_auto_falls_back_to_the_cpu_with_a_reason(
    machine: Set, found: list[Gpu] | None, problems: dict[str, str], reason: str
) -> None:
    """The log has the reason."""
    machine(found)
    device, logged = choose("auto", "onnx", **problems)
    assert (device.kind, logged) == ("cpu", reason)


@pytest.mark.parametrize("setting", ["cuda:1", SECOND])
def test_named_gpu_is_used(machine: Set, setting: str) -> None:
    """The name is its number in the driver's order, or its UUID; operators see the number."""
    machine(TWO)
    device, reason = choose(setting, "onnx")
    assert (str(device), device.description, device.uuid) == ("cuda:1", "L4, 24 GiB", SECOND)
    assert reason == "as asked for"


@pytest.mark.parametrize(
    ("found", "problems", "complaint"),
    [
        (
            None,
            {},
            "cuda:2 cannot be used: no NVIDIA driver is usable here (NVML: Driver Not Loaded); is the",
        ),
        (TWO, {}, "cuda:2 cannot be used: the NVIDIA driver sees 2 GPUs, cuda:2 is not among them"),
        (
            [*TWO, Gpu(2, THIRD, "L4")],
            {"tensorflow": "TensorFlow was built without CUDA"},
            "TensorFlow was built without CUDA",
        ),
    ],
)
def test_named_gpu_that_cannot_be_used_is_an_error(
    machine: Set, found: list[Gpu] | None, problems: dict[str, str], complaint: str
) -> None:
    """The message has the missing part, and how to serve without the GPU."""
    machine(found)
    with pytest.raises(DeviceUnavailable) as refused:
        choose("cuda:2", "onnx", "tensorflow", **problems)
    assert complaint in str(refused.value)
    assert "--device auto serves without" in str(refused.value)
    assert ("driver installed" in str(refused.value)) == (found is None)


def test_error_for_an_unknown_uuid_lists_the_known_ones(machine: Set) -> None:
    """The UUID may be mistyped, or of another machine."""
    machine([DIVIDED, *TWO[1:]])
    with pytest.raises(DeviceUnavailable, match=f"sees {FIRST}, MIG-1, MIG-2, {SECOND}"):
        choose("GPU-12345678")


def test_only_frameworks_in_use_are_probed(machine: Set) -> None:
    """A TensorFlow that cannot use the GPU does not affect an ONNX model."""
    machine(TWO)
    problem = "TensorFlow was built without CUDA"
    assert str(choose("cuda:0", "onnx", tensorflow=problem)[0]) == "cuda:0"
    assert str(choose("auto", "tensorflow", tensorflow=problem)[0]) == "cpu"


@pytest.mark.parametrize(
    "setting",
    ["gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1.0", "cuda:²", "CPU", "cpu:0", "", "tpu:0", "GPU-"],
)
def test_an_unknown_device_is_refused(machine: Set, setting: str) -> None:
    """The message has the valid settings."""
    machine(TWO)
    with pytest.raises(InvalidSettings, match="device must be auto, cpu or cuda:N"):
        choose(setting)


@pytest.mark.parametrize("setting", ["cuda:1+cuda:0", f"{SECOND}+{FIRST}", f"cuda:1+{FIRST}"])
def test_several_gpus_are_the_device_of_one_process(machine: Set, setting: str) -> None:
    """Their order is that of the setting; with a comma they would be devices of two processes."""
    machine(TWO)
    device, reason = choose(setting, "script")
    assert (str(device), device.visible, reason) == ("cuda:1+cuda:0", f"{SECOND},{FIRST}", "as asked for")
    assert (device.description, device.name_in_process) == ("L4, 24 GiB + H200, 141 GiB", "cuda:0")
    assert [gpu.index for gpu in device.gpus] == [1, 0]


def test_numbers_of_several_gpus_follow_cuda_visible_devices(machine: Set) -> None:
    """CUDA_VISIBLE_DEVICES renumbers them."""
    machine([*TWO, Gpu(2, THIRD, "H100")])
    device, _ = choose("cuda:0+cuda:1", "script", visible="2,0")
    assert device.visible == f"{THIRD},{FIRST}"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        (
            "cuda:0+cuda:2",
            r"cuda:0\+cuda:2 cannot be used: the NVIDIA driver sees 2 GPUs, cuda:2 is not among them",
        ),
        (f"cuda:0+{FIRST}", "it names a GPU twice"),
    ],
)
def test_one_missing_gpu_of_several_is_an_error(machine: Set, setting: str, complaint: str) -> None:
    """A script for two GPUs would fail with one."""
    machine(TWO)
    with pytest.raises(DeviceUnavailable, match=complaint):
        choose(setting, "script")


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("cuda:0+auto", "no whole GPU"),
        ("cpu+cuda:0", "no whole GPU"),
        ("cuda:0+MIG-1", "no whole GPU"),
        ("cuda:0+cuda:0", "names a GPU twice"),
        ("cuda:0+", "must be auto, cpu or cuda:N"),
        ("+cuda:0", "must be auto, cpu or cuda:N"),
    ],
)
def test_only_whole_gpus_are_joined(machine: Set, setting: str, complaint: str) -> None:
    """In CUDA a process can use one MIG device, and the CPU is always there."""
    machine(TWO)
    with pytest.raises(InvalidSettings, match=complaint):
        choose(setting)


@pytest.mark.parametrize("setting", ["cuda:0", FIRST])
def test_error_for_a_gpu_in_mig_mode_lists_its_mig_devices(machine: Set, setting: str) -> None:
    """CUDA can use only these, and the operator has to choose one."""
    machine([DIVIDED])
    with pytest.raises(
        DeviceUnavailable, match=r"is in MIG mode; .*: MIG-1 \(H200 MIG 1g\), MIG-2 \(H200 MIG 2g\)"
    ):
        choose(setting, "onnx")


def test_auto_skips_a_gpu_in_mig_mode(machine: Set) -> None:
    """If there is no other GPU, the reason lists the MIG devices."""
    machine([DIVIDED])
    device, reason = choose("auto", "onnx")
    assert device.kind == "cpu"
    assert reason.startswith("no GPU: H200 (GPU-")
    assert "MIG-1 (H200 MIG 1g), MIG-2 (H200 MIG 2g)" in reason
    machine([DIVIDED, *TWO[1:]])
    assert str(choose("auto", "onnx")[0]) == "cuda:1"


def test_error_for_mig_mode_without_mig_devices_has_the_command(machine: Set) -> None:
    """The command makes a MIG device."""
    machine([Gpu(0, FIRST, "H200", mig_mode=True)])
    with pytest.raises(DeviceUnavailable, match="nvidia-smi mig"):
        choose("cuda:0")


def test_a_mig_device_is_used_by_its_uuid(machine: Set) -> None:
    """Operators see the UUID too: the number of its GPU would mean all of its MIG devices."""
    machine([*TWO[:1], Gpu(1, SECOND, "H200", mig_mode=True, mig_devices=PARTS)])
    device, reason = choose("MIG-2", "onnx")
    assert (str(device), device.index, device.uuid) == ("MIG-2", 1, "MIG-2")
    assert (device.description, device.name_in_process, reason) == (
        "H200 MIG 2g, 32 GiB",
        "cuda:0",
        "as asked for",
    )


THREE = [*TWO, Gpu(2, THIRD, "H100")]


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("2,0", [THIRD, FIRST]),
        (" 1 , 2", [SECOND, THIRD]),
        (f"{THIRD},0", [THIRD, FIRST]),
        ("GPU-b", [THIRD]),
        # As in CUDA, an unreadable or ambiguous entry ends the list.
        ("1,-1,0", [SECOND]),
        ("1,7,0", [SECOND]),
        ("1,GPU-a,0", [SECOND]),
        ("1,MIG-9,0", [SECOND]),
        ("0,0,1", [FIRST, SECOND]),
    ],
)
def test_numbers_follow_cuda_visible_devices(machine: Set, visible: str, uuids: list[str]) -> None:
    """cuda:N is the N-th entry; a number beyond the last is an error."""
    machine(THREE)
    assert [choose(f"cuda:{n}", visible=visible)[0].uuid for n in range(len(uuids))] == uuids
    assert choose("auto", visible=visible)[0].uuid == uuids[0]
    with pytest.raises(DeviceUnavailable, match=f"sees 3 GPUs, CUDA_VISIBLE_DEVICES=.* leaves {len(uuids)}"):
        choose(f"cuda:{len(uuids)}", visible=visible)


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_auto_is_the_cpu_if_all_gpus_are_hidden(machine: Set, visible: str) -> None:
    """The reason names CUDA_VISIBLE_DEVICES."""
    machine(THREE)
    reason = f"no GPU: the NVIDIA driver sees 3 GPUs, CUDA_VISIBLE_DEVICES={visible} leaves 0"
    assert (choose("auto", visible=visible)[0].kind, choose("auto", visible=visible)[1]) == ("cpu", reason)


def test_hidden_gpu_is_not_used_by_its_uuid(machine: Set) -> None:
    """A visible one has its number among the visible GPUs."""
    machine(THREE)
    device, _ = choose(THIRD, visible="1,2")
    assert (str(device), device.uuid) == ("cuda:1", THIRD)
    with pytest.raises(DeviceUnavailable, match="CUDA_VISIBLE_DEVICES does not name it"):
        choose(FIRST, visible="1,2")


def test_mig_devices_can_be_numbered(machine: Set) -> None:
    """CUDA_VISIBLE_DEVICES has to name them; their whole GPU stands for all of them."""
    machine([DIVIDED])
    assert [choose(f"cuda:{n}", visible="MIG-2,MIG-1")[0].uuid for n in (0, 1)] == ["MIG-2", "MIG-1"]
    assert choose("auto", visible="MIG-2")[0].uuid == "MIG-2"
    assert choose("MIG-1", visible="0")[0].uuid == "MIG-1"
    with pytest.raises(DeviceUnavailable, match="CUDA_VISIBLE_DEVICES does not name it"):
        choose("MIG-1", visible="MIG-2")
