"""Probes of runtimes: whether a runtime can use the GPU that CUDA sees, and which library or driver is missing.

A probe loads CUDA's libraries, so the process must be confined to the GPU before. For callers that have to survive a
crash in these libraries, `python -m stoker.gpu.probes RUNTIME` prints the answer as JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Final

from stoker.gpu.facts import library_folders
from stoker.system.extras import how_to_install, installed_onnx_builds

RUNTIMES: Final = {
    "onnx": "ONNX Runtime (CUDA)",
    "tensorrt": "ONNX Runtime (TensorRT)",
    "tensorflow": "TensorFlow",
}
"""The probed runtimes by name: ONNX models, those with `provider: tensorrt`, and SavedModels."""

# An ONNX model of one node, y = MatMul(x, x) for x of 2 rows and 2 columns.
_PRODUCT: Final = (
    b'\x08\x08:E\n\x11\n\x01x\n\x01x\x12\x01y"\x06MatMul\x12\x06square'
    b"Z\x13\n\x01x\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08\x02\n\x02\x08\x02"
    b"b\x13\n\x01y\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08\x02\n\x02\x08\x02B\x04\n\x00\x10\r"
)
_CUDA_FAILURE: Final = re.compile(r"\w+ failure [0-9]+: [^;\n]+")
_CUDNN: Final = "libcudnn.so.9"
_TENSORRT: Final = 10
"""The version of TensorRT that ONNX Runtime up to 1.31 loads; the newest package of TensorRT has another one."""


def probe(runtime: str) -> str | None:
    """Return why a runtime cannot use the GPU, or None if it can.

    Args:
        runtime: One of `RUNTIMES`, `torch` or `sklearn`; any other counts as able to.
    """
    return _PROBES.get(runtime, _no_problem)()


def preload_cuda() -> None:
    """Load the CUDA and cuDNN libraries of Python packages, before ONNX Runtime searches for them.

    ONNX Runtime searches only beside its own package. The libraries may be in another folder of `sys.path`, such as
    that of an environment with PyTorch.
    """
    import onnxruntime

    if not hasattr(onnxruntime, "preload_dlls"):
        return
    for library in cuda_libraries(getattr(onnxruntime, "cuda_version", "") or "", sys.path):
        with suppress(OSError):
            ctypes.CDLL(str(library))
    # It finds libraries that are loaded by their names.
    onnxruntime.preload_dlls()


def cuda_libraries(version: str, folders: Sequence[str]) -> Iterator[Path]:
    """Yield the libraries in NVIDIA's Python packages that ONNX Runtime needs, in the order to load them.

    Args:
        version: The version of CUDA, for instance `13.0`; empty finds nothing.
        folders: Folders of packages; the first one that has a library wins.
    """
    major = version.partition(".")[0]
    if not major.isdecimal():
        return
    cuda = int(major)
    # Each library precedes those that need it. The version of cuFFT is that of CUDA less one.
    numbered = (("cublasLt", cuda), ("cublas", cuda), ("nvrtc", cuda), ("curand", 10), ("cufft", cuda - 1))
    names = [*(f"lib{name}.so.{number}" for name, number in numbered), f"libcudart.so.{cuda}", _CUDNN]
    places = library_folders(folders)
    for name in names:
        found = [place / name for place in places if (place / name).is_file()]
        yield from found[:1]


def _no_problem() -> str | None:
    return None


def _sklearn_problem() -> str | None:
    return "scikit-learn computes on the CPU"


def _onnx_problem() -> str | None:
    return _onnx_library_problem("CUDA") or _product_problem()


def _tensorrt_problem() -> str | None:
    if util.find_spec("tensorrt") is not None:
        # The package loads its own libraries, which the dynamic linker does not find.
        try:
            importlib.import_module("tensorrt")
        except (ImportError, OSError) as error:
            return f"the package tensorrt cannot be imported: {error}"
    return _onnx_problem() or _onnx_library_problem("Tensorrt")


def _onnx_library_problem(provider: str) -> str | None:
    """Return why a provider's library cannot be loaded; ONNX Runtime itself would only log it and use the CPU."""
    if util.find_spec("onnxruntime") is None:
        return f"ONNX Runtime is not installed; {how_to_install('gpu')}"
    import onnxruntime

    name = f"onnxruntime {onnxruntime.__version__}"
    if f"{provider}ExecutionProvider" not in onnxruntime.get_available_providers():
        builds = ", ".join(installed_onnx_builds()) or "none that is known"
        return (
            f"{name} has no {provider} provider; install onnxruntime-gpu in its place (installed: {builds})"
        )
    preload_cuda()
    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        shared = ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
        shared.Provider_GetHost.restype = ctypes.c_void_p
        if not shared.Provider_GetHost():
            # A provider's library calls ONNX Runtime as soon as it is loaded, and this one cannot answer yet.
            return None
        ctypes.CDLL(str(folder / f"libonnxruntime_providers_{provider.lower()}.so"))
        # Newer versions load it only for a model with a convolution.
        ctypes.CDLL(_CUDNN)
    except OSError as error:
        return f"ONNX Runtime's {provider} provider cannot be loaded: {error}; {_needs(provider)}"
    return None


