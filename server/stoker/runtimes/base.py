"""What a device process needs of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from stoker.errors import LoadFailed
from stoker.tensors import Signature

__all__ = ["Device", "Outputs", "RowFailure", "Runtime", "Servable", "load_runtime"]


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs: `cpu` or `cuda:N`, and a name to show."""

    kind: Literal["cpu", "cuda"]
    index: int
    description: str

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


@dataclass(frozen=True, slots=True)
class Servable:
    """What to load.

    Attributes:
        name: Service name.
        version: Servable version.
        framework: `onnx`, `tensorflow` or `script`.
        path: The ONNX file, the SavedModel folder, or the entry script.
        model_dir: Folder that an entry script finds under `AZUREML_MODEL_DIR`.
        max_batch_rows: Most rows that `run` is given at once.
        max_body_bytes: Longest request body, for entry scripts that take it whole.
    """

    name: str
    version: int
    framework: str
    path: Path
    model_dir: Path
    max_batch_rows: int
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Stands in a variable output for a row that failed while the others of its batch did not."""

    error: BaseException


Outputs = Sequence["np.ndarray | Sequence[bytes | RowFailure]"]
"""Per output an array `[rows, *row_shape]`, or for a variable output one item per row."""


class Runtime(Protocol):
    """A loaded servable. One thread at a time calls `run`."""

    signature: Signature

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Run one batch.

        Args:
            inputs: Per input an array `[rows, *row_shape]`, valid only during the call; for a variable
                input one `bytes` per row.

        Raises:
            Exception: The whole batch failed; the caller may try it again in parts.
        """
        ...

    def close(self) -> None:
        """Free what the model holds."""
        ...


def load_runtime(servable: Servable, device: Device, threads: int) -> Runtime:
    """Load a servable onto a device.

    Args:
        servable: What to load.
        device: Where it runs.
        threads: Threads that one CPU operation may use.

    Raises:
        LoadFailed: It cannot be loaded; the message says why.
    """
    load = _loader(servable.framework)
    return load(servable, device, threads)


def _loader(framework: str) -> Callable[[Servable, Device, int], Runtime]:
    match framework:
        case "onnx":
            from stoker.runtimes.onnx import OnnxRuntime

            return OnnxRuntime
        case "tensorflow":
            from stoker.runtimes.tensorflow import TensorFlowRuntime

            return TensorFlowRuntime
        case "script":
            from stoker.runtimes.script import load_script

            return load_script
        case _:
            raise LoadFailed(
                f"framework {framework!r} cannot be served by itself; register it with an entry script (score.py)"
            )
