"""Whether runtimes can use a GPU: what each says that it lacks."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from stoker import gpu_probes
from stoker.gpu_probes import probe

DRIVER_TOO_OLD = (
    "[ONNXRuntimeError] : 1 : FAIL : /build/cuda_call.cc:129 CUDA failure 35: CUDA driver version is insufficient "
    "for CUDA runtime version ; GPU=-1 ; hostname=gpu-7 ; expr=cudaSetDevice(info_.device_id);\nmore"
)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The libraries that are loaded, by their names; write a reason there for one that cannot be."""
    reasons: dict[str, str] = {}

    def load(path: str, mode: int = 0) -> None:
        for name, reason in reasons.items():
            if name in path:
                raise OSError(reason)

    monkeypatch.setattr(gpu_probes, "ctypes", SimpleNamespace(CDLL=load, RTLD_GLOBAL=ctypes.RTLD_GLOBAL))
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    every = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: every)
    return reasons


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU multiply in the GPU's place."""
    open_session = onnxruntime.InferenceSession

    def session(model: bytes, options: Any, providers: Any, **_: Any) -> Any:
        assert providers == [("CUDAExecutionProvider", {"device_id": "0"})]
        opened = open_session(model, options, providers=["CPUExecutionProvider"])
        monkeypatch.setattr(opened, "get_providers", lambda: ["CUDAExecutionProvider"])
        return opened

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)


@pytest.mark.parametrize("runtime", ["onnx", "tensorrt"])
def test_a_provider_that_multiplies_has_no_problem(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    """The model that is tried is a real one, and so is its product."""
    on_the_cpu(monkeypatch)
    assert probe(runtime) is None


@pytest.mark.parametrize(
    ("runtime", "library", "missing"),
    [
        ("onnx", "providers_cuda", "libcudnn.so.9"),
        ("tensorrt", "providers_cuda", "libcudnn.so.9"),
        ("tensorrt", "providers_tensorrt", "libnvinfer.so.10"),
    ],
)
def test_a_missing_library_is_named(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, runtime: str, library: str, missing: str
) -> None:
    """In the words of the dynamic loader, and with the packages that bring it."""
    on_the_cpu(monkeypatch)
    libraries[library] = f"{missing}: cannot open shared object file"
    problem = probe(runtime)
    assert problem is not None
    assert f"cannot be loaded: {missing}: cannot open shared object file; onnxruntime-gpu " in problem
    assert "pip install" in problem


@pytest.mark.parametrize("runtime", ["onnx", "tensorrt"])
def test_a_build_without_the_provider_says_so(monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    """`onnxruntime` in place of `onnxruntime-gpu` is a frequent reason."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "has no CUDA provider; install onnxruntime-gpu (installed: onnxruntime" in (probe(runtime) or "")


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
def test_a_provider_that_cannot_run_says_why(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, error: str, reason: str
) -> None:
    """A driver that is too old for the libraries shows only when a session is opened."""

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
def test_a_provider_that_only_seems_to_run_is_found_out(
    libraries: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    providers: list[str],
    product: list[list[int]],
    reason: str,
) -> None:
    """One that ONNX Runtime left out without a word, and one whose kernels do nothing."""
    session = SimpleNamespace(
        get_providers=lambda: providers, run=lambda _, feeds: [np.array(product, np.float32)]
    )
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: session)
    assert reason in (probe("onnx") or "")


def test_a_tensorrt_package_that_is_broken_says_so(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It brings the libraries that the provider is linked with."""

    def broken(name: str) -> None:
        raise ImportError(f"{name} for another Python")

    monkeypatch.setattr(gpu_probes, "util", SimpleNamespace(find_spec=lambda _: object()))
    monkeypatch.setattr(gpu_probes, "importlib", SimpleNamespace(import_module=broken))
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
def test_tensorflow_is_asked_for_its_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], build: dict[str, object], reason: str | None
) -> None:
    """It logs what it misses; the answer says which versions it was built for."""
    puppet = SimpleNamespace(
        __version__="2.21.0",
        __spec__=object(),
        config=SimpleNamespace(list_physical_devices=lambda kind: gpus if kind == "GPU" else ["CPU:0"]),
        sysconfig=SimpleNamespace(get_build_info=lambda: build),
    )
    monkeypatch.setitem(gpu_probes.sys.modules, "tensorflow", puppet)
    problem = probe("tensorflow")
    assert problem is None if reason is None else (problem or "").startswith(reason)


def test_tensorflow_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(gpu_probes, "util", SimpleNamespace(find_spec=lambda _: None))
    assert "pip install 'stoker[tensorflow]'" in (probe("tensorflow") or "")


def test_nothing_is_known_of_scripts() -> None:
    """What they use is theirs to try."""
    assert probe("script") is None
