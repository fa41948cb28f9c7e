"""What of TensorFlow's errors is the caller's fault; TensorFlow itself is not imported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stoker.errors import InvalidInput
from stoker.runtimes.tensorflow import _SignatureTensors


class _OpError(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _InvalidArgumentError(_OpError):
    pass


class _OutOfRangeError(_OpError):
    pass


class _InternalError(_OpError):
    pass


def signature(error: Exception) -> _SignatureTensors:
    """A signature whose function raises this."""

    def function(**_: Any) -> Any:
        raise error

    errors = SimpleNamespace(InvalidArgumentError=_InvalidArgumentError, OutOfRangeError=_OutOfRangeError)
    made = _SignatureTensors.__new__(_SignatureTensors)
    made._tf = SimpleNamespace(errors=errors, constant=lambda array: array)
    made._function = function
    made.outputs = ()
    return made


MESSAGE = (
    "Graph execution error:\n\nDetected at node GatherV2 defined at (most recent call last):\n"
    '  File "/home/somebody/export.py", line 3, in call\n'
    "indices[0] = 9 is not in [0, 2)\n\t [[{{node GatherV2}}]] [Op:__inference_signature_wrapper_104]"
)


@pytest.mark.parametrize("kind", [_InvalidArgumentError, _OutOfRangeError])
def test_arguments_that_do_not_fit_are_the_callers_fault(kind: type[_OpError]) -> None:
    """The caller is told the reason, and not where in the exporter's code it is."""
    with pytest.raises(InvalidInput) as refused:
        signature(kind(MESSAGE)).run({"x": np.zeros(1)})
    assert str(refused.value) == "The model cannot take these tensors: indices[0] = 9 is not in [0, 2)"


def test_other_errors_are_the_models() -> None:
    """They go on as they are."""
    with pytest.raises(_InternalError):
        signature(_InternalError("out of memory")).run({"x": np.zeros(1)})
