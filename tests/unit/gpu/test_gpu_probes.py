"""Probes of runtimes: the reasons why a runtime cannot use a GPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from stoker.gpu import probes
from stoker.gpu.probes import cuda_libraries, probe

DRIVER_TOO_OLD = (
    "[ONNXRuntimeError] : 1 : FAIL : /build/cuda_call.cc:129 CUDA failure 35: CUDA driver version is insufficient "
    "for CUDA runtime version ; GPU=-1 ; hostname=gpu-7 ; expr=cudaSetDevice(info_.device_id);\nmore"
)


class Loader:
    """A stand-in for the dynamic loader.

    Attributes:
        reasons: Why a library cannot be loaded, by a part of its path.
        loaded: The paths of loaded libraries, in order.
        host: The address of ONNX Runtime that the libraries of its providers find.
    """

    RTLD_GLOBAL = ctypes.RTLD_GLOBAL
    c_void_p = ctypes.c_void_p

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.loaded: list[str] = []
        self.host: int | None = 1

    def load(self, path: str, mode: int = 0) -> Any:
        for name, reason in self.reasons.items():
            if name in path:
                raise OSError(reason)
        self.loaded.append(path)

        def get_host() -> int | None:
            return self.host

        return SimpleNamespace(Provider_GetHost=get_host)

    CDLL = load


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    """The dynamic loader, beside a build of ONNX Runtime with all providers."""
    puppet = Loader()
    monkeypatch.setattr(probes, "ctypes", puppet)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    every = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: every)
    return puppet


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the CPU multiply in place of the GPU."""
    open_session = onnxruntime.InferenceSession

    def session(model: bytes, options: Any, providers: Any, **_: Any) -> Any:
        assert providers == [("CUDAExecutionProvider", {"device_id": "0"})]
        opened = open_session(model, options, providers=["CPUExecutionProvider"])
        monkeypatch.setattr(opened, "get_providers", lambda: ["CUDAExecutionProvider"])
        return opened

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)


