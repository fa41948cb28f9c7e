"""`stoker devices`: what is listed of GPUs, MIG devices and the CPU, and what can use them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from tests.puppet_nvml import a_gpu, a_mig_gpu, install

from stoker.commands import devices
from stoker.gpu import devices as gpu_devices
from stoker.gpu.devices import find_devices, probe_in_child, survey
from stoker.gpu.facts import Driver
from stoker.system.resources import main_memory

FIRST, SECOND = (f"GPU-0000000{n}-0000-4000-8000-123456789abc" for n in (0, 1))
PART = "MIG-00000005-1111-5111-9111-123456789abc"


def no_problem(_: str, __: str) -> str | None:
    return None


# --- what there is ---


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
    assert cpu.problems["onnx"] is None
    monkeypatch.setattr(gpu_devices, "find_spec", lambda _: None)
    lacking = find_devices().devices[-1].problems
    assert " pip install 'onnxruntime>=" in (lacking["onnx"] or "")
    assert " pip install 'tensorflow>=" in (lacking["tensorflow"] or "")


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
    """CUDA_VISIBLE_DEVICES renumbers; what it hides has no name, and is asked nothing."""
    install(monkeypatch, a_gpu(0), a_gpu(1), a_mig_gpu(2, 5))
    asked: list[str] = []

    def problem(uuid: str, _: str) -> str | None:
        asked.append(uuid)
        return None

    found = survey(problem=problem, environ={"CUDA_VISIBLE_DEVICES": visible})
    first, second, whole, part, _ = found.devices
    assert [device.setting for device in (first, second, part)] == settings
    assert whole.setting == ""
    for device in (first, second, part):
        assert device.note == ("" if device.setting else f"CUDA_VISIBLE_DEVICES={visible} hides it")
        assert (device.uuid in asked) == bool(device.setting)


def test_each_runtime_is_asked_about_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer each; it is said that this takes a while."""
    install(monkeypatch, a_gpu(0), a_gpu(1))
    said: list[str] = []

    def problem(uuid: str, runtime: str) -> str | None:
        return f"no kernels for {runtime}" if (uuid, runtime) == (SECOND, "tensorflow") else None

    first, second, _ = survey(said.append, problem, {}).devices
    assert first.problems == {"onnx": None, "tensorrt": None, "tensorflow": None}
    assert second.problems == {"onnx": None, "tensorrt": None, "tensorflow": "no kernels for tensorflow"}
    (line,) = said
    assert line.endswith("about 2 device(s)")


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_a_driver_there_is_the_cpu(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Nothing is asked, and what is missing is said."""
    install(monkeypatch).error = error

    def unasked(_: str, __: str) -> str | None:
        raise AssertionError("there is nothing to ask about")

    found = survey(problem=unasked)
    assert (found.driver, [device.kind for device in found.devices]) == (None, ["cpu"])
    assert found.no_gpu.startswith("no NVIDIA driver is usable here (NVML: ")


# --- asking ---


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


# --- the command ---


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    devices.add_arguments(parser)
    assert devices.run(parser.parse_args(list(arguments))) == 0
    return capsys.readouterr().out


def test_the_listing_names_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Driver, each device under its name, its facts, and each runtime."""
    gpu = a_gpu(1)
    del gpu.answers["nvmlDeviceGetMemoryInfo"]
    install(monkeypatch, a_mig_gpu(0, 5), gpu)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    problems = {"tensorrt": "libnvinfer.so.10 is missing"}
    monkeypatch.setattr(gpu_devices, "probe_in_child", lambda _, runtime: problems.get(runtime))
    lines = run(capsys).splitlines()
    cpu = next(n for n, line in enumerate(lines) if line.startswith("cpu "))
    runtimes = [
        "         ONNX Runtime (CUDA): can use it",
        "         ONNX Runtime (TensorRT): libnvinfer.so.10 is missing",
        "         TensorFlow: can use it",
    ]
    assert lines[:cpu] == [
        "driver   NVIDIA 580.95.05, for CUDA up to 13.0",
        "GPU      NVIDIA H200",
        "         cannot be used as it is: in MIG mode; name one of its MIG devices: "
        f"{PART} (NVIDIA H200 MIG 1g.18gb)",
        f"         {FIRST}",
        "         compute capability 9.0, PCI bus 00000000:08:00.0, 140.0 GiB memory, 100.0 GiB free",
        "  MIG    NVIDIA H200 MIG 1g.18gb",
        f"         {PART}",
        "         compute capability 9.0, PCI bus 00000000:08:00.0, 18.0 GiB memory, 16.0 GiB free",
        *runtimes,
        "cuda:1   NVIDIA H200",
        f"         {SECOND}",
        "         compute capability 9.0, PCI bus 00000000:18:00.0",
        *runtimes,
    ]
    assert lines[cpu + 2] == "         ONNX Runtime: can use it"


def test_without_a_gpu_the_listing_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no failure; a driver without a GPU is told from a missing driver."""
    install(monkeypatch).error = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    first, second, *_ = run(capsys).splitlines()
    assert first == "no GPU   no NVIDIA driver is usable here (NVML: NVML Shared Library Not Found)"
    assert second.startswith("cpu      ")
    install(monkeypatch)
    first, second, *_ = run(capsys).splitlines()
    assert (first[:8], second) == ("driver  ", "no GPU   the NVIDIA driver sees no GPU")


def test_the_listing_can_be_read_by_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON with units in the names; what is not known is null."""
    install(monkeypatch, a_gpu(0))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_devices, "probe_in_child", no_problem)
    told = json.loads(run(capsys, "--json"))
    assert told["driver"] == {"version": "580.95.05", "cuda": "13.0"}
    gpu, cpu = told["devices"]
    assert gpu == {
        "setting": "cuda:0",
        "kind": "gpu",
        "name": "NVIDIA H200",
        "uuid": FIRST,
        "compute_capability": "9.0",
        "pci_bus": "00000000:08:00.0",
        "memory_total_bytes": 140 << 30,
        "memory_free_bytes": 100 << 30,
        "note": "",
        "problems": {"onnx": None, "tensorrt": None, "tensorflow": None},
    }
    assert (cpu["kind"], cpu["pci_bus"]) == ("cpu", None)
    install(monkeypatch).error = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert json.loads(run(capsys, "--json"))["driver"] is None


def test_the_command_is_there() -> None:
    """From the command line to the end, on whatever machine this is."""
    shown = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "devices", "--help"], capture_output=True, text=True, check=True
    )
    assert "--json" in shown.stdout
