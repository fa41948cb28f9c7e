"""Nested lists taken apart, against numpy's own reading of them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from tests.puppets import STEADY

from stoker.errors import InvalidInput
from stoker.tensors import TensorInfo
from stoker.wire import tfs
from stoker.wire.nested_lists import RaggedLists, elements_of, fits_kind, numbers


@STEADY
@given(
    st.sampled_from(["float64", "int64", "uint64", "bool"]).flatmap(
        lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
    )
)
def test_lists_of_an_array_are_the_array(array: np.ndarray) -> None:
    """Elements, shape and dtype are equal; axes behind one of size 0 cannot be known from lists."""
    elements = elements_of(array.tolist())
    known = array.shape.index(0) + 1 if 0 in array.shape else array.ndim
    assert elements.shape == array.shape[:known]
    read = numbers(elements, array.dtype.kind)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array.reshape(-1))


odd_lists = st.recursive(
    st.sampled_from([0, 1.5, True, None, "a", {}]), lambda inner: st.lists(inner, max_size=3), max_leaves=9
)


@STEADY
@given(odd_lists)
def test_lists_are_ragged_where_numpy_says_so(value: Any) -> None:
    """The same lists are a tensor to both, of the same shape."""
    try:
        expected = np.array(value, object).shape if _is_regular(value) else None
        assert elements_of(value).shape == expected
    except RaggedLists:
        assert not _is_regular(value)


def _is_regular(value: Any) -> bool:
    try:
        # Of other dtypes than objects numpy refuses all that is ragged.
        np.array(_counted(value))
    except ValueError:
        return False
    return True


def _counted(value: Any) -> Any:
    return [_counted(item) for item in value] if isinstance(value, list) else 0


@pytest.mark.parametrize(
    ("value", "level", "size", "expected"),
    [
        ([[1, 2], [3, 4], [5]], 1, 1, 2),
        ([[[1], [2]], [[3], [4, 5]]], 2, 2, 1),
        ([[1, [2, 3]]], 2, 2, None),
        ([[1], 2], 1, 1, None),
    ],
)
def test_ragged_list_is_reported_with_its_place(
    value: Any, level: int, size: int, expected: int | None
) -> None:
    """The error has the level, the length, and the expected length if there is one."""
    with pytest.raises(RaggedLists) as ragged:
        elements_of(value)
    assert (ragged.value.level, ragged.value.size, ragged.value.expected) == (level, size, expected)


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        ("b", [True], [1, 0.0, "a", None]),
        ("i", [-1], [True, 1.0, "1", None, {}]),
        ("u", [1], [True, 1.0]),
        ("f", [1, 1.5], [True, "1.5", None]),
    ],
)
def test_elements_are_never_coerced(kind: str, taken: list[Any], refused: list[Any]) -> None:
    """Neither texts nor booleans are numbers."""
    for item in (*taken, *refused):
        assert fits_kind(item, kind) is (item in taken and type(item) in map(type, taken))
        if fits_kind(item, kind):
            assert numbers(elements_of([item]), kind).tolist() == [item]
        else:
            with pytest.raises(TypeError):
                numbers(elements_of([item]), kind)


@pytest.mark.parametrize(("kind", "number"), [("i", 2**63), ("u", -1), ("u", 2**64), ("f", 10**400)])
def test_numbers_beyond_the_widest_dtype_overflow(kind: str, number: int) -> None:
    """One such number beside others is enough."""
    with pytest.raises(OverflowError):
        numbers(elements_of([0, number]), kind)


def test_neighbours_do_not_cost_a_large_integer_its_digits() -> None:
    """Beside integers above 2⁶³ numpy alone would take smaller ones for floats."""
    assert numbers(elements_of([2**64 - 1, 1]), "u").tolist() == [2**64 - 1, 1]


def test_columns_of_numbers_take_booleans_and_nothing() -> None:
    """As an estimator was fitted on them, which takes true for 1; texts are none, and nothing else changes."""
    read = numbers(elements_of([True, None, 0.5, False]), "f", nullable=True)
    np.testing.assert_array_equal(read, [1.0, np.nan, 0.5, 0.0])
    for items, kind, nullable in (([True], "f", False), ([True, "x"], "f", True), ([True], "i", True)):
        with pytest.raises(TypeError):
            numbers(elements_of(items), kind, nullable=nullable)


def test_the_value_that_is_no_number_is_named() -> None:
    """Not a boolean beside it, where that counts as a number."""
    with pytest.raises(InvalidInput, match='JSON Value: "x" Type: String is not of expected type: float64'):
        tfs.tensor_of([True, "x"], TensorInfo("a", "float64", (-1,), nullable=True))
