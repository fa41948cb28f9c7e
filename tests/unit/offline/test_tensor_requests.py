"""Requests of any shape without a server: cut only where the model's rows do not see each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment
from stoker.device.batch_sizes import BatchSizes
from stoker.device.loaded_model import LoadedModel
from stoker.errors import BatchFailed, InvalidInput
from stoker.offline.tensor_requests import TensorRequests
from stoker.row_isolation import RowIsolation
from stoker.runtimes.packed import PackedRuntime
from stoker.tensors import ModelTensors, TensorInfo


class Sums:
    """A model whose output has each row's share of the sum of its request; remembers the shapes that it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        (x,) = feeds.values()
        self.shapes.append(x.shape)
        if (x == 99).any():
            raise ValueError("99 is not for me")
        return {"y": x / x.sum()}


def requests_of(
    model: Any, *shape: int, batched: bool, batch_rows: int | None = None, apart: bool = False
) -> TensorRequests:
    """A model of one input of this shape, with a batch of 4 rows at most."""
    info = TensorInfo("x", "float32", shape)
    tensors = ModelTensors((info,), (TensorInfo("y", "float32", shape),), batched)
    deployment = Deployment("sums", 1, "onnx", Path("sums"), Path(), 4, 1024)
    runtime = PackedRuntime(
        model, tensors, deployment, RowIsolation(batched, "said", "so", non_finite_apart=apart)
    )
    return TensorRequests(LoadedModel(runtime, 0, 0, 4, BatchSizes(), 1, None), batch_rows)


def column(*values: float) -> dict[str, np.ndarray]:
    """An input of one number a row."""
    return {"x": np.array(values, np.float32)[:, None]}


def test_model_with_dependent_rows_gets_a_call_as_one_request() -> None:
    """However many rows it has; unless the caller says how many make a request."""
    model = Sums()
    assert requests_of(model, -1, 1, batched=False).run(column(*[1.0] * 8))["y"].tolist() == [[0.125]] * 8
    assert model.shapes == [(8, 1)]
    answer = requests_of(model, -1, 1, batched=False, batch_rows=2).run(column(1, 1, 2, 6, 5))
    assert answer["y"].tolist() == [[0.5], [0.5], [0.25], [0.75], [1.0]]
    assert model.shapes[1:] == [(2, 1), (2, 1), (1, 1)]


def test_a_fixed_first_axis_says_how_many_rows_make_a_request() -> None:
    """A model for one row at a time takes any number of rows."""
    model = Sums()
    requests = requests_of(model, 1, 1, batched=False)
    assert requests.request_rows == 1
    assert requests.run(column(3, 4))["y"].tolist() == [[1.0], [1.0]]
    assert model.shapes == [(1, 1), (1, 1)]


def test_independent_rows_are_cut_at_the_largest_batch() -> None:
    """Rows that are not finite are alone, where a server keeps them apart."""
    for apart, shapes in ((False, [4, 2]), (True, [1, 1, 4])):
        model = Sums()
        with np.errstate(invalid="ignore"):
            requests_of(model, -1, 1, batched=True, apart=apart).run(column(1, np.nan, 1, 1, 1, 1))
        assert [rows for rows, _ in model.shapes] == shapes


def test_failed_request_is_named() -> None:
    """A request that fails is named; no rows, and different numbers of rows, are refused."""
    requests = requests_of(Sums(), -1, 1, batched=True)
    with pytest.raises(BatchFailed, match="request 1 could not be scored: 99 is not for me"):
        requests.run(column(1, 1, 1, 1, 99))
    with pytest.raises(InvalidInput, match="no rows"):
        requests.run(column())
    three = requests_of(lambda _: {"y": np.ones(3, np.float32)}, 1, 1, batched=False)
    with pytest.raises(BatchFailed, match="score each request in a call of its own"):
        three.run(column(1, 2))
