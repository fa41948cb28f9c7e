"""A loaded model of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stoker.runtimes.packed import Run
from stoker.tensors import TensorInfo

_NO_MEMORY: Final = re.compile(r"can't allocate memory|out of memory", re.IGNORECASE)


@dataclass(slots=True)
class TorchModel:
    """A loaded model as a function of a flat list of tensors.

    Attributes:
        module: A module, or a compiled package.
        apply: Calls the module with the tensors.
        input_names: The names of its inputs, in order.
        inputs: Its inputs; None if the file does not describe them.
        is_exact: Whether `inputs` show the free sizes. The inputs of a trace have the sizes of the trace.
        examples: A request that it answers; None if none is known.
        output_names: The names of its outputs, in order; None for the names in its result.
        output_shapes: The shapes of its outputs, in order, -1 for free sizes; None if the file does not have them.
    """

    module: Any
    apply: Callable[[Any, list[Any]], Any]
    input_names: list[str]
    inputs: Sequence[TensorInfo] | None = None
    is_exact: bool = False
    examples: Mapping[str, np.ndarray] | None = None
    output_names: list[str] | None = None
    output_shapes: Sequence[tuple[int, ...]] | None = None

    def __call__(self, tensors: list[Any]) -> Any:
        """Compute a batch of tensors on the model's device, in the order of the inputs."""
        return self.apply(self.module, tensors)


RunOf = Callable[[TorchModel], Run]
"""Makes a function of named arrays of a model."""


def is_out_of_memory(torch: Any, error: Exception) -> bool:
    """Whether an error of PyTorch means that the device or the host has no memory."""
    return isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY.search(str(error)) is not None


def allow_tf32(torch: Any, *, allowed: bool) -> None:
    """Allow products and convolutions of float32 on a GPU to compute with 19 bits, or forbid it."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
