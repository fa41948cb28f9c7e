"""Scripts with schema decorators (CONTRACT A.3, A.4, A.8): JSON objects to arguments, and Swagger from samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.contract.in_process import InProcessServer, script

from stoker.runtimes.base import Runtime
from stoker_azure.finder import install

JSON = [("Content-Type", "application/json")]


def _decorated() -> Runtime:
    install()
    from inference_schema.parameter_types.numpy_parameter_type import NumpyParameterType
    from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType
    from inference_schema.schema_decorators import input_schema, output_schema

    @input_schema("data", NumpyParameterType(np.array([[1.0, 2.0, 3.0]])))
    @input_schema("scale", StandardPythonParameterType(2), optional=True)
    @output_schema(NumpyParameterType(np.array([1])))
    def run(data: np.ndarray, scale: int = 1, note: Any = "none") -> dict[str, Any]:
        assert isinstance(data, np.ndarray)
        return {"sums": (data.sum(axis=1) * scale).tolist(), "note": note}

    return script(run)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A script that takes rows of three numbers, optionally a scale, and a note that no decorator describes."""
    with InProcessServer(_decorated()) as running:
        yield running


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/problem+json"],
)
def test_json_of_any_kind_is_read(server: InProcessServer, content_type: str) -> None:
    """`application/json` and `application/*+json`, with parameters or without."""
    answer = server.by_both_doors(b'{"data": [[1, 2, 3]]}', [("Content-Type", content_type)])

    assert (answer.status, answer.json()) == (200, {"sums": [6.0], "note": "none"})
    assert answer.header("x-ms-run-fn-exec-ms")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "text/json", "application/x-www-form-urlencoded", None]
)
def test_other_bodies_are_refused(server: InProcessServer, content_type: str | None) -> None:
    """The answer is 415 in Azure's words, also without a content type."""
    sent = [] if content_type is None else [("Content-Type", content_type)]
    answer = server.by_both_doors(b'{"data": [[1, 2, 3]]}', sent)

    assert (answer.status, answer.json()["message"]) == (415, "Expects Content-Type to be application/json")
    assert answer.header("x-ms-run-function-failed") == "False"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "POST body is empty. Expecting a JSON dictionary."),
        (
            b'{"data": [[1, 2, 3]',
            "POST body could not be decoded as JSON: Expecting ',' delimiter: line 1 column 20 (char 19)",
        ),
        (b"[[1, 2, 3]]", "POST body should be a JSON dictionary."),
        (b'"text"', "POST body should be a JSON dictionary."),
        (b'{"Data": [[1, 2, 3]]}', "A value is not provided for the 'data' parameter."),
    ],
)
def test_bad_bodies_are_refused_in_azures_words(server: InProcessServer, body: bytes, message: str) -> None:
    """400, and the script has not failed: it did not run."""
    answer = server.by_both_doors(body, JSON)

    assert (answer.status, answer.json()["message"]) == (400, message)
    assert answer.header("x-ms-run-function-failed") == "False"
    assert answer.header("x-ms-run-fn-exec-ms") is None


@pytest.mark.parametrize(
    "body",
    [b'{"data": "\xff"}', b'{"data": ' + b"[" * 10_000, b"[" * 200_000],
    ids=["not UTF-8", "deep", "deeper"],
)
def test_unreadable_bodies_are_the_callers_fault(server: InProcessServer, body: bytes) -> None:
    """400 where the real server fails inside."""
    answer = server.by_both_doors(body, JSON)

    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")
    assert answer.json()["message"].startswith("POST body could not be decoded as JSON: ")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_of_unicode_are_read(server: InProcessServer, encoding: str) -> None:
    """json.loads recognises them from the first bytes."""
    answer = server.by_both_doors('{"data": [[1, 2, 3]], "note": "é"}'.encode(encoding), JSON)

    assert (answer.status, answer.json()["note"]) == (200, "é")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"data": [[1, 2, 3], [4, 5, 6]]}', [6.0, 15.0]),
        (b'{"data": []}', None),
        (b'{"data": [[1, 2, 3]], "scale": 10}', [60.0]),
        (b'{"data": [[1, 2, 3]], "other": 1}', [6.0]),
    ],
    ids=["any number of rows", "no rows", "optional", "further keys"],
)
def test_objects_become_arguments(server: InProcessServer, body: bytes, expected: list[float] | None) -> None:
    """By name, with defaults; the first axis may have any length, keys that nobody asked for are ignored."""
    answer = server.by_both_doors(body, JSON)

    if expected is None:
        assert answer.status == 400
    else:
        assert (answer.status, answer.json()["sums"]) == (200, expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"data": [[1, 2]]}',
            "Invalid input array: array has size 2 on dimension #1, while expected value is 3",
        ),
        (b'{"data": [1, 2, 3]}', "Invalid input array"),
        (b'{"data": [["a", "b", "c"]]}', "a"),
        (b'{"data": [[1, 2, 3]], "scale": "x"}', ""),
    ],
    ids=["columns", "rank", "letters", "scale"],
)
def test_values_that_do_not_fit_the_sample_are_the_callers_fault(
    server: InProcessServer, body: bytes, message: str
) -> None:
    """The answer is 400 with the type's message; the real server answers 500 and blames the script."""
    answer = server.by_both_doors(body, JSON)

    assert answer.status == 400
    assert message in answer.json()["message"]
    assert answer.header("x-ms-run-function-failed") == "False"


def test_a_query_becomes_arguments(server: InProcessServer) -> None:
    """GET needs no content type; each argument is read as JSON."""
    answer = server.ask("GET", "/score?data=[[1,2,3]]&scale=2&note=x")
    missing = server.ask("GET", "/score?scale=2")
    wrong = server.ask("GET", "/score?data=[[1,2]]")

    assert (answer.status, answer.json()) == (200, {"sums": [12.0], "note": "x"})
    assert (missing.status, missing.json()["message"]) == (
        400,
        "A value is not provided for the 'data' parameter.",
    )
    assert wrong.status == 400


def test_the_samples_are_in_the_description(server: InProcessServer) -> None:
    """Schemas and examples are those of the decorators; an argument that none describes is open."""
    schemas = server.ask("GET", "/swagger.json").json()["definitions"]

    given = schemas["ServiceInput"]
    assert given["example"]["data"] == [[1.0, 2.0, 3.0]]
    row = {"type": "array", "items": {"type": "number", "format": "double"}}
    assert given["properties"]["data"] == {"type": "array", "items": row, "format": "numpy.ndarray"}
    assert given["properties"]["note"] == {}
    assert schemas["ServiceOutput"]["example"] == [1]
