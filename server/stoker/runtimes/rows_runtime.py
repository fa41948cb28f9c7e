"""A function of named tensors as a runtime of rows of a fixed shape."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

from stoker.runtimes.base import Outputs
from stoker.runtimes.packed import Run
from stoker.tensors import Signature


class RowsRuntime:
    """Rows of a fixed shape through a function of named tensors; several threads may run it."""

    def __init__(self, run: Run, signature: Signature) -> None:
        self._run = run
        self._inputs = [spec.name for spec in signature.inputs]
        self._outputs = [spec.name for spec in signature.outputs]
        self.signature = signature

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch; see `Runtime.run`."""
        outputs = self._run(dict(zip(self._inputs, inputs, strict=True)))
        return [outputs[name] for name in self._outputs]

    def fork(self) -> Self:
        """Return another runtime of the same model."""
        return copy(self)
