"""Calls to a model: their kinds, and several of them made as one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker.scripts.handle_calls import HandleCall, call_together, convert_like
from stoker.scripts.result_parts import Unsplittable


def call_of(answer: Callable[..., Any], *args: Any, handle: Any = None, **kwargs: Any) -> HandleCall:
    """A call to a model that answers like this."""
    return HandleCall(handle, "puppet", lambda _, *args, **kwargs: answer(*args, **kwargs), args, kwargs)


def rows_of(*numbers: float) -> np.ndarray:
    """Rows of one number."""
    return np.array(numbers, np.float32)[:, None]


class Pair(NamedTuple):
    """A structured answer."""

    left: Any
    right: Any


@pytest.mark.parametrize(
    "args",
    [
        (rows_of(1, 2),),
        ([rows_of(1, 2), {"b": rows_of(3, 4)}], "name", 7, None),
        (("y",), {"x": rows_of(1, 2), "threshold": np.array(0.5)}),
        (np.array(["a", "b"], object), b"x", np.float32(2), True),
    ],
)
def test_calls_that_differ_only_in_rows_are_of_one_kind(args: tuple[Any, ...]) -> None:
    """Calls of one kind may differ in rows and their shapes, not in structure, dtypes and other arguments."""
    handle = object()
    call = call_of(len, *args, handle=handle, training=False)
    assert call.kind is not None
    assert call.rows == 2
    assert call.kind == call_of(len, *args, handle=handle, training=False).kind
    other = call.on([convert_like(array, array[:1].tolist()) for array in call.arrays])
    assert (other.kind, other.rows, other.row_shapes) == (call.kind, 1, call.row_shapes)
    assert call.kind != call_of(len, *args, handle=handle, training=True).kind
    assert call.kind != call_of(len, *args, handle=object(), training=False).kind
    assert call.kind != call_of(len, *args, 1, handle=handle, training=False).kind


def test_dtypes_and_single_values_make_the_kind() -> None:
    """One caller's threshold must not be applied to another caller's rows."""
    kinds = {
        call_of(len, array, np.array(threshold)).kind
        for array in (rows_of(1), rows_of(1).astype(np.float64), rows_of(1)[0])
        for threshold in (0.5, 0.25)
    }
    assert len(kinds) == 6


@pytest.mark.parametrize(
    "args",
    [
        (),
        (1, "a"),
        (np.array(3.0),),
        (rows_of(),),
        (rows_of(1), rows_of(1, 2)),
        (rows_of(1), object()),
        (rows_of(1), {1, 2}),
        (rows_of(1), [len]),
    ],
)
def test_a_call_without_equal_rows_or_known_arguments_has_no_kind(args: tuple[Any, ...]) -> None:
    """A call with no rows, different numbers of rows, or an unknown argument is made alone."""
    assert call_of(len, *args).kind is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x * 2,
        lambda x: [x * 2, x[:, 0]],
        lambda x: (x, {"double": x * 2, "half": x / 2}),
        lambda x: Pair(x, [x]),
        lambda x: [x[:, 0], [{"a": float(row[0])} for row in x]],
    ],
)
def test_each_call_gets_its_rows_of_the_answer(answer: Callable[[np.ndarray], Any]) -> None:
    """Each call gets the answer that it would get alone, in the same structure."""
    calls = [call_of(answer, rows_of(*numbers)) for numbers in ([1, 2], [3], [4, 5, 6])]
    for call, result in zip(calls, call_together(calls), strict=True):
        expected = call.make()
        assert type(result) is type(expected)
        assert repr(result) == repr(expected)


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x.sum(),
        lambda x: x[:1],
        lambda x: None,
        lambda x: [],
        lambda x: [x, x.mean(axis=0)],
        lambda x: {"a": x, "b": 1.0},
        iter,
    ],
)
def test_an_answer_without_rows_is_not_divided(answer: Callable[[np.ndarray], Any]) -> None:
    """Calls of such a model cannot be made together."""
    with pytest.raises(Unsplittable, match="the model answers with"):
        call_together([call_of(answer, rows_of(1, 2)), call_of(answer, rows_of(3))])
