"""Request bodies: rows -> JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker_client import InvalidRows
from stoker_client.bodies import encode_json

GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


class Tensor:
    """Like torch's and TensorFlow's tensors: an object that numpy makes an array of."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return GRID


@pytest.mark.parametrize(
    "rows",
    [
        GRID,
        GRID.astype(np.float64),
        GRID.astype(np.float16),
        GRID.astype(">f4"),
        GRID.astype(">i4"),
        GRID.astype(np.longdouble),
        GRID.astype(np.uint8),
        GRID.astype(np.int64),
        GRID.astype(object),
        np.asfortranarray(GRID),
        np.repeat(GRID, 2, axis=1)[:, ::2],
        GRID.T.copy().T,
        Tensor(),
        list(GRID),
        [tuple(row) for row in GRID],
        [list(row.astype(">f8")) for row in GRID],
    ],
    ids=lambda rows: f"{type(rows).__name__}-{getattr(rows, 'dtype', '')}",
)
def test_every_kind_of_rows_gives_the_same_numbers(rows: Any) -> None:
    """Dtype, byte order, memory layout and container of the rows do not change the body."""
    assert json.loads(encode_json({"data": rows})) == {"data": [[0, 1, 2], [3, 4, 5]]}


def test_float32_keeps_its_short_form() -> None:
    """A float32 is written with the digits that identify it, not with those of its double."""
    assert encode_json({"data": np.array([[0.1, 1 / 3]], np.float32)}) == b'{"data":[[0.1,0.33333334]]}'


@pytest.mark.parametrize(
    ("rows", "sent"),
    [
        (np.array([["a", "b"]]), [["a", "b"]]),
        (np.array([[True, False]]), [[True, False]]),
        (np.array([], np.float32).reshape(0, 3), []),
        ([None, "null", {"x": 1}], [None, "null", {"x": 1}]),
        (np.array([1.5, 2.5]), [1.5, 2.5]),
        ([np.array(2.5), np.longdouble(3), np.float32(0.5)], [2.5, 3.0, 0.5]),
        (np.ma.masked_equal(np.arange(1, 3), 0), [1, 2]),
    ],
)
def test_rows_that_are_not_float_matrices(rows: Any, sent: Any) -> None:
    """Texts, booleans, nulls, objects, scalar rows and no rows at all are sent as they are."""
    assert json.loads(encode_json({"data": rows})) == {"data": sent}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("place", "wrap"),
    [
        (r"body\['data'\]\[1\]\[2\]", lambda grid: {"data": grid}),
        (r"body\['data'\]\[1\]\[2\]", lambda grid: {"data": grid.tolist()}),
        (r"body\['data'\]\[1\]\[2\]", lambda grid: {"data": list(grid)}),
        (r"body\['data'\]\[1\]\[2\]", lambda grid: {"data": grid.astype(object)}),
        (r"body\['data'\]\[1\]\[2\]", lambda grid: {"data": [tuple(row) for row in grid.astype(np.float16)]}),
        (r"body\['x'\]\['y'\]\[0\]\[1\]\[2\]", lambda grid: {"x": {"y": [grid]}}),
    ],
)
def test_non_finite_numbers_are_refused_with_their_place(bad: float, place: str, wrap: Any) -> None:
    """NaN and infinities, which orjson would send as null, are refused, and the message says where."""
    grid = GRID.copy()
    grid[1, 2] = bad
    with pytest.raises(InvalidRows, match=rf"^{place} is {bad}: only finite numbers"):
        encode_json(wrap(grid))


def test_a_number_that_overflows_to_infinity_is_refused() -> None:
    """A long double beyond the range of a double is not sent as null."""
    with pytest.raises(InvalidRows, match="is inf: only finite"):
        encode_json({"data": np.array([np.finfo(np.longdouble).max])})


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.ones((1, 2), complex), "an array of dtype complex128"),
        (np.array([b"bytes"]), r"an array of dtype \|S5"),
        ([b"bytes"], "a value of type bytes"),
        ([{1, 2}], "a value of type set"),
        ([2**64], "64-bit|too big"),
        ([{1: 2}], "key"),
        (np.ma.masked_equal(np.arange(2), 0), "a masked array, and what lies under its mask would be sent"),
        ([np.ma.masked_equal(np.arange(2.0), 0)], "a masked array"),
        ([1.0, np.ma.masked], "a masked array"),
    ],
)
def test_rows_without_a_json_form_are_refused(rows: Any, reason: str) -> None:
    """A value that JSON cannot hold is refused with its type, as a ValueError too."""
    with pytest.raises(InvalidRows, match="the rows have no JSON form") as caught:
        encode_json({"data": rows})
    assert re.search(reason, str(caught.value))
    assert isinstance(caught.value, ValueError)


_NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**64 - 1),
    st.none(),
    st.booleans(),
)
_BODIES = st.recursive(
    st.one_of(_NUMBERS, st.text(max_size=8)),
    lambda children: st.one_of(st.lists(children), st.dictionaries(st.text(max_size=4), children)),
    max_leaves=20,
)


@settings(deadline=None)
@given(_BODIES)
def test_json_values_survive(body: Any) -> None:
    """Values that JSON can hold read back unchanged, down to the last bit of a float."""
    assert json.loads(encode_json(body)) == body


@settings(deadline=None)
@given(st.lists(_BODIES, max_size=4), st.integers(0, 4), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_no_non_finite_number_slips_through(values: list[Any], place: int, bad: float) -> None:
    """One non-finite number anywhere in a list of arbitrary values is found."""
    values.insert(place, [bad])
    with pytest.raises(InvalidRows, match="only finite numbers"):
        encode_json(values)