def _needs(provider: str) -> str:
    import onnxruntime

    name = f"onnxruntime-gpu {onnxruntime.__version__}"
    cuda = getattr(onnxruntime, "cuda_version", "")
    if provider == "Tensorrt":
        package = f"tensorrt-cu{cuda.partition('.')[0] or 13}<{_TENSORRT + 1}"
        return f"{name} needs TensorRT {_TENSORRT} (pip install '{package}' brings it)"
    brings = "pip install 'onnxruntime-gpu[cuda,cudnn]' brings them"
    return f"{name} needs CUDA {cuda or 'of its build'} and cuDNN 9 libraries ({brings})"


def _product_problem() -> str | None:
    """Return why the CUDA provider cannot multiply, such as an old driver or a GPU without kernels in this build."""
    import numpy as np
    import onnxruntime

    # Failures are raised; its other log lines, in colours, are not useful.
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    cuda = ("CUDAExecutionProvider", {"device_id": "0"})
    try:
        session = onnxruntime.InferenceSession(_PRODUCT, options, providers=[cuda], enable_fallback=0)
        if cuda[0] not in session.get_providers():
            return "ONNX Runtime does not take its CUDA provider, and does not say why"
        (product,) = session.run(None, {"x": np.array([[1, 2], [3, 4]], np.float32)})
    except Exception as error:  # noqa: BLE001  # models would fail with any such error too
        failure = _CUDA_FAILURE.search(str(error))
        reason = failure[0].strip() if failure else str(error).partition("\n")[0]
        return f"ONNX Runtime's CUDA provider cannot run: {reason}; {_needs('CUDA')}, and a driver for them"
    if product.tolist() != [[7, 10], [15, 22]]:
        return f"ONNX Runtime's CUDA provider computes wrong numbers: {product.tolist()}"
    return None


def _tensorflow_problem() -> str | None:
    if util.find_spec("tensorflow") is None:
        return f"TensorFlow is not installed; {how_to_install('tensorflow')}"
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return None
    build = tf.sysconfig.get_build_info()
    if not build.get("is_cuda_build"):
        return f"TensorFlow {tf.__version__} was built without CUDA"
    return (
        f"TensorFlow {tf.__version__} finds no GPU: it needs CUDA {build.get('cuda_version', '')} and cuDNN "
        f"{build.get('cudnn_version', '')} libraries (pip install 'tensorflow[and-cuda]' brings them)"
    )


def _torch_problem() -> str | None:
    if util.find_spec("torch") is None:
        return "PyTorch is not installed"
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        return None
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return f"PyTorch {torch.__version__}, {built}, finds no GPU"


_PROBES: Final[dict[str, Callable[[], str | None]]] = {
    "onnx": _onnx_problem,
    "tensorrt": _tensorrt_problem,
    "tensorflow": _tensorflow_problem,
    "torch": _torch_problem,
    "sklearn": _sklearn_problem,
}


if __name__ == "__main__":
    # Frameworks may print lines before the answer.
    sys.stdout.write(f"\n{json.dumps({'problem': probe(sys.argv[1])})}\n")