@pytest.mark.parametrize("runtime", ["onnx", "tensorrt"])
def test_a_provider_that_multiplies_has_no_problem(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    """The probe runs a real model."""
    on_the_cpu(monkeypatch)
    assert probe(runtime) is None


@pytest.mark.parametrize(
    ("runtime", "library", "missing"),
    [
        ("onnx", "providers_cuda", "libcudnn.so.9"),
        ("tensorrt", "providers_cuda", "libcudnn.so.9"),
        ("tensorrt", "providers_tensorrt", "libnvinfer.so.10"),
        ("onnx", "libcudnn.so.9", "libcudnn.so.9"),
    ],
)
def test_a_missing_library_is_named(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, runtime: str, library: str, missing: str
) -> None:
    """The message is that of the dynamic loader, with the package to install."""
    on_the_cpu(monkeypatch)
    loader.reasons[library] = f"{missing}: cannot open shared object file"
    problem = probe(runtime)
    assert problem is not None
    assert f"cannot be loaded: {missing}: cannot open shared object file; onnxruntime-gpu " in problem
    assert "pip install" in problem
    # ONNX Runtime does not load the library of the newest TensorRT.
    assert ("pip install 'tensorrt-cu13<11'" in problem) == (library == "providers_tensorrt")


def test_a_provider_is_not_loaded_before_onnx_runtime_is_there_for_it(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library would crash the process: it calls ONNX Runtime while it is loaded."""
    on_the_cpu(monkeypatch)
    loader.host = None
    assert probe("onnx") is None
    assert [Path(path).name for path in loader.loaded] == ["libonnxruntime_providers_shared.so"]


def write_libraries(folder: Path, *names: str) -> Path:
    """Make files of these names below `nvidia`; return the folder of packages."""
    for name in names:
        file = folder / "nvidia" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return folder


def test_libraries_of_other_packages_are_loaded_first(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ONNX Runtime is in one folder, PyTorch with the libraries in another; a broken library is left out."""
    torch = write_libraries(
        tmp_path / "torch", "cu13/lib/libcudart.so.13", "cu13/lib/libcublas.so.13", "cudnn/lib/libcudnn.so.9"
    )
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loader.loaded.append("its own"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(torch)])
    loader.reasons["cudart"] = "file too short"
    probes.preload_cuda()
    assert [path.removeprefix(f"{torch}/nvidia/") for path in loader.loaded] == [
        "cu13/lib/libcublas.so.13",
        "cudnn/lib/libcudnn.so.9",
        "its own",
    ]


def test_a_library_is_taken_once_in_the_version_of_the_build(tmp_path: Path) -> None:
    """The first folder that has it wins, whether one package has all libraries or each has its own."""
    both = write_libraries(
        tmp_path / "both",
        *("cu13/lib/libcufft.so.12", "cu13/lib/libcublasLt.so.13", "cublas/lib/libcublasLt.so.12"),
        *("cufft/lib/libcufft.so.11", "cudnn/lib/libcudnn.so.9"),
    )
    further = write_libraries(tmp_path / "further", "cu13/lib/libcufft.so.12", "curand/lib/libcurand.so.10")

    def found(version: str) -> list[str]:
        folders = [str(both), str(further)]
        return [str(path.relative_to(tmp_path)) for path in cuda_libraries(version, folders)]

    cudnn, curand = "both/nvidia/cudnn/lib/libcudnn.so.9", "further/nvidia/curand/lib/libcurand.so.10"
    cu13 = "both/nvidia/cu13/lib"
    assert found("13.0") == [f"{cu13}/libcublasLt.so.13", curand, f"{cu13}/libcufft.so.12", cudnn]
    cublas, cufft = "both/nvidia/cublas/lib/libcublasLt.so.12", "both/nvidia/cufft/lib/libcufft.so.11"
    assert found("12.8") == [cublas, curand, cufft, cudnn]
    assert found("") == []


@pytest.mark.parametrize("runtime", ["onnx", "tensorrt"])
def test_build_without_the_provider_is_a_problem(monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    """Often `onnxruntime` is installed in place of `onnxruntime-gpu`."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "has no CUDA provider; install onnxruntime-gpu in its place (installed: onnxruntime" in (
        probe(runtime) or ""
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            DRIVER_TOO_OLD,
            "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version; onnx",
        ),
        ("something else\nat length", "cannot run: something else; onnxruntime-gpu"),
    ],
)
def test_provider_that_cannot_run_is_a_problem(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, error: str, reason: str
) -> None:
    """An old driver fails only when a session is opened."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    assert reason in (probe("onnx") or "")


@pytest.mark.parametrize(
    ("providers", "product", "reason"),
    [
        (["CPUExecutionProvider"], [[7, 10], [15, 22]], "does not take its CUDA provider"),
        (["CUDAExecutionProvider"], [[0, 0], [0, 0]], "computes wrong numbers: [[0.0, 0.0], [0.0, 0.0]]"),
    ],
)
def test_provider_that_does_not_compute_is_a_problem(
    loader: Loader,
    monkeypatch: pytest.MonkeyPatch,
    providers: list[str],
    product: list[list[int]],
    reason: str,
) -> None:
    """ONNX Runtime leaves it out silently, or its kernels do nothing."""
    session = SimpleNamespace(
        get_providers=lambda: providers, run=lambda _, feeds: [np.array(product, np.float32)]
    )
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: session)
    assert reason in (probe("onnx") or "")


def test_broken_tensorrt_package_is_a_problem(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package has the libraries with which the provider is linked."""

    def broken(name: str) -> None:
        raise ImportError(f"{name} for another Python")

    monkeypatch.setattr(probes, "util", SimpleNamespace(find_spec=lambda _: object()))
    monkeypatch.setattr(probes, "importlib", SimpleNamespace(import_module=broken))
    assert probe("tensorrt") == "the package tensorrt cannot be imported: tensorrt for another Python"


@pytest.mark.parametrize(
    ("gpus", "build", "reason"),
    [
        (["GPU:0"], {}, None),
        ([], {"is_cuda_build": False}, "TensorFlow 2.21.0 was built without CUDA"),
        (
            [],
            {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"},
            "TensorFlow 2.21.0 finds no GPU: it needs CUDA 12.5.1 and cuDNN 9 libraries",
        ),
    ],
)
def test_tensorflow_without_a_gpu_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], build: dict[str, object], reason: str | None
) -> None:
    """The message has the versions for which it was built."""
    puppet = SimpleNamespace(
        __version__="2.21.0",
        __spec__=object(),
        config=SimpleNamespace(list_physical_devices=lambda kind: gpus if kind == "GPU" else ["CPU:0"]),
        sysconfig=SimpleNamespace(get_build_info=lambda: build),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", puppet)
    problem = probe("tensorflow")
    assert problem is None if reason is None else (problem or "").startswith(reason)


def test_tensorflow_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    monkeypatch.setattr(probes, "util", SimpleNamespace(find_spec=lambda _: None))
    assert " pip install 'tensorflow>=" in (probe("tensorflow") or "")


@pytest.mark.parametrize("runtime", ["onnx", "tensorrt"])
def test_onnx_runtime_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    """The message has the command for the build that can use GPUs."""
    monkeypatch.setattr(probes, "util", SimpleNamespace(find_spec=lambda _: None))
    assert " pip install " in (problem := probe(runtime) or "")
    assert " 'onnxruntime-gpu>=" in problem


def test_scripts_have_no_probe() -> None:
    """A script finds out itself."""
    assert probe("script") is None


@pytest.mark.parametrize(
    ("is_available", "cuda", "problem"),
    [
        (True, "13.2", None),
        (False, "13.2", "PyTorch 2.15.0, built for CUDA 13.2, finds no GPU"),
        (False, None, "PyTorch 2.15.0, built without CUDA, finds no GPU"),
    ],
)
def test_pytorch_without_a_gpu_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, is_available: bool, cuda: str | None, problem: str | None
) -> None:
    """Usually the build is for the CPU, or PyTorch is missing."""
    puppet: Any = SimpleNamespace(
        __version__="2.15.0",
        cuda=SimpleNamespace(is_available=lambda: is_available),
        version=SimpleNamespace(cuda=cuda),
        __spec__=object(),
    )
    monkeypatch.setitem(sys.modules, "torch", puppet)
    assert probe("torch") == problem
    monkeypatch.setattr(probes.util, "find_spec", lambda name: None)
    assert probe("torch") == "PyTorch is not installed"
