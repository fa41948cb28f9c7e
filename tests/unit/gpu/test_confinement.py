"""The confinement of a process to its device."""

from __future__ import annotations

import os

import pytest

from stoker.gpu import confinement, selection
from stoker.gpu.confinement import confine, enter_device
from stoker.gpu.facts import Gpu

FIRST = "GPU-aa000000-0000-4000-8000-123456789abc"
SECOND = "GPU-ab000000-0000-4000-8000-123456789abc"
TWO = [Gpu(0, FIRST, "H200", 141 << 30), Gpu(1, SECOND, "L4", 24 << 30)]


def test_process_sees_only_its_gpu() -> None:
    """The variable has the UUID; a process on the CPU sees no GPU."""
    environ = {"CUDA_VISIBLE_DEVICES": "3", "OTHER": "stays"}
    confine(FIRST, environ)
    assert environ == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": FIRST, "OTHER": "stays"}
    confine("", environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize("problem", [None, "libcudnn.so.9 is missing"])
def test_process_is_confined_before_a_library_is_probed(
    monkeypatch: pytest.MonkeyPatch, problem: str | None
) -> None:
    """CUDA reads the variables once; the operator's numbers are resolved before they are overwritten."""
    monkeypatch.setattr(selection, "gpus", lambda: TWO)
    monkeypatch.setattr(os, "environ", {**os.environ, "CUDA_VISIBLE_DEVICES": "1"})
    seen = []

    def probe(framework: str) -> str | None:
        seen.append((framework, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]))
        return problem

    monkeypatch.setattr(confinement, "probe", probe)
    device, _ = enter_device("auto", {"onnx"})
    assert seen == [("onnx", SECOND, "PCI_BUS_ID")]
    assert str(device) == ("cpu" if problem else "cuda:0")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("-1" if problem else SECOND)


def test_process_on_the_cpu_uses_neither_nvml_nor_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable hides all GPUs from frameworks."""

    def fail(*_: object) -> list[Gpu]:
        raise AssertionError("a process on the CPU searches for GPUs")

    monkeypatch.setattr(selection, "gpus", fail)
    monkeypatch.setattr(confinement, "probe", fail)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert enter_device("cpu", {"onnx", "tensorflow"})[0].kind == "cpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
