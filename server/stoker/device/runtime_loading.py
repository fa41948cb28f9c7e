"""Loads a deployment with the runtime of its framework, which is imported only then."""

from __future__ import annotations

from collections.abc import Callable

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.system.extras import onnx_missing


def import_runtime(framework: str) -> None:
    """Import what loads models of a framework.

    Raises:
        LoadFailed: It is not installed.
    """
    _loader(framework)


def load_runtime(deployment: Deployment, device: Device) -> Runtime:
    """Load a deployment onto a device.

    Args:
        deployment: What to load.
        device: Where it runs.

    Raises:
        LoadFailed: It cannot be loaded; the message says why.
    """
    load = _loader(deployment.framework)
    try:
        return load(deployment, device, deployment.threads)
    except MemoryError as error:
        raise LoadFailed(
            f"{deployment.name}: {error}; give its inputs smaller sizes, or serve it where there is more memory"
        ) from error


def _loader(framework: str) -> Callable[[Deployment, Device, int], Runtime]:
    match framework:
        case "onnx":
            try:
                from stoker.runtimes.onnx.loading import load_onnx
            except ImportError as error:
                raise LoadFailed(f"an ONNX model needs ONNX Runtime ({error}); {onnx_missing()}") from error
            return load_onnx
        case "tensorflow":
            from stoker.runtimes.tensorflow import load_saved_model

            return load_saved_model
        case "torch":
            from stoker.runtimes.torch.loading import load_torch

            return load_torch
        case "sklearn":
            from stoker.runtimes.sklearn import load_sklearn

            return load_sklearn
        case "script":
            from stoker.runtimes.script import load_script

            return load_script
        case _:
            raise LoadFailed(
                f"framework {framework!r} cannot be served by itself; register it with an entry script (score.py)"
            )
