"""How a model uses a GPU: which provider and precision, how much memory, and how its batches get there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.errors import InvalidSettings

__all__ = ["Acceleration", "Execution", "Precision", "Provider", "check_acceleration"]

Provider = Literal["cuda", "tensorrt"]
Precision = Literal["fp32", "tf32", "fp16"]
Execution = Literal["auto", "copied", "bound", "graph"]


@dataclass(frozen=True, slots=True)
class Acceleration:
    """Settings of a model on a GPU; on the CPU they have no effect but for `xla`.

    Attributes:
        provider: What runs an ONNX model: ONNX Runtime's `cuda` or `tensorrt` provider.
        precision: Precision of matrix products and convolutions of `float32` models: `tf32` (19 bits, the default of
            ONNX Runtime and TensorFlow), `fp32`, or `fp16`.
        memory_mb: Most GPU memory in MiB that the model's framework takes from the device; None is without limit.
        execution: How the batches of an ONNX model run: `copied` (plain calls with arrays in host memory), `bound`
            (pinned buffers and outputs that stay in place), `graph` (a captured CUDA graph for each batch size), or
            `auto` (the fastest of them at warm-up).
        xla: Whether TensorFlow compiles a SavedModel with XLA, once for each of its batch sizes; on the CPU too,
            where it has such sizes.
    """

    provider: Provider = "cuda"
    precision: Precision = "tf32"
    memory_mb: int | None = None
    execution: Execution = "auto"
    xla: bool = False


def check_acceleration(name: str, framework: str, acceleration: Acceleration) -> None:
    """Refuse settings that a model's framework does not have, and combinations that contradict each other.

    Args:
        framework: `onnx`, `tensorflow`, `script`, or one that is not served by itself, of which nothing is known.

    Raises:
        InvalidSettings: What to change.
    """
    judge = _PROBLEMS.get(framework)
    problem = None if judge is None else judge(acceleration)
    if problem is not None:
        raise InvalidSettings(f"{name}: {problem}")


def _script_problem(acceleration: Acceleration) -> str | None:
    if acceleration == Acceleration():
        return None
    return (
        "gpu_memory_mb, provider, precision, execution and xla are for ONNX models and SavedModels; "
        "an entry script sets up its framework itself"
    )


def _sklearn_problem(acceleration: Acceleration) -> str | None:
    if acceleration == Acceleration():
        return None
    return (
        "gpu_memory_mb, provider, precision, execution and xla are for ONNX models and SavedModels; scikit-learn "
        "computes on the CPU"
    )


def _onnx_problem(acceleration: Acceleration) -> str | None:
    if acceleration.xla:
        return "xla is for SavedModels; ONNX Runtime has provider: tensorrt instead"
    if acceleration.provider == "tensorrt" and acceleration.execution == "graph":
        return "execution: graph is for provider: cuda; with tensorrt, leave execution out"
    if acceleration.provider == "tensorrt" and acceleration.precision == "fp32":
        return "TensorRT always uses TF32 for float32; precision: fp32 is for provider: cuda"
    return None


def _tensorflow_problem(acceleration: Acceleration) -> str | None:
    if acceleration.provider != "cuda":
        return f"provider: {acceleration.provider} is for ONNX models; leave it out"
    if acceleration.execution != "auto":
        return f"execution: {acceleration.execution} is for ONNX models; leave it out"
    if acceleration.xla and acceleration.precision == "fp16":
        return (
            "TensorFlow's mixed precision does not reach what XLA compiles; choose xla or precision: fp16, "
            "or export the model in float16"
        )
    return None


_PROBLEMS = {
    "script": _script_problem,
    "onnx": _onnx_problem,
    "tensorflow": _tensorflow_problem,
    "sklearn": _sklearn_problem,
}
