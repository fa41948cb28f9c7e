"""Which device a server uses, and why not the one that was hoped for."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
from collections.abc import Callable, Collection
from importlib import metadata, util
from pathlib import Path
from typing import Final

from stoker.errors import DeviceUnavailable, InvalidSettings
from stoker.nvml import gpus
from stoker.servable import Device

__all__ = ["choose_device", "preload_cuda"]

_NVIDIA_HINT: Final = (
    "is the NVIDIA driver installed, and the container started with --gpus? --device auto serves without"
)


def choose_device(setting: str, frameworks: Collection[str]) -> tuple[Device, str]:
    """Resolve a device setting.

    Args:
        setting: `auto`, `cpu` or `cuda:N`.
        frameworks: Frameworks of the models that will run on it; each must be able to use it.

    Returns:
        The device, and one line for the log that says what was chosen and why.

    Raises:
        InvalidSettings: The setting is none of these.
        DeviceUnavailable: A GPU was asked for and cannot be used; the message names what is missing.
    """
    if setting == "cpu":
        return _cpu(), "as asked for"
    if setting == "auto":
        try:
            device = _cuda(0, frameworks)
        except DeviceUnavailable as error:
            return _cpu(), f"no GPU: {error}"
        return device, "the first GPU that can be used"
    kind, _, number = setting.partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise InvalidSettings(f"device must be auto, cpu or cuda:N (for instance cuda:0), got {setting!r}")
    try:
        return _cuda(int(number), frameworks), "as asked for"
    except DeviceUnavailable as error:
        raise DeviceUnavailable(f"{setting} cannot be used: {error}; {_NVIDIA_HINT}") from error


def _cpu() -> Device:
    return Device("cpu", 0, f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cuda(index: int, frameworks: Collection[str]) -> Device:
    try:
        found = gpus()
    except OSError as error:
        raise DeviceUnavailable(str(error)) from error
    if index >= len(found):
        raise DeviceUnavailable(f"the NVIDIA driver sees {len(found)} GPUs, cuda:{index} is not among them")
    for framework in sorted(frameworks):
        problem = _PROBES.get(framework, _no_problem)()
        if problem is not None:
            raise DeviceUnavailable(problem)
    gpu = found[index]
    return Device("cuda", index, f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB")


def preload_cuda() -> None:
    """Load the CUDA and cuDNN libraries that came as Python packages, before a runtime looks for them."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()


def _onnx_problem() -> str | None:
    """Why ONNX Runtime cannot use CUDA here, or None.

    ONNX Runtime itself would log a line and go on without the GPU, so its provider library is loaded here
    first: the loader's message names the library that is missing.
    """
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return (
            f"onnxruntime {onnxruntime.__version__} has no CUDA provider; install onnxruntime-gpu "
            f"(installed: {', '.join(_installed_onnxruntimes())})"
        )
    preload_cuda()
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    shared = library.with_name("libonnxruntime_providers_shared.so")
    try:
        ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        wanted = getattr(onnxruntime, "cuda_version", "") or "of its build"
        return (
            f"ONNX Runtime's CUDA provider cannot be loaded: {error}; onnxruntime-gpu {onnxruntime.__version__} "
            f"needs CUDA {wanted} and cuDNN 9 libraries (pip install 'onnxruntime-gpu[cuda,cudnn]' brings them)"
        )
    return None


def _installed_onnxruntimes() -> list[str]:
    names = ("onnxruntime", "onnxruntime-gpu")
    found = [dist.metadata["Name"] for dist in metadata.distributions() if dist.metadata["Name"] in names]
    return sorted(set(found)) or ["none"]


def _tensorflow_problem() -> str | None:
    """Why TensorFlow cannot use CUDA here, or None."""
    if util.find_spec("tensorflow") is None:
        return "TensorFlow is not installed; install it with: pip install 'stoker[tensorflow]'"
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


def _no_problem() -> str | None:
    return None


_PROBES: Final[dict[str, Callable[[], str | None]]] = {
    "onnx": _onnx_problem,
    "tensorflow": _tensorflow_problem,
}
