"""MLflow's bodies for estimators: each form of a table becomes the inputs that the estimator was fitted on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stoker.errors import InvalidInput, MalformedBody, RequestError, UnsupportedEncoding
from stoker.tensors import ModelTensors, NamedSignature, TensorInfo
from stoker.wire.mlflow import Invocation, decode_invocation

ROWS = [[1.0, 2.0], [3.0, 4.0]]


def estimator(*inputs: TensorInfo, table: tuple[str, ...] = ()) -> NamedSignature:
    output = TensorInfo("predict", "float64", (-1,))
    return NamedSignature(
        "predict", ModelTensors(inputs, (output,), batched=True, estimator=True, table=table)
    )


NAMELESS = estimator(TensorInfo("data", "float64", (-1, 2), nullable=True))
NAMED = estimator(TensorInfo("data", "float64", (-1, 2), nullable=True, labels=("a", "b")))
HOUSES = estimator(
    TensorInfo("size", "float64", (-1,), nullable=True),
    TensorInfo("city", "string", (-1,), nullable=True),
    TensorInfo("old", "bool", (-1,), nullable=True),
    table=("size", "city", "old"),
)


def decoded(signature: NamedSignature, body: Any) -> Invocation:
    if isinstance(body, str):
        return decode_invocation(signature, body.encode(), is_csv=True)
    return decode_invocation(signature, json.dumps(body).encode())


@pytest.mark.parametrize("signature", [NAMED, NAMELESS], ids=["named", "nameless"])
@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": {"columns": ["a", "b"], "data": ROWS}},
        {"dataframe_split": {"index": [0, 1], "columns": ["a", "b"], "data": ROWS}},
        {"dataframe_split": {"data": ROWS}},
        {"dataframe_records": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]},
        {"instances": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]},
        {"instances": ROWS},
        {"instances": [{"data": row} for row in ROWS]},
        {"inputs": ROWS},
        {"inputs": ROWS, "params": {}},
        {"inputs": {"data": ROWS}},
        {"inputs": {"a": [1, 3], "b": [2, 4]}},
        {"columns": ["a", "b"], "data": ROWS},
        {"input_data": {"columns": ["a", "b"], "index": [0, 1], "data": ROWS}},
        {"input_data": ROWS},
        "a,b\n1,2\n3,4\n",
        'a,"b"\r\n1,2.0\r\n3,4e0',
    ],
    ids=str,
)
def test_table_in_each_form_becomes_the_rows(signature: NamedSignature, body: Any) -> None:
    """As MLflow's server documents them, with or without names of columns in the estimator."""
    invocation = decoded(signature, body)
    assert np.asarray(invocation.predict.inputs["data"]).tolist() == ROWS
    assert invocation.bare == ("input_data" in body)


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": {"columns": ["b", "a"], "data": [[2, 1], [4, 3]]}},
        {"dataframe_records": [{"b": 2, "a": 1}, {"a": 3, "b": 4}]},
        {"inputs": {"b": [2, 4], "a": [1, 3]}},
        "b,a\n2,1\n4,3\n",
    ],
    ids=str,
)
def test_columns_with_names_may_come_in_any_order(body: Any) -> None:
    """They are the estimator's by their names."""
    assert np.asarray(decoded(NAMED, body).predict.inputs["data"]).tolist() == ROWS


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": {"columns": ["old", "size", "city"], "data": [[True, 1.5, "Rome"], [False, None, "Bonn"]]}},  # noqa: E501
        {"dataframe_split": {"data": [[1.5, "Rome", True], [None, "Bonn", False]]}},
        {"inputs": {"size": [1.5, None], "city": ["Rome", "Bonn"], "old": [True, False]}},
        {"inputs": [[1.5, "Rome", True], [None, "Bonn", False]]},
        "old,size,city,owner\nTrue,1.5,Rome,x\nfalse,NA,Bonn,y\n",
    ],
    ids=str,
)  # fmt: skip
def test_table_with_texts_in_each_form_becomes_the_columns(body: Any) -> None:
    """Each cell has the type of its column, other columns are left out, and nothing is a missing value."""
    inputs = decoded(HOUSES, body).predict.inputs
    assert np.asarray(inputs["city"]).tolist() == [b"Rome", b"Bonn"]
    assert np.asarray(inputs["old"]).tolist() == [True, False]
    assert np.array_equal(np.asarray(inputs["size"]), [1.5, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("signature", "body", "error", "message"),
    [
        (NAMED, {"dataframe_split": {"columns": ["a", "c"], "data": ROWS}}, InvalidInput, "must be the inputs"),
        (NAMED, {"dataframe_split": ROWS}, InvalidInput, "A table must be an object"),
        (NAMED, {"inputs": {"a": [1], "b": [1, 2]}}, InvalidInput, "lists of the same length"),
        (NAMELESS, {"dataframe_records": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]}, InvalidInput, "in the same order"),
        (NAMELESS, {"dataframe_split": {"columns": ["a"], "data": [[1], [2]]}}, RequestError, "data"),
        (NAMELESS, {"inputs": ROWS, "params": {"x": 1}}, InvalidInput, "takes no params"),
        (NAMELESS, {"inputs": ROWS, "instances": ROWS}, MalformedBody, "exactly one of"),
        (NAMELESS, "a,b\n1\n", MalformedBody, "Line 2 of the CSV has 1 values, its head 2"),
        (NAMELESS, 'a,b\n"1,2\n', MalformedBody, "is no CSV"),
        (NAMELESS, "a,b\n1,inf\n", RequestError, '"inf" Type: String'),
        (NAMELESS, "a,b\nx,2\n", RequestError, '"x" Type: String'),
        (HOUSES, "size,city,old\n1,Rome,perhaps\n", RequestError, '"perhaps" Type: String'),
    ],
)  # fmt: skip
def test_table_that_does_not_fit_is_refused(
    signature: NamedSignature, body: Any, error: type[Exception], message: str
) -> None:
    """The error names the fault."""
    with pytest.raises(error, match=message):
        decoded(signature, body)


def test_csv_for_a_model_of_arrays_is_refused() -> None:
    """A table has no shape of theirs."""
    tensors = ModelTensors((TensorInfo("x", "float32", (-1, 2)),), (), batched=True)
    with pytest.raises(UnsupportedEncoding, match="takes arrays"):
        decoded(NamedSignature("predict", tensors), "a,b\n1,2\n")
