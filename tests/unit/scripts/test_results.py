"""Results of `run` are written as JSON."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.scripts.results import encode_result, encode_rows


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "{}"),
        ("text", '"text"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ([1, 2.5, True, None], "[1, 2.5, true, null]"),
        ({"a": {"b": []}, 1: 2}, '{"a": {"b": []}, "1": 2}'),
        ((1, 2), "[1, 2]"),
        ("é", '"\\u00e9"'),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.bool_(True), "true"),
        (np.array([[1, 2]]), "[[1, 2]]"),
        ({"classes": np.array([1], np.uint8), "p": [np.float16(0.5)]}, '{"classes": [1], "p": [0.5]}'),
        ([math.nan, math.inf, -math.inf], "[NaN, Infinity, -Infinity]"),
        (np.array([np.nan]), "[NaN]"),
    ],
)
def test_answers_are_written_as_azure_writes_them(result: Any, text: str) -> None:
    """None is an empty object, a string is encoded again, numpy becomes lists, NaN is a token."""
    assert encode_result(result).decode() == text


@pytest.mark.parametrize("result", [b"bytes", {1, 2}, object(), {"a": 1j}, np.array([1j]), {(1, 2): 3}])
def test_result_that_json_cannot_hold_is_refused(result: Any) -> None:
    """The error says the type, so that the script's author finds it."""
    with pytest.raises(TypeError, match=r"run\(\) returned|keys must be|complex"):
        encode_result(result)


def _circular() -> Iterator[tuple[str, Any, str]]:
    rows: list[Any] = [1]
    rows.append(rows)
    yield "list", rows, "contains itself"
    table: dict[str, Any] = {"a": [1]}
    table["a"].append({"b": table})
    yield "dictionary", table, "contains itself"
    array = np.empty(1, object)
    array[0] = array
    yield "array", array, "contains itself"
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    yield "depth", deep, "nested too deeply"
    yield "digits", 10**5000, "more digits"


@pytest.mark.parametrize(
    ("result", "words"), [pytest.param(result, words, id=name) for name, result, words in _circular()]
)
def test_result_that_json_cannot_hold_names_its_flaw_to_the_author(result: Any, words: str) -> None:
    """A value that contains itself, is too deep or too long has one sentence, of single results and of rows."""
    for encode in (encode_result, lambda value: encode_rows([value])):
        with pytest.raises(TypeError, match=rf"^run\(\) returned .*{words}"):
            encode(result)


rows_of_json = st.lists(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)  # fmt: skip


@STEADY
@given(rows_of_json)
def test_rows_are_written_one_by_one(rows: list[Any]) -> None:
    """Each row of a batched answer is a JSON text of its own, which reads back as the row."""
    texts = encode_rows(rows)
    assert len(texts) == len(rows)
    assert [json.loads(text) for text in texts] == rows


def test_rows_may_hold_numpy() -> None:
    """Rows may have numpy's scalars, arrays in dictionaries, and keys that are no strings."""
    rows = [{"p": np.array([0.5, 1], np.float32), "k": np.int64(3)}, np.float32(2), {1: [np.bool_(True)]}]
    assert [json.loads(text) for text in encode_rows(rows)] == [{"p": [0.5, 1.0], "k": 3}, 2.0, {"1": [True]}]


@pytest.mark.parametrize("row", [math.nan, [1.5, math.inf], {"p": -math.inf}, {"p": np.array([np.nan])}])
def test_nan_and_infinities_of_rows_are_written_as_in_answers(row: Any) -> None:
    """The tokens do not depend on batching, nor on lists or arrays."""
    (text,) = encode_rows([row])
    assert json.loads(text, parse_constant=str) == json.loads(encode_result(row), parse_constant=str)


def test_a_row_that_json_cannot_hold_is_refused() -> None:
    """The error has the name of the type."""
    with pytest.raises(TypeError, match=r"run\(\) returned set"):
        encode_rows([1, {2}])
