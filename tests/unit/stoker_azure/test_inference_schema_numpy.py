"""Descriptions of numpy arrays: conversion, refusals and schemas."""

import json
from typing import Any

import numpy as np
import pytest

from stoker_azure.inference_schema.decorators import input_schema
from stoker_azure.inference_schema.numpy_arrays import NumpyParameterType

RECORDS = np.array([(1, 2.5, "a")], dtype=[("i", "i4"), ("f", "f8"), ("s", "U5")])
NESTED = np.array([((1, 2), 3)], dtype=[("p", [("x", "i4"), ("y", "i8")]), ("z", "f4")])
PAIRS = np.array([([1, 2],)], dtype=[("v", "i4", (2,))])


def convert(sample: np.ndarray, value: Any, **options: bool) -> np.ndarray:
    """The argument of `run` for a value."""

    @input_schema("data", NumpyParameterType(sample, **options))
    def run(data: Any) -> Any:
        return data

    converted: np.ndarray = run(data=value)
    return converted


@pytest.mark.parametrize(
    ("sample", "value"),
    [
        (np.zeros((1, 2)), [[1, 2], [3, 4], [5, 6]]),
        (np.zeros((1, 2), np.float32), [["1.5", True]]),
        (np.zeros((4, 2, 3), np.uint8), [[[1, 2, 3], [4, 5, 6]]]),
        (np.zeros(1, np.int64), []),
        (np.array(["abc"]), ["a", "bc"]),
        (np.array([None]), [1, "a", None]),
    ],
)
def test_lists_become_arrays_of_the_dtype(sample: np.ndarray, value: list[Any]) -> None:
    """Any number of rows is taken; numpy converts the items."""
    array = convert(sample, value)
    assert array.dtype == sample.dtype
    assert array.tolist() == np.array(value, sample.dtype).tolist()


def test_nulls_are_not_a_number() -> None:
    """As numpy has it, for floats."""
    assert np.isnan(convert(np.zeros((1, 2)), [[None, 1]])).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("shape", "value", "complaint"),
    [
        (
            (2, 3),
            [[1, 2]],
            "Invalid input array: array has size 2 on dimension #1, while expected value is 3",
        ),
        ((1, 2, 3), [[[1, 2]] * 2], "array has size 2 on dimension #2, while expected value is 3"),
        (
            (1, 2),
            [1, 2],
            r"Invalid input array: an array with 2 dimensions is expected; input has 1 \[shape \(2,\)\]",
        ),
        ((1,), [[1]], r"an array with 1 dimensions is expected; input has 2 \[shape \(1, 1\)\]"),
        ((1, 2), [], r"input has 1 \[shape \(0,\)\]"),
        ((1, 2), [[1, 2], [3]], "inhomogeneous shape"),
        ((1, 2), [["a", 1]], "could not convert string to float: 'a'"),
        ((1, 2), [[{}, 1]], "Invalid input for the 'data' parameter: float"),
        ((1, 2), {"a": 1}, "Invalid input format: expected an array of items."),
        ((1, 2), "text", "Invalid input format: expected an array of items."),
        ((1, 2), None, "Invalid input format: expected an array of items."),
    ],
)
def test_array_of_another_shape_is_refused(shape: tuple[int, ...], value: Any, complaint: str) -> None:
    """A wrong rank or dimension raises ValueError with the words of the real package."""
    with pytest.raises(ValueError, match=complaint):
        convert(np.zeros(shape), value)


def test_numbers_beyond_the_dtype_are_refused() -> None:
    """They do not wrap around."""
    with pytest.raises(
        ValueError, match=r"Invalid input for the 'data' parameter: .* out of bounds for uint8"
    ):
        convert(np.zeros(1, np.uint8), [300])


def test_an_array_is_passed_as_it_is() -> None:
    """It is not checked, as the caller is Python code."""
    array = np.array(["x"])
    assert convert(np.zeros((1, 2)), array) is array
    assert NumpyParameterType(np.zeros((1, 2))).deserialize_input(array) is array


