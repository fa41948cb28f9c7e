"""Answers: replies of the server -> JSON, arrays, errors."""

from __future__ import annotations

import math
import pickle
from typing import Any

import httpx
import numpy as np
import pytest

import stoker_client
from stoker_client import (
    ErrorAnswer,
    Overloaded,
    RequestRefused,
    ServiceFailed,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from stoker_client.answers import Reply, as_arrays, decode_json, error_of, join_answers


def reply(status: int, content: bytes = b"", **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, content, httpx.Headers(names))


@pytest.mark.parametrize(
    ("answer", "dtype", "shape"),
    [
        ([7, 2], np.int64, (2,)),
        ([[0.5, 1], [2, 3]], np.float64, (2, 2)),
        ([True, False], np.bool_, (2,)),
        ([[[1], [2]]], np.int64, (1, 2, 1)),
        ([float("nan")], np.float64, (1,)),
        ([2**63], np.uint64, (1,)),
        ([[]], np.float64, (1, 0)),
    ],
)
def test_numeric_rectangular_lists_become_arrays(answer: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    """Classes become int64, logits float64; the shape is that of the list."""
    array = as_arrays(answer)
    assert (array.dtype, array.shape) == (dtype, shape)
    np.testing.assert_array_equal(array, answer)


@pytest.mark.parametrize(
    "answer",
    [[[1], [2, 3]], [1, None], [1, "a"], ["a"], [{"class": 1}], [[1], 2], [2**64], 5, "text", None, True],
    ids=repr,
)
def test_answers_that_are_no_arrays_stay_json(answer: Any) -> None:
    """Ragged, mixed and non-numeric answers, and those that are no list, come as they are."""
    assert as_arrays(answer) is answer


def test_several_outputs_become_arrays_by_name() -> None:
    """Each output of an answer with names is converted by itself."""
    answer = as_arrays({"classes": [1, 2], "texts": ["a", "b"]})
    assert answer["classes"].dtype == np.int64
    assert answer["texts"] == ["a", "b"]


def test_python_tokens_for_non_finite_numbers_are_read() -> None:
    """An entry script may answer NaN and Infinity, which are Python's JSON but nobody else's."""
    nan, infinity = decode_json(reply(200, b"[NaN, Infinity]"))
    assert math.isnan(nan)
    assert infinity == math.inf


def test_no_content_is_none() -> None:
    """Status 204 has no body to read."""
    assert decode_json(reply(204)) is None


def test_an_answer_that_is_not_json_is_unexpected() -> None:
    """A proxy's page with status 200 is reported with its beginning and the request's id."""
    with pytest.raises(UnexpectedAnswer, match=r"not JSON: <html>\s*hello") as caught:
        decode_json(reply(200, b"<html>\n hello" + b"x" * 1000, x_ms_request_id="r-9"))
    assert caught.value.request_id == "r-9"
    assert len(str(caught.value)) < 300


def test_a_redirect_is_not_followed() -> None:
    """A redirect could carry the key elsewhere, so it is an error that names the target."""
    assert "https://elsewhere/score" in str(error_of(reply(308, location="https://elsewhere/score")))


def test_every_error_of_the_server_has_its_class() -> None:
    """The client has a class of the same name for each error that the server can answer with."""
    from stoker.errors import RequestError, ServingError

    errors = [*RequestError.__subclasses__(), *ServingError.__subclasses__()]
    assert len(errors) > 10
    for server_error in errors:
        body = f'{{"message": "why", "code": "{server_error.code}"}}'.encode()
        error = error_of(reply(server_error.status, body))
        assert error is not None
        assert type(error).__name__ == server_error.__name__
        assert (error.message, error.status, error.code) == ("why", server_error.status, server_error.code)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, Unauthorized),
        (403, RequestRefused),
        (429, Overloaded),
        (502, ServiceFailed),
        (503, Unavailable),
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"<html>busy</html>", b"[1]", b'{"message": 5}', b'{"error": "busy"}']
)
def test_answers_of_others_are_classified_by_status(
    status: int, expected: type[ErrorAnswer], content: bytes
) -> None:
    """An error without Stoker's body, such as a proxy's, still has a class and a message."""
    error = error_of(reply(status, content))
    assert type(error) is expected
    assert error.code is None
    assert error.message


def test_an_error_says_all_it_knows() -> None:
    """The text has the server's words, status, code and request id, so that a log line suffices."""
    body = b'{"message": "row 3 has 12 numbers", "code": "invalid_input"}'
    error = error_of(reply(422, body, x_ms_request_id="r-7"))
    assert str(error) == "row 3 has 12 numbers (422 invalid_input, request id r-7)"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3), (" 0 ", 0), ("-1", None), ("1.5", None), ("Fri, 31 Dec 1999 23:59:59 GMT", None)],
)
def test_retry_after_is_whole_seconds(value: str, seconds: int | None) -> None:
    """Whole seconds are honoured; any other form is as if the header were absent."""
    error = error_of(reply(503, b"", retry_after=value))
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == seconds


def test_errors_can_be_pickled() -> None:
    """An error raised in a worker process reaches the parent with its attributes."""
    error = error_of(reply(503, b'{"message": "full", "code": "overloaded"}', retry_after="2"))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is Overloaded
    assert (copy.message, copy.status, copy.code, copy.retry_after_s) == ("full", 503, "overloaded", 2)


def test_batches_join_as_one_request_would_answer() -> None:
    """Arrays of equal row shape are joined by rows, with any numeric types."""
    joined = join_answers([as_arrays([[1, 2]]), as_arrays([[0.5, 1.5], [3, 4]])], [1, 2])
    np.testing.assert_array_equal(joined, [[1, 2], [0.5, 1.5], [3, 4]])


def test_batches_of_different_forms_join_as_json() -> None:
    """Where the rows of one batch are ragged, all rows come as plain JSON."""
    assert join_answers([as_arrays([[1, 2]]), as_arrays([[1], [2, 3]])], [1, 2]) == [[1, 2], [1], [2, 3]]


def test_named_outputs_join_by_name() -> None:
    """Several outputs are put together output by output."""
    joined = join_answers([as_arrays({"a": [1], "b": ["x"]}), as_arrays({"a": [2], "b": ["y"]})], [1, 1])
    np.testing.assert_array_equal(joined["a"], [1, 2])
    assert joined["b"] == ["x", "y"]


@pytest.mark.parametrize(
    "answers",
    [
        [[1, 2, 3], [1]],
        ["done", "done"],
        [{"a": [1, 2]}, {"b": [1]}],
        [{"a": [1, 2]}, [1]],
        [{"mean": 0.5}, {"mean": 0.7}],
    ],
    ids=repr,
)
def test_answers_that_are_not_one_entry_a_row_do_not_join(answers: list[Any]) -> None:
    """Joining other answers would attribute them to the wrong rows, so it is refused."""
    with pytest.raises(UnexpectedAnswer, match="joined"):
        join_answers([as_arrays(answer) for answer in answers], [2, 1])


def test_the_package_exports_every_error() -> None:
    """Each class of the error tree can be imported from the package itself."""
    assert set(stoker_client.errors.__all__) <= set(stoker_client.__all__)
