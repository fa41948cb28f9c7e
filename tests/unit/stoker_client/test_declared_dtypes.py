"""The dtypes of answers: those that the model declares, by whichever protocol and call the rows go."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.scripted import Caller as ScriptedCaller
from tests.unit.stoker_client.scripted import Kind, error, ok

from stoker_client.flow import BINARY_BYTES
from stoker_client.tensors import ModelTensors, TensorInfo, declare_dtypes

Caller = partial(ScriptedCaller, uri="http://127.0.0.1:8080/api/v1/service/same/score", describes=True)
FEW = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
MANY = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(1024, 4)
assert FEW.nbytes < BINARY_BYTES <= MANY.nbytes
IDENTITY = httpx.Response(
    200,
    json={
        "name": "same",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    },
)


def as_json(rows: np.ndarray) -> httpx.Response:
    """The answer of the scoring URI, with the shortest decimals of float32."""
    return ok([[float(str(number)) for number in row] for row in rows])


def as_tensor(rows: np.ndarray) -> httpx.Response:
    """The answer of the Open Inference Protocol, in JSON."""
    data = [float(str(number)) for number in rows.reshape(-1)]
    return ok({"outputs": [{"name": "y", "datatype": "FP32", "shape": rows.shape, "data": data}]})


def assert_identical(answer: Any, rows: np.ndarray) -> None:
    assert answer.dtype == rows.dtype
    assert np.array_equal(answer, rows)


def test_identity_scored_as_json_gives_back_the_array(kind: Kind) -> None:
    """float32 in, float32 out, bit for bit."""
    assert_identical(Caller(kind, [as_json(FEW), IDENTITY]).call("score", FEW), FEW)


def test_identity_scored_as_binary_data_gives_back_the_array(kind: Kind) -> None:
    """The reply itself declares the datatype."""
    assert_identical(Caller(kind, [IDENTITY, as_tensor(MANY)]).call("score", MANY), MANY)


def test_identity_as_json_after_refused_binary_data_gives_the_array(kind: Kind) -> None:
    """Where the inputs are of another type than the array, JSON is sent; the description is known by then."""
    doubles = IDENTITY.json() | {"inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 4]}]}
    assert_identical(Caller(kind, [ok(doubles), as_json(MANY)]).call("score", MANY), MANY)


def test_identity_scored_in_batches_gives_back_the_array(kind: Kind) -> None:
    """One request reads the description; both joined and single answers have the dtype."""
    halves = [FEW[:1], FEW[1:]]
    script = [as_json(halves[0]), IDENTITY, as_json(halves[1])]
    assert_identical(Caller(kind, script).call("score_many", FEW, batch_rows=1, concurrency=1), FEW)
    answers = Caller(kind, script).call("score_batches", halves, concurrency=1)
    for answer, half in zip(answers, halves, strict=True):
        assert_identical(answer, half)


def test_identity_scored_later_gives_back_the_array(kind: Kind) -> None:
    """`fetch` returns what `score` would have returned."""
    location = "http://127.0.0.1:8080/later/1-2"
    assert_identical(Caller(kind, [as_json(FEW), IDENTITY]).call("fetch", location), FEW)


def test_identity_inferred_gives_back_the_array(kind: Kind) -> None:
    """`infer` has had the model's datatypes before."""
    assert_identical(Caller(kind, [IDENTITY, as_tensor(FEW)]).call("infer", {"x": FEW})["y"], FEW)


@pytest.mark.parametrize("description", [error(404, "not_found"), ok([]), httpx.ConnectTimeout("slow")])
def test_answer_of_an_undescribed_model_keeps_its_dtype(kind: Kind, description: Any) -> None:
    """A server that describes no models, or does not answer in time, costs no answer."""
    answer = Caller(kind, [as_json(FEW), description]).call("score", FEW)
    assert (answer.dtype, answer.shape) == (np.float64, FEW.shape)


@pytest.mark.parametrize("answer", ["text", {"label": "seven"}, [[1], [1, 2]]])
def test_answer_without_arrays_needs_no_description(kind: Kind, answer: Any) -> None:
    """A script's own JSON is passed on, and nothing else is sent."""
    caller = Caller(kind, [ok(answer)])
    assert caller.call("score", FEW) == answer
    assert len(caller.requests) == 1


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        ("FP32", np.array([0.1]), np.array([0.1], np.float32)),
        ("FP32", np.array([1, 2]), np.array([1, 2], np.float32)),
        ("FP16", np.array([0.5]), np.array([0.5], np.float16)),
        ("INT32", np.array([7]), np.array([7], np.int32)),
        ("INT32", np.empty(0), np.empty(0, np.int32)),
        ("UINT8", np.array([300]), np.array([300])),
        ("INT64", np.array([0.5]), np.array([0.5])),
        ("FP32", np.array([True]), np.array([True])),
        ("BYTES", np.array([1]), np.array([1])),
    ],
)
def test_values_that_fit_the_declared_datatype_are_cast(
    datatype: str, value: np.ndarray, expected: np.ndarray
) -> None:
    """Values of another kind, or out of its range, show that the answer is another one: they stay."""
    model = ModelTensors("m", (), (TensorInfo("y", datatype, (-1,)),))
    for answer in (declare_dtypes(model, value), declare_dtypes(model, {"y": value})["y"]):
        assert_identical(answer, expected)


def test_outputs_are_cast_by_name() -> None:
    """Outputs that the model does not declare, and lists, stay as they are."""
    model = ModelTensors("m", (), (TensorInfo("y", "FP32", (-1,)), TensorInfo("n", "INT8", (-1,))))
    answer = {"y": np.array([0.5]), "n": np.array([3]), "other": np.array([0.5]), "names": ["a"]}
    cast = declare_dtypes(model, answer)
    assert [cast[name].dtype for name in ("y", "n", "other")] == [np.float32, np.int8, np.float64]
    assert cast["names"] == ["a"]
    assert declare_dtypes(model, np.array([0.5])).dtype == np.float64
