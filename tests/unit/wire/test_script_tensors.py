"""Tensors by which scripts that yield are reached: to bodies, and from pieces."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stoker.errors import StokerError
from stoker.wire.script_tensors import body_of, outputs_of


def texts(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def test_a_body_is_taken_as_it_is() -> None:
    """This holds for JSON and other bytes."""
    assert body_of("m", {"raw_data": texts(b"\xff no JSON")}) == b"\xff no JSON"
    assert body_of("m", {"raw_data": texts(b"{}").reshape(1, 1)}) == b"{}"


def test_other_inputs_are_the_members_of_an_object() -> None:
    """Single elements as they are, others as lists of their shapes; no inputs make an empty object."""
    inputs = {
        "prompt": texts("é".encode()),
        "stop": texts(b"a", b"b"),
        "stream": np.array([[True]]),
        "grid": np.array([[1, 2], [3, 4]], np.int32),
        "top_p": np.array([0.5], np.float16),
    }
    assert json.loads(body_of("m", inputs)) == {
        "prompt": "é",
        "stop": ["a", "b"],
        "stream": True,
        "grid": [[1, 2], [3, 4]],
        "top_p": 0.5,
    }
    assert body_of("m", {}) == b"{}"


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"raw_data": texts(b"a", b"b")}, "invalid_input"),
        ({"raw_data": np.zeros(1)}, "invalid_input"),
        ({"raw_data": texts(b"a"), "other": np.zeros(1)}, "invalid_input"),
        ({"text": texts(b"\xff")}, "malformed_body"),
        ({"many": np.zeros((1 << 16) + 1, np.int8)}, "body_too_large"),
    ],
)
def test_tensors_that_make_no_body_are_refused(inputs: dict[str, np.ndarray], code: str) -> None:
    """Texts outside UTF-8 and too many objects are refused with the reason."""
    with pytest.raises(StokerError) as error:
        body_of("m", inputs)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("member", "dtype", "listed"),
    [
        ("é", object, ["é".encode()]),
        ("\ud800", object, [b"?"]),
        (True, np.bool_, [True]),
        (7, np.int64, [7]),
        (0.5, np.float64, [0.5]),
        ([1, 2], np.int64, [1, 2]),
        (["a", "b"], object, [b"a", b"b"]),
        ([1, 0.5], object, [b"[1, 0.5]"]),
        (1 << 63, object, [b"9223372036854775808"]),
        ([], object, [b"[]"]),
        (None, object, [b"null"]),
        ({"a": 1}, object, [b'{"a": 1}']),
    ],
)
def test_members_of_pieces_become_tensors(member: Any, dtype: type, listed: list[Any]) -> None:
    """They have the datatype of their JSON, or are its text if it has none."""
    array = outputs_of(json.dumps({"x": member}).encode(), ["x"])["x"]
    assert (array.dtype, array.tolist()) == (np.dtype(dtype), listed)


def test_outputs_of_a_piece_are_its_members() -> None:
    """The output `piece` is its JSON; missing members are left out, and all members of pieces that are no objects."""
    assert outputs_of(b"[1, 2]", ["piece"])["piece"].tolist() == [b"[1, 2]"]
    assert list(outputs_of(b'{"a": 1}', ["b", "piece", "a"])) == ["piece", "a"]
    assert outputs_of(b"3", ["a"]) == {}
