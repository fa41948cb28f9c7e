"""Functions of named tensors as runtimes of rows."""

from __future__ import annotations

import numpy as np

from stoker.runtimes.base import ForkingRuntime
from stoker.runtimes.packed import Feeds
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.tensors import Signature, TensorSpec


def test_inputs_and_outputs_have_the_order_of_the_signature() -> None:
    """The function may return its outputs in another order; a fork runs the same function."""

    def run(feeds: Feeds) -> Feeds:
        return {"sum": feeds["a"] + feeds["b"], "difference": feeds["a"] - feeds["b"]}

    inputs = tuple(TensorSpec(name, "float32", ()) for name in ("a", "b"))
    outputs = tuple(TensorSpec(name, "float32", ()) for name in ("difference", "sum"))
    runtime = RowsRuntime(run, Signature(inputs, outputs))
    assert isinstance(runtime, ForkingRuntime)
    for instance in (runtime, runtime.fork()):
        difference, total = instance.run([np.array([5.0]), np.array([3.0])])
        assert (np.asarray(difference).tolist(), np.asarray(total).tolist()) == ([2], [8])
