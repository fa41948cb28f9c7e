"""The search for CUDA's libraries, and their errors, for memory that processes share."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cuda_ipc_puppets import PuppetCuda, PuppetGpus, handle_of

from stoker.gpu.cuda_ipc import CudaFailure, CudaUnusable, load_cuda_ipc
from stoker.gpu.facts import library_folders


class Linker:
    """A dynamic linker that has some libraries."""

    def __init__(self, *names: str) -> None:
        self.names = ("libcuda.so.1", *names)
        self.tried: list[str] = []
        self.cuda = PuppetCuda(PuppetGpus())

    def __call__(self, name: str) -> Any:
        self.tried.append(name)
        if name not in self.names:
            raise OSError(f"{name}: cannot open shared object file")
        return self.cuda


def installed(folder: Path, *libraries: str) -> list[str]:
    """Make packages of NVIDIA with libraries, as pip installs them; return their paths."""
    for library in libraries:
        path = folder / "nvidia" / library
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return [str(folder / "nvidia" / library) for library in libraries]


def test_the_newest_runtime_for_the_driver_is_taken(tmp_path: Path) -> None:
    """Packages precede the system, and runtimes for newer drivers are not tried; this driver has CUDA 12.4."""
    paths = installed(
        tmp_path,
        "cu13/lib/libcudart.so.13",
        "cuda_runtime/lib/libcudart.so.12",
        "old/lib/libcudart.so.11.0",
        "old/lib/libcudart.so.110",
    )
    linker = Linker("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", *paths)
    load_cuda_ipc([str(tmp_path)], linker)
    assert linker.tried == ["libcuda.so.1", paths[1]]
    for missing, tried in ((paths[1], "libcudart.so.12"), ("libcudart.so.12", paths[2])):
        linker.names = tuple(name for name in linker.names if name != missing)
        load_cuda_ipc([str(tmp_path)], linker)
        assert linker.tried[-1] == tried
    linker.names = tuple(name for name in linker.names if name != paths[2])
    load_cuda_ipc([str(tmp_path)], linker)
    assert linker.tried[-1] == "libcudart.so.11.0"


def test_missing_cuda_library_is_named() -> None:
    """The error names the driver, its version, or the runtime that is missing."""
    linker = Linker()
    with pytest.raises(CudaUnusable, match=r"no libcudart.so.12 or older .*pip install"):
        load_cuda_ipc([], linker)
    linker.cuda.failing["cuDriverGetVersion"] = 34
    with pytest.raises(CudaUnusable, match="does not say its version"):
        load_cuda_ipc([], linker)
    linker.names = ()
    with pytest.raises(CudaUnusable, match=r"there is no NVIDIA driver: libcuda.so.1: cannot open"):
        load_cuda_ipc([], linker)


def test_error_without_a_name_has_its_number() -> None:
    """The message has the function too; the handle is passed byte for byte."""
    linker = Linker("libcudart.so.12")
    cuda = load_cuda_ipc([], linker)
    handle = linker.cuda.gpus.allocate("a\0\xff", 8)
    assert handle == handle_of("a\0\xff")
    address = cuda.open(0, handle)
    assert cuda.size_behind(0, address + 3) == 5
    linker.cuda.failing = {"cudaIpcCloseMemHandle": 999, "cudaGetErrorName": None}  # type: ignore[dict-item]
    with pytest.raises(CudaFailure, match="cudaIpcCloseMemHandle: CUDA error 999"):
        cuda.close(0, address)


def test_real_runtime_without_a_gpu_is_unusable() -> None:
    """The real library has all functions, and its error is known."""
    found = [path for place in library_folders(_places()) for path in sorted(place.glob("libcudart.so.*"))]
    if not found:
        pytest.skip(reason="no CUDA runtime is installed, as make test-triton does")
    if Path("/proc/driver/nvidia").exists():
        pytest.skip(reason="there is a GPU: tests/gpu has it")

    def load(name: str) -> Any:
        return PuppetCuda(PuppetGpus()) if name == "libcuda.so.1" else ctypes.CDLL(name)

    cuda = load_cuda_ipc(_places(), load)
    with pytest.raises(CudaUnusable, match=r"cudaSetDevice: cudaError(InsufficientDriver|NoDevice)"):
        cuda.open(0, os.urandom(64))


def _places() -> list[str]:
    """Return the folders of packages here, and that of Triton's tools."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [*sys.path, str(Path(sys.prefix, "triton", "lib", version, "site-packages"))]