def test_checks_can_be_turned_off() -> None:
    """Each by itself."""
    assert convert(np.zeros((1, 2)), [1, 2, 3], enforce_shape=False).dtype == np.float64
    free = convert(np.zeros((1, 2)), [[1, 2]], enforce_column_type=False)
    assert free.dtype == np.int64
    with pytest.raises(ValueError, match="dimension #1"):
        convert(np.zeros((1, 2)), [["a"]], enforce_column_type=False)


@pytest.mark.parametrize(
    ("sample", "value", "expected"),
    [
        (RECORDS, [{"i": 1, "f": 2, "s": "q"}, [3, 4, "r"]], [(1, 2.0, "q"), (3, 4.0, "r")]),
        (NESTED, [{"p": {"x": 1, "y": 2}, "z": 3}, [[4, 5], 6]], [((1, 2), 3.0), ((4, 5), 6.0)]),
        (
            RECORDS.reshape(1, 1),
            [[[1, 2, "a"]], [{"i": 3, "f": 4, "s": "b"}]],
            [[(1, 2.0, "a")], [(3, 4.0, "b")]],
        ),
    ],
)
def test_records_are_objects_or_lists(sample: np.ndarray, value: Any, expected: Any) -> None:
    """By name or in the order of the fields, also within each other and in more than one dimension."""
    assert convert(sample, value).tolist() == expected


def test_fields_that_are_arrays() -> None:
    """A field may have a shape of its own."""
    assert convert(PAIRS, [{"v": [5, 6]}])["v"].tolist() == [[5, 6]]


@pytest.mark.parametrize("item", [{"i": 1}, [1, 2], "text", 5, None, {"I": 1, "f": 2, "s": "q"}])
def test_item_that_is_no_record_is_refused(item: Any) -> None:
    """The message names the fields."""
    with pytest.raises(ValueError, match="an item is no record of the fields i, f, s"):
        convert(RECORDS, [item])


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("D", ["2026-01-02"], "2026-01-02"),
        ("s", ["2026-01-02T03:04:05"], "2026-01-02T03:04:05"),
        ("s", ["2026-01-02 03:04:05,000000"], "2026-01-02T03:04:05"),
        ("ns", [None], "NaT"),
    ],
)
def test_times(unit: str, value: list[Any], expected: str) -> None:
    """ISO 8601, and the form that the schema shows."""
    sample = np.array(["2026-01-01"], f"datetime64[{unit}]")
    assert str(convert(sample, value)[0]) == expected
    assert str(convert(np.array([[sample[0]] * 2]), [value * 2])[0, 1]) == expected


@pytest.mark.parametrize("value", [["text"], [5], [["2026-01-02"]], [{}]])
def test_value_that_is_no_time_is_refused(value: Any) -> None:
    """Times have to be texts, as a number has no unit."""
    with pytest.raises(ValueError, match=r"\S"):
        convert(np.array(["2026-01-01"], "datetime64[D]"), value)


def test_time_differences() -> None:
    """A whole number and a unit; null is none."""
    sample = np.array([5], "timedelta64[s]")
    assert (
        convert(sample, ["2 minutes", "3 Seconds", None]).tolist()
        == convert(sample, np.array([120, 3, "NaT"], "timedelta64[s]")).tolist()
    )


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("5", r"specified: 5\. Format should be <value> <time_unit_code>"),
        ("5 fortnights", r"specified: 5 fortnights\. Unrecognized time unit code"),
        ("x days", "invalid literal for int"),
    ],
)
def test_value_that_is_no_time_difference_is_refused(value: str, complaint: str) -> None:
    """The error has the words of the real package."""
    with pytest.raises(ValueError, match=complaint):
        convert(np.array([5], "timedelta64[D]"), [value])


def item(**schema: Any) -> dict[str, Any]:
    """An array of this type."""
    return {"type": "array", "items": schema}


INT = {"type": "integer", "format": "int32"}


