"""The trial of the JPEG decoder at the start of a server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from stoker.gpu import jpegs
from stoker.gpu.facts import Gpu
from stoker.gpu.jpegs import find_decoder_problem, try_decoder

pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")

from tests.nvimgcodec_puppet import install_codec


@pytest.mark.parametrize(
    ("decode", "failure", "problem"),
    [
        (lambda pixels: pixels ^ 1, None, None),
        (
            lambda pixels: pixels,
            RuntimeError("CUDA Runtime failure: '#35'\nmore"),
            "nvImageCodec does not start: CUDA Runtime failure: '#35'",
        ),
        (
            lambda _: None,
            None,
            "nvImageCodec decodes no JPEG, perhaps because nvJPEG is missing; install it with: pip install "
            "'nvidia-nvimgcodec-cu13[all]', or nvidia-nvimgcodec-cu12 for CUDA 12",
        ),
        (
            lambda pixels: np.full_like(pixels, 7),
            None,
            "nvImageCodec decodes wrong colours: [7, 7, 7] for [200, 90, 30]",
        ),
    ],
    ids=["none", "start", "library", "colours"],
)
def test_trial_reports_the_problem(
    monkeypatch: pytest.MonkeyPatch,
    decode: Callable[[np.ndarray], np.ndarray | None],
    failure: Exception | None,
    problem: str | None,
) -> None:
    """It decodes a file of one colour."""
    codec = install_codec(monkeypatch)
    codec.decode, codec.failure = decode, failure
    assert try_decoder() == problem


def test_no_process_starts_without_the_package_or_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the missing part."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(jpegs, "is_installed", lambda name: name != "nvidia.nvimgcodec")
    assert str(find_decoder_problem()).startswith(
        "nvImageCodec is not installed; install it with: pip install"
    )
    monkeypatch.setattr(jpegs, "is_installed", lambda name: True)
    monkeypatch.setattr(jpegs, "gpus", list)
    assert find_decoder_problem() == "the NVIDIA driver sees no GPU"

    def no_driver() -> list[Gpu]:
        raise OSError("no NVIDIA driver is usable here (NVML: Driver Not Loaded)")

    monkeypatch.setattr(jpegs, "gpus", no_driver)
    assert find_decoder_problem() == "no NVIDIA driver is usable here (NVML: Driver Not Loaded)"


@pytest.mark.parametrize(
    ("code", "printed", "problem"),
    [
        (0, "Failed to load nvtiff library!", None),
        (1, "Failed to load nvtiff library!\nit is broken\n", "it is broken"),
        (-11, "", "nvImageCodec ended with code -11"),
    ],
)
def test_child_process_tries_the_decoder(
    monkeypatch: pytest.MonkeyPatch, code: int, printed: str, problem: str | None
) -> None:
    """Its last line is the answer, also after a crash."""
    monkeypatch.setattr(jpegs, "is_installed", lambda name: True)
    monkeypatch.setattr(jpegs, "gpus", lambda: [Gpu(0, "GPU-1", "H200", 141 << 30)])

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-P", "-m", "stoker.gpu.jpegs"]
        return subprocess.CompletedProcess(command, code, "", printed)

    monkeypatch.setattr(subprocess, "run", run)
    assert find_decoder_problem() == problem


def test_real_child_process_reports_a_problem_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU the decoder does not start."""
    monkeypatch.setattr(jpegs, "is_installed", lambda name: True)
    monkeypatch.setattr(jpegs, "gpus", lambda: [Gpu(0, "GPU-1", "H200", 141 << 30)])
    problem = find_decoder_problem()
    assert problem is None or problem.startswith("nvImageCodec does")
