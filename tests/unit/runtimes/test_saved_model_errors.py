"""Errors of TensorFlow as errors of a model; TensorFlow itself is not imported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stoker.errors import InvalidInput
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.saved_model import SavedSignature


class _OpError(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _InvalidArgumentError(_OpError):
    pass


class _OutOfRangeError(_OpError):
    pass


class _ResourceExhaustedError(_OpError):
    pass


class _InternalError(_OpError):
    pass


def failing_signature(error: Exception) -> SavedSignature:
    """Return a signature whose function raises an error."""

    def function(**_: Any) -> Any:
        raise error

    errors = SimpleNamespace(
        InvalidArgumentError=_InvalidArgumentError,
        OutOfRangeError=_OutOfRangeError,
        ResourceExhaustedError=_ResourceExhaustedError,
    )
    signature = SavedSignature.__new__(SavedSignature)
    signature._tf = SimpleNamespace(errors=errors, constant=lambda array: array)
    signature._function = function
    signature.outputs = ()
    return signature


MESSAGE = (
    "Graph execution error:\n\nDetected at node GatherV2 defined at (most recent call last):\n"
    '  File "/home/somebody/export.py", line 3, in call\n'
    "indices[0] = 9 is not in [0, 2)\n\t [[{{node GatherV2}}]] [Op:__inference_signature_wrapper_104]"
)


@pytest.mark.parametrize("kind", [_InvalidArgumentError, _OutOfRangeError])
def test_refused_arguments_are_invalid_input(kind: type[_OpError]) -> None:
    """The message has the reason, and no place in the exporter's code."""
    with pytest.raises(InvalidInput) as refused:
        failing_signature(kind(MESSAGE)).run({"x": np.zeros(1)})
    assert str(refused.value) == "The model cannot take these tensors: indices[0] = 9 is not in [0, 2)"


def test_unreadable_bytes_are_invalid_input() -> None:
    """TensorFlow's error quotes the bytes, and cannot be made if they are no text."""
    with pytest.raises(InvalidInput, match="cannot read their bytes"):
        failing_signature(UnicodeDecodeError("utf-8", b"\x89PNG", 0, 1, "invalid start byte")).run(
            {"x": np.zeros(1)}
        )


def test_other_errors_are_unchanged() -> None:
    """A fault of the model is not the caller's."""
    with pytest.raises(_InternalError):
        failing_signature(_InternalError("a kernel failed")).run({"x": np.zeros(1)})


def test_exhausted_resource_is_out_of_memory() -> None:
    """The worker then tries the batch in parts."""
    with pytest.raises(OutOfMemory, match="OOM when allocating tensor"):
        failing_signature(_ResourceExhaustedError("OOM when allocating tensor with shape[4]")).run(
            {"x": np.zeros(1)}
        )
