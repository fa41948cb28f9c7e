"""Inspection of batches of models of free sizes: audits, and answers that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stoker.deployment import Deployment
from stoker.isolation.audit import audit
from stoker.row_isolation import RowIsolation
from stoker.runtimes.packed import PackedRuntime
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.packed import pack, unpack

TESTED = RowIsolation(True, "tested", "tested with companions in 30 batches", 30)
Functions = Callable[[np.ndarray], np.ndarray]


def packed(function: Functions, *, batched: bool = True, **isolation: Any) -> PackedRuntime:
    """A model of free sizes."""
    info = TensorInfo("x", "float32", (-1, -1)), TensorInfo("y", "float32", (-1, -1))
    deployment = Deployment("words", 1, "onnx", Path(), Path(), max_batch_rows=8, max_body_bytes=1000)
    return PackedRuntime(
        lambda feeds: {"y": function(feeds["x"])},
        ModelTensors(info[:1], info[1:], batched),
        deployment,
        msgspec.structs.replace(TESTED, batched=batched, **isolation),
    )


def run(runtime: PackedRuntime, *requests: list[list[float]]) -> list[list[list[float]]]:
    """The answers to requests."""
    (packed_answers,) = runtime.run([[pack({"x": np.array(rows, np.float32)}) for rows in requests]])
    assert all(isinstance(answer, bytes) for answer in packed_answers)
    return [unpack(bytes(answer))["y"].tolist() for answer in packed_answers]


def test_a_request_of_free_sizes_is_audited_within_its_batch() -> None:
    """One of those that were joined is kept, with all its rows and the size of the batch; a lone one is not."""
    runtime = packed(lambda x: 2 * x)
    requests = [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]], [[1.0, 2.0, 3.0]]]
    run(runtime, *requests)
    assert runtime.monitor.kept_rows is None
    runtime.monitor.wants_rows = True
    run(runtime, requests[2])
    assert runtime.monitor.kept_rows is None
    run(runtime, *requests)
    taken = runtime.monitor.kept_rows
    assert taken is not None
    assert not runtime.monitor.wants_rows
    assert taken.size == 3
    assert taken.inputs["x"].tolist() in requests[:2]
    assert taken.answers["y"].tolist() == (2 * taken.inputs["x"]).tolist()
    assert audit(runtime.run_tensors, taken).result == "passed"
    assert audit(lambda feeds: {"y": feeds["x"]}, taken).result == "failed"


def test_each_instance_of_free_sizes_watches_its_own_batches() -> None:
    """One thread does not take the rows or counts of another one."""
    runtime = packed(lambda x: 2 * x)
    fork = runtime.fork()
    runtime.monitor.wants_rows = True
    run(fork, [[1.0]], [[2.0]])
    assert runtime.monitor.wants_rows
    assert (runtime.monitor.kept_rows, fork.monitor.kept_rows) == (None, None)
    run(runtime, [[1.0]], [[2.0]])
    assert runtime.monitor.kept_rows is not None
    assert fork.monitor.kept_rows is None


def test_requests_that_are_not_finite_are_joined_with_none() -> None:
    """Where NaN was no part of the proof, of three requests of one shape two run as one batch."""
    sizes: list[int] = []

    def noted(x: np.ndarray) -> np.ndarray:
        sizes.append(len(x))
        return 2 * x

    for apart, expected in ((True, [1, 2]), (False, [3])):
        runtime = packed(noted, non_finite_apart=apart)
        found = run(runtime, [[1.0]], [[np.inf]], [[2.0]])
        assert found == [[[2.0]], [[np.inf]], [[4.0]]]
        assert sorted(sizes) == expected
        sizes.clear()


def test_answers_of_free_sizes_that_are_not_finite_are_counted() -> None:
    """By rows where there are some, else by requests."""

    def inverse(x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.asarray(1 / x)

    runtime = packed(inverse)
    run(runtime, [[0.0], [1.0]], [[np.inf]], [[0.0]])
    assert runtime.monitor.non_finite_rows == 2
    run(runtime, [[0.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    assert runtime.monitor.non_finite_rows == 4
    unbatched = packed(inverse, batched=False)
    run(unbatched, [[0.0], [0.0]])
    assert unbatched.monitor.non_finite_rows == 1
