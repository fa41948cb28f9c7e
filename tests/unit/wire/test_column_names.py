"""Scores as objects by the names of their classes, in the JSON of Azure's protocol and TensorFlow Serving's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stoker.errors import NonFiniteOutput
from stoker.settings.choices import NonFinite
from stoker.tensors import ModelTensors, NamedSignature, Signature, TensorInfo, TensorSpec
from stoker.wire.scoring import encode_each, encode_outputs
from stoker.wire.tensor_json import ColumnNames
from stoker.wire.tfs import PredictRequest, encode_predict

NAMES = ("cat", 'a "dog"', "},{")
SCORES = TensorInfo("scores", "float32", (-1, 3), labels=NAMES, as_objects=True)
LABEL = TensorInfo("label", "int64", (-1,))
NUMBERS = np.array([[0.1, 1e-30, 3], [1 / 3, 16777217, -0.0]], np.float32)
ODD = np.array([[0.5, np.nan, -np.inf], [1, 2, 3]], np.float32)


def objects(lists: bytes) -> Any:
    """The rows of an answer as objects, with their numbers as they were written."""
    rows = json.loads(lists, parse_float=str, parse_int=str, parse_constant=str)
    return [dict(zip(NAMES, row, strict=True)) for row in rows]


def read(text: bytes) -> Any:
    """An answer, with its numbers as they were written."""
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_are_written_as_in_lists(dtype: str) -> None:
    """Each name has the number of its column, digit by digit, whatever stands in the name."""
    array = np.array([[0.1, 1e-3, 3], [1 / 3, 16384, -0.0]], dtype)
    lists = encode_outputs([TensorSpec("scores", dtype, (3,))], [array])
    names = ColumnNames([SCORES])
    assert read(names.encode_outputs([TensorSpec("scores", dtype, (3,))], [array])) == objects(lists)
    assert names.encode_each(array) == [names.encode_tensors({"scores": row[None]}) for row in array]
    assert [read(text) for text in names.encode_each(array)] == [[row] for row in objects(lists)]
    assert names.encode_tensors({"scores": array[:0]}) == b"[]"


@pytest.mark.parametrize("non_finite", ["words", "null"])
def test_what_is_not_finite_is_written_as_in_lists(non_finite: NonFinite) -> None:
    """As words or null; an answer beside one with such a number is as it would be alone."""
    names = ColumnNames([SCORES])
    plain = encode_each(ODD, non_finite)
    assert [read(text) for text in names.encode_each(ODD, non_finite)] == [objects(text) for text in plain]
    assert names.encode_each(ODD, non_finite)[1] == names.encode_tensors({"scores": ODD[1:]})


def test_what_is_not_finite_is_refused() -> None:
    """Where that is an error; the number may be in another output."""
    names = ColumnNames([LABEL, SCORES])
    with pytest.raises(NonFiniteOutput):
        names.encode_tensors({"label": np.array([1, 2]), "scores": ODD}, "error")
    with pytest.raises(NonFiniteOutput):
        names.encode_tensors({"label": ODD[:, 0] * np.nan, "scores": NUMBERS}, "error")
    with pytest.raises(NonFiniteOutput):
        ColumnNames([SCORES]).encode_each(ODD, "error")


def test_other_outputs_are_lists() -> None:
    """Numbers and words beside the scores are as ever."""
    names = ColumnNames([LABEL, SCORES])
    rows = [dict(zip(NAMES, row, strict=True)) for row in NUMBERS.tolist()]
    words = np.array([b"cat", "é".encode()], object)
    answer = json.loads(names.encode_tensors({"label": words, "scores": NUMBERS.astype(np.float64)}))
    assert answer == {"label": ["cat", "é"], "scores": rows}
    specs = [TensorSpec("label", "int64", ()), TensorSpec("scores", "float64", (3,))]
    answer = json.loads(names.encode_outputs(specs, [np.array([4, 5]), NUMBERS.astype(np.float64)]))
    assert answer == {"label": [4, 5], "scores": rows}


def test_a_row_without_a_column_for_each_name_is_a_fault() -> None:
    """Scores never go under other names than their own."""
    with pytest.raises(ValueError, match=r"a row of shape \[2\] has no column for each of 3 names"):
        ColumnNames([SCORES]).encode_tensors({"scores": NUMBERS[:, :2]})


@pytest.mark.parametrize("rows", [True, False])
def test_tensorflow_servings_answers_have_objects(rows: bool) -> None:
    """In row and column format, with one output or several."""
    outputs = {"label": np.array([4, 5]), "scores": ODD}
    wanted = objects(encode_outputs([TensorSpec("scores", "float32", (3,))], [ODD]))

    def answer(*infos: TensorInfo) -> Any:
        signature = NamedSignature("", ModelTensors((), infos, batched=True))
        (value,) = read(encode_predict(PredictRequest(signature, {}, rows), outputs)).values()
        return value

    assert answer(SCORES) == wanted
    if rows:
        assert answer(LABEL, SCORES) == [
            {"label": label, "scores": row} for label, row in zip("45", wanted, strict=True)
        ]
    else:
        assert answer(LABEL, SCORES) == {"label": ["4", "5"], "scores": wanted}


def test_a_signature_says_which_outputs_are_objects() -> None:
    """For rows and for whole tensors; one that was kept before says that none is."""
    rows = Signature((), (TensorSpec("scores", "float32", (3,), labels=NAMES, as_objects=True),))
    packed = Signature((), (), "tensors", tensors=ModelTensors((), (SCORES, LABEL), batched=True))
    for signature in (rows, packed):
        assert Signature.from_json(signature.to_json()) == signature
        assert signature.model_tensors is not None
        assert signature.model_tensors.outputs[0] == SCORES
    older = packed.to_json()
    older["tensors"]["outputs"] = [entry[:5] for entry in older["tensors"]["outputs"]]
    found = Signature.from_json(older).model_tensors
    assert found is not None
    assert [(info.labels, info.as_objects) for info in found.outputs] == [(NAMES, False), ((), False)]
