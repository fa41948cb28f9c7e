"""Probes of runtimes in child processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from stoker.gpu import child_probes
from stoker.gpu.child_probes import probe_in_child

FIRST = "GPU-00000000-0000-4000-8000-123456789abc"
PART = "MIG-00000005-1111-5111-9111-123456789abc"


def ends(returncode: int, stdout: str = "", stderr: str = "") -> Callable[..., Any]:
    """Return a `subprocess.run` of a process that ends so."""
    return lambda command, **_: subprocess.CompletedProcess(command, returncode, stdout, stderr)


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        (ends(0, 'Hello\n\n{"problem": null}\n'), None),
        (ends(0, '{"problem": "libcudnn.so.9 is missing"}'), "libcudnn.so.9 is missing"),
        (ends(-11, "", "Fatal error\nin CUDA\n"), "TensorFlow was ended by SIGSEGV: in CUDA"),
        (ends(3), "TensorFlow exited with code 3: no output"),
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
def test_end_of_a_probe_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, end: Callable[..., Any], problem: str | None
) -> None:
    """A crash is a problem like any other; the message has the last line of output."""
    monkeypatch.setattr(child_probes.subprocess, "run", end)
    assert probe_in_child(FIRST, "tensorflow") == problem


def test_probe_that_hangs_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the timeout."""

    def hang(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(child_probes.subprocess, "run", hang)
    assert probe_in_child(FIRST, "onnx") == "ONNX Runtime (CUDA) did not answer within 180 s"


def test_probe_sees_only_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's CUDA_VISIBLE_DEVICES is replaced."""
    seen: dict[str, str] = {}

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.update(env)
        return subprocess.CompletedProcess(command, 0, '{"problem": null}', "")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(child_probes.subprocess, "run", run)
    probe_in_child(PART, "onnx")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == (PART, "PCI_BUS_ID")


def test_real_probe_of_a_missing_gpu_names_the_provider() -> None:
    """A real child process tries a GPU that no machine has."""
    problem = probe_in_child("GPU-00000000-dead-beef-0000-000000000000", "onnx")
    assert problem is not None
    assert "CUDA provider" in problem
