"""Scripts whose `run` has the decorators of `inference_schema`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.scripts.calling import JSON_TYPE, SCRIPT_FAILED, ask, message

from stoker.errors import LoadFailed
from stoker.scripts.invocation import ScriptCalls
from stoker_azure import finder

pytestmark = pytest.mark.usefixtures("without_flask")


# The real package, where it is installed, refuses to decorate a function of the same name again.
@pytest.fixture(scope="module")
def schema_run() -> Any:
    """A decorated `run` with a numpy argument and an optional one."""
    finder.install()
    from inference_schema.parameter_types.numpy_parameter_type import NumpyParameterType
    from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType
    from inference_schema.schema_decorators import input_schema, output_schema

    @input_schema("data", NumpyParameterType(np.array([[1.0, 2.0]])))
    @output_schema(StandardPythonParameterType([1.5]))
    def run(data: np.ndarray, factor: int = 2) -> Any:
        if factor == 0:
            raise ValueError("a secret of the script")
        return (data.sum(axis=1) * factor).tolist()

    return run


def test_a_decorated_run_gets_its_arguments_by_name(schema_run: Any) -> None:
    """The decorators convert the arguments; unknown members are ignored, defaults count."""
    calls = ScriptCalls(schema_run)
    assert (calls.form.kind, calls.wants_head) == ("schema", True)
    assert ask(calls, b'{"data": [[1, 2]], "other": 0}', JSON_TYPE).body == b"[6.0]"
    assert ask(calls, b'{"factor": 3, "data": [[1, 2], [0, 1]]}', JSON_TYPE).body == b"[9.0, 3.0]"


def test_a_decorated_run_describes_itself(schema_run: Any) -> None:
    """The form has the schemas of the decorators, which `swagger.json` shows."""
    form = ScriptCalls(schema_run).form
    assert form.input_schema is not None
    assert form.input_schema["example"] == {"data": [[1.0, 2.0]], "factor": ""}
    assert form.input_schema["properties"]["data"]["format"] == "numpy.ndarray"
    assert form.output_schema is not None
    assert form.output_schema["example"] == [1.5]
    assert form.swagger_versions == ("2", "3", "3.1")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json", "application/json;a=b"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_decorated_run_takes_json_in_any_encoding(
    schema_run: Any, content_type: str, encoding: str
) -> None:
    """The bytes show the encoding, as for `json.loads`."""
    body = '{"data": [[1, 2]]}'.encode(encoding)
    assert ask(ScriptCalls(schema_run), body, ("Content-Type", content_type)).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-json", "text/json", "json", ""])
def test_another_content_type_than_json_is_415_for_a_decorated_run(
    schema_run: Any, content_type: str
) -> None:
    """The answer is 415 with the text of the Azure inference server."""
    answer = ask(ScriptCalls(schema_run), b'{"data": [[1, 2]]}', ("content-type", content_type))
    assert (answer.status, answer.failed) == (415, False)
    assert message(answer) == "Expects Content-Type to be application/json"


def test_a_decorated_run_needs_a_content_type(schema_run: Any) -> None:
    """A request without a content type is 415 too."""
    assert ask(ScriptCalls(schema_run), b'{"data": [[1, 2]]}').status == 415


def test_the_query_of_a_get_needs_no_content_type(schema_run: Any) -> None:
    """The frontend has made a JSON object of the query."""
    assert ask(ScriptCalls(schema_run), b'{"data": [[1, 2]]}', method="GET").body == b"[6.0]"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "POST body is empty. Expecting a JSON dictionary."),
        (
            b"{",
            "POST body could not be decoded as JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
        ),
        (b"[[1, 2]]", "POST body should be a JSON dictionary."),
        (b"{}", "A value is not provided for the 'data' parameter."),
        (
            b'{"data": [[1, 2, 3]]}',
            "Invalid input array: array has size 3 on dimension #1, while expected value is 2",
        ),
    ],
)
def test_body_that_a_decorated_run_cannot_take_gets_400(schema_run: Any, body: bytes, text: str) -> None:
    """The error has the text of the Azure inference server, or of the library that converts."""
    answer = ask(ScriptCalls(schema_run), body, JSON_TYPE)
    assert (answer.status, answer.failed, message(answer)) == (400, False, text)


@pytest.mark.parametrize(
    "body", [b"\xff\xff", b"[" * 200_000, b'{"data": ' + b"1" * 5000 + b"}"], ids=["utf-8", "deep", "digits"]
)
def test_unreadable_json_gets_400(schema_run: Any, body: bytes) -> None:
    """JSON that Python cannot read gets 400, deep nesting without recursion."""
    answer = ask(ScriptCalls(schema_run), body, JSON_TYPE)
    assert (answer.status, answer.failed) == (400, False)
    assert message(answer).startswith("POST body could not be decoded as JSON: ")


@pytest.mark.parametrize("data", [b'[["a", 1]]', b'{"a": 1}', b"null", b"[[1, 2], [3]]"])
def test_values_of_another_type_are_400(schema_run: Any, data: bytes) -> None:
    """All errors of numpy's conversion are the caller's fault."""
    assert ask(ScriptCalls(schema_run), b'{"data": %b}' % data, JSON_TYPE).status == 400


def test_an_exception_within_a_decorated_run_is_the_scripts_fault(schema_run: Any) -> None:
    """A ValueError of the script is not taken for one of the conversion, and stays secret."""
    answer = ask(ScriptCalls(schema_run), b'{"data": [[1, 2]], "factor": 0}', JSON_TYPE)
    assert (answer.status, answer.failed, message(answer)) == (500, True, SCRIPT_FAILED)


def test_a_decorated_run_may_be_a_coroutine_and_take_headers() -> None:
    """Schemas, coroutines and headers can be combined, but not with rawhttp."""
    finder.install()
    from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType
    from inference_schema.schema_decorators import input_schema

    @input_schema("names", StandardPythonParameterType(["a"]))
    async def run_later(names: list[str], request_headers: dict[str, str]) -> Any:
        return [*names, request_headers["Content-Type"]]

    assert ask(ScriptCalls(run_later), b'{"names": ["x"]}', JSON_TYPE).body == b'["x", "application/json"]'
    with pytest.raises(
        LoadFailed, match=r"^run\(\) cannot be decorated with both @rawhttp and @input_schema$"
    ):
        ScriptCalls(run_later, raw=True)
