"""Results of `run` are divided by the rows of requests."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.unit.scripts.json_values import JSON

from stoker.scripts.result_parts import Unsplittable, divide_result


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
@STEADY
def test_parts_of_a_result_add_up_to_it(counts: list[int], data: st.DataObject) -> None:
    """Lists, tuples, arrays and JSON texts of rows are divided without loss, in order."""
    rows = data.draw(st.lists(JSON, min_size=sum(counts), max_size=sum(counts)))
    results: list[Any] = [rows, tuple(rows), json.dumps(rows), np.arange(sum(counts) * 2).reshape(-1, 2)]
    for result in results:
        parts = divide_result(result, counts)
        if isinstance(result, str):
            assert json.dumps([row for part in parts for row in json.loads(part)]) == result
            assert [len(json.loads(part)) for part in parts] == counts
            continue
        assert [type(part) for part in parts] == [type(result)] * len(counts)
        assert [len(part) for part in parts] == counts
        assert [repr(row) for part in parts for row in part] == [repr(row) for row in result]


def test_a_dict_is_divided_list_by_list() -> None:
    """All requests get empty lists and values that are no lists."""
    result = {
        "labels": ["a", "b", "c"],
        "scores": np.eye(3),
        "model": {"name": "m", "version": np.int64(3)},
        "inner": {"ids": (1, 2, 3), "unit": None},
        "warnings": [],
        "took": 0.5,
    }
    first, second = divide_result(result, [1, 2])
    assert list(first) == list(result)
    assert first["labels"] == ["a"]
    assert second["scores"].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert [part["model"] for part in (first, second)] == [result["model"]] * 2
    assert (first["inner"], second["inner"]) == (
        {"ids": (1,), "unit": None},
        {"ids": (2, 3), "unit": None},
    )
    assert (first["warnings"], second["took"]) == ([], 0.5)


@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, indent=2),
        lambda value: json.dumps(value, indent=4),
        lambda value: orjson.dumps(value).decode(),
    ],
)
def test_parts_of_a_text_have_its_notation(write: Callable[[Any], str]) -> None:
    """Each part of a result that the script wrote as JSON is the text that it would write for these rows."""
    rows = [{"label": "é", "p": 1.5e-7}, {"label": "b", "p": 0.25}, {"label": "/", "p": 1e22}]
    assert divide_result(write(rows), [1, 2]) == [write(rows[:1]), write(rows[1:])]
    assert divide_result(write({"result": rows}), [2, 1]) == [
        write({"result": rows[:2]}),
        write({"result": rows[2:]}),
    ]


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        ([1, 2], "the result has 2 entries for 3 rows"),
        (np.zeros((2, 3)), "the result has 2 entries for 3 rows"),
        (np.array(3), "the result is ndarray, which has no entry for each row"),
        (3, "the result is int, which has no entry"),
        (None, "the result is NoneType, which has no entry"),
        ({1, 2, 3}, "the result is set, which has no entry"),
        ({}, "the result is a dict without an entry for each row"),
        ({"a": 1, "b": {"c": "x"}}, "the result is a dict without an entry for each row"),
        ({"a": [1, 2, 3], "b": [1, 2]}, "the result['b'] has 2 entries for 3 rows"),
        ({"a": {"b": [1]}}, "the result['a']['b'] has 1 entries for 3 rows"),
        ({"a": [1, 2, 3], "b": object()}, "the result['b'] is object"),
        ("three", "the result is a text that is not JSON"),
        ("[1,  2, 3]", "notation that cannot be written again"),
        ("[1, 2, 123456789012345678901234567890]  ", "notation that cannot be written again"),
        ("[1, 2]", "the result has 2 entries for 3 rows"),
        ("3", "the result is int, which has no entry"),
    ],
)
def test_result_without_rows_is_not_divided(result: Any, complaint: str) -> None:
    """A result that cannot be divided into rows raises an error for the operator."""
    with pytest.raises(Unsplittable) as refused:
        divide_result(result, [1, 2])
    assert complaint in str(refused.value)