@pytest.mark.parametrize(
    ("sample", "schema", "example"),
    [
        (np.array([1, 2], np.int8), item(type="integer", format="int8"), [1, 2]),
        (np.array([1], np.uint64), item(type="integer", format="uint64"), [1]),
        (np.array([1.5], np.float16), item(type="number", format="float"), [1.5]),
        (np.array([[1.5]], np.float32), item(**item(type="number", format="float")), [[1.5]]),
        (np.zeros((1, 1, 2)), item(**item(**item(type="number", format="double"))), [[[0.0, 0.0]]]),
        (np.zeros((0, 3)), item(**item(type="number", format="double")), []),
        (np.array([True, False]), item(type="boolean"), [True, False]),
        (np.array(["a"]), item(type="string"), ["a"]),
        (np.array([b"ab"]), item(type="string", format="binary"), ["YWI="]),
        (np.array([1, None], object), item(type="object"), ["1", "None"]),
        (
            np.array(["2026-01-02"], "M8[D]"),
            item(type="string", format="date-time"),
            ["2026-01-02 00:00:00,000000"],
        ),
        (
            np.array(["2026-01-02T03:04:05.5", "NaT"], "M8[ns]"),
            item(type="string", format="date-time"),
            ["2026-01-02 03:04:05,500000", "NaT"],
        ),
        (np.array([5], "m8[D]"), item(type="string", format="timedelta"), ["5 days"]),
        (
            RECORDS,
            item(
                type="object",
                properties={"i": INT, "f": {"type": "number", "format": "double"}, "s": {"type": "string"}},
            ),
            [{"i": 1, "f": 2.5, "s": "a"}],
        ),
        (
            NESTED,
            item(
                type="object",
                properties={
                    "p": {
                        "type": "object",
                        "properties": {"x": INT, "y": {"type": "integer", "format": "int64"}},
                    },
                    "z": {"type": "number", "format": "float"},
                },
            ),
            [{"p": {"x": 1, "y": 2}, "z": 3.0}],
        ),
        (PAIRS, item(type="object", properties={"v": item(**INT)}), [{"v": [1, 2]}]),
    ],
)
def test_schemas(sample: np.ndarray, schema: dict[str, Any], example: list[Any]) -> None:
    """Arrays nested as the dimensions are; the whole sample is the example, which JSON can hold."""
    got = NumpyParameterType(sample).input_to_swagger()
    assert got == {**schema, "example": example, "format": "numpy.ndarray"}
    json.dumps(got)


@pytest.mark.parametrize(
    "sample",
    [RECORDS, NESTED, PAIRS, np.array([True, False]), np.array(["2026-01-02T03:04:05.5"], "M8[ms]"),
     np.array([5], "m8[h]"), np.zeros((2, 3), np.float32), np.array(["a"])],
)  # fmt: skip
def test_an_example_is_a_valid_value(sample: np.ndarray) -> None:
    """The example of a schema can be sent, and gives the sample."""
    value = json.loads(json.dumps(NumpyParameterType(sample).input_to_swagger()["example"]))
    assert repr(convert(sample, value)) == repr(sample)


def test_one_long_text_does_not_cost_memory_for_all() -> None:
    """Numpy makes each text as long as the longest, so 44 kB would take 610 MB; the caller gets an error instead."""
    sample = np.array(["a"])
    with pytest.raises(ValueError, match="a text of 20000 characters among 8001 items"):
        convert(sample, ["a" * 20_000] + [""] * 8000, enforce_column_type=False)
    with pytest.raises(ValueError, match="a text of 20000 characters among 8001 items"):
        convert(sample, ["a" * 20_000] + [1.5] * 8000, enforce_column_type=False)
    assert convert(sample, ["a" * 900] + ["b"] * 999, enforce_column_type=False).shape == (1000,)
    assert convert(np.zeros((1, 2)), [["a", 1], ["b", 2]], enforce_column_type=False).tolist() == [
        ["a", "1"],
        ["b", "2"],
    ]
    assert convert(sample, ["a" * 20_000, *[None] * 8000], enforce_column_type=False).dtype == object


def test_samples_that_cannot_be_described() -> None:
    """No array, no dimension, a dtype that Swagger has no word for."""
    with pytest.raises(TypeError, match="must provide a sample Numpy array"):
        NumpyParameterType([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no dimension"):
        input_schema("data", NumpyParameterType(np.array(1)))
    with pytest.raises(TypeError, match="do not support extracting schema from data of type complex128"):
        input_schema("data", NumpyParameterType(np.array([1j])))
