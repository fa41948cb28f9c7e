"""How a model uses a GPU: which provider and precision, how much memory, and how its batches get there."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Acceleration", "Execution", "Precision", "Provider"]

Provider = Literal["cuda", "tensorrt"]
Precision = Literal["fp32", "tf32", "fp16"]
Execution = Literal["auto", "copied", "bound", "graph"]


@dataclass(frozen=True, slots=True)
class Acceleration:
    """Settings of a model on a GPU; on the CPU they have no effect.

    Attributes:
        provider: What runs an ONNX model: ONNX Runtime's `cuda` or `tensorrt` provider.
        precision: Precision of matrix products and convolutions of `float32` models: `tf32` (19 bits, the default of
            ONNX Runtime and TensorFlow), `fp32`, or `fp16`.
        memory_mb: Most GPU memory in MiB that the model's framework takes from the device; None is without limit.
        execution: How the batches of an ONNX model run: `copied` (plain calls with arrays in host memory), `bound`
            (pinned buffers and outputs that stay in place), `graph` (a captured CUDA graph for each batch size), or
            `auto` (the fastest of them at warm-up).
        xla: Whether TensorFlow compiles a SavedModel with XLA, once for each of its batch sizes.
    """

    provider: Provider = "cuda"
    precision: Precision = "tf32"
    memory_mb: int | None = None
    execution: Execution = "auto"
    xla: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return dataclasses.asdict(self)
