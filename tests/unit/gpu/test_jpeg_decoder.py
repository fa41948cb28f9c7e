"""Whether JPEGs can be decoded on a GPU: what the start of a server finds."""

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
            "nvImageCodec decodes no JPEG, perhaps for want of nvJPEG; install it with: pip install "
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
def test_a_decoder_is_tried(
    monkeypatch: pytest.MonkeyPatch,
    decode: Callable[[np.ndarray], np.ndarray | None],
    failure: Exception | None,
    problem: str | None,
) -> None:
    """With a file of one colour."""
    codec = install_codec(monkeypatch)
    codec.decode, codec.failure = decode, failure
    assert try_decoder() == problem


def test_without_the_package_or_a_gpu_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what is missing."""
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
def test_another_process_tries_it(
    monkeypatch: pytest.MonkeyPatch, code: int, printed: str, problem: str | None
) -> None:
    """Its last line is the answer; it may crash."""
    monkeypatch.setattr(jpegs, "is_installed", lambda name: True)
    monkeypatch.setattr(jpegs, "gpus", lambda: [Gpu(0, "GPU-1", "H200", 141 << 30)])

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-P", "-m", "stoker.gpu.jpegs"]
        return subprocess.CompletedProcess(command, code, "", printed)

    monkeypatch.setattr(subprocess, "run", run)
    assert find_decoder_problem() == problem


def test_the_process_that_tries_it_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine: a package that is not there, or whatever it lacks."""
    monkeypatch.setattr(jpegs, "is_installed", lambda name: True)
    monkeypatch.setattr(jpegs, "gpus", lambda: [Gpu(0, "GPU-1", "H200", 141 << 30)])
    problem = find_decoder_problem()
    assert problem is None or problem.startswith("nvImageCodec does")
