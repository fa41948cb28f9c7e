"""Calls of entry scripts: the forms of `run`, what it gets, what its callers get."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.errors import LoadFailed, ScoringTimeout
from stoker.scripts.arguments import request_headers
from stoker.scripts.invocation import ScriptCalls
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest
from stoker_azure import finder
from stoker_azure.aml_request import AMLRequest
from stoker_azure.aml_response import AMLResponse

pytestmark = pytest.mark.usefixtures("without_flask")

SCRIPT_FAILED = "An unexpected error occurred in scoring script. Check the logs for more info."
INTERNAL = "An unexpected internal error occurred. Check the logs for more info."
JSON_TYPE = ("content-type", "application/json")


def ask(
    calls: ScriptCalls, body: bytes = b"", *headers: tuple[str, str], method: str = "POST", query: str = ""
) -> ScriptAnswer:
    """The answer to a request, with a head if the script wants one."""
    head = RequestHead(method, "/score", query, list(headers), "127.0.0.1") if calls.wants_head else None
    return calls.answer(ScriptRequest(b"request-7", body, head=head))


def message(answer: ScriptAnswer) -> str:
    """The text of an error."""
    return str(json.loads(answer.body)["message"])


def echo(raw_data: Any) -> Any:
    """A `run` that returns what it gets."""
    return raw_data


def raises(raw_data: Any) -> Any:
    """A `run` that cannot use anything."""
    raise KeyError("secret")


# --- the string form ---


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"data": [1]}', '{"data": [1]}'),
        (b"", ""),
        (b"\xef\xbb\xbf[1]", "[1]"),
        ("é".encode(), "é"),
        (b"a=1&b=2", "a=1&b=2"),
        (b"{}", "{}"),
    ],
)
def test_an_undecorated_run_gets_the_body_as_text(body: bytes, text: str) -> None:
    """As it came, without a byte order mark; the body of a form too, and the `{}` of a GET without a query."""
    calls = ScriptCalls(echo)
    assert (calls.form.kind, calls.wants_head) == ("string", False)
    assert json.loads(ask(calls, body).body) == text


def test_the_body_is_passed_by_name() -> None:
    """`run` may take it by keyword only, and further arguments keep their defaults."""

    def run(*, body: str, extra: int = 3) -> list[Any]:
        return [body, extra]

    assert ask(ScriptCalls(run), b"x").body == b'["x", 3]'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\x1f\x8b\x08", "'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte"),
        (b"\xff\xfe[\x001\x00", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"\xef\xbb\xbf\xff", "'utf-8' codec can't decode byte 0xff in position 3: invalid start byte"),
    ],
)
def test_a_body_that_is_no_text_is_the_callers_fault(body: bytes, text: str) -> None:
    """400 with the text of the Azure inference server; `run` is not called and not to blame."""
    answer = ask(ScriptCalls(raises), body)
    assert (answer.status, answer.failed, answer.exec_ns) == (400, False, None)
    assert message(answer) == f"Input cannot be decoded as UTF-8: {text}"


# --- what is refused at start ---


def _not_a_method(raw_data: str) -> None: ...


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (lambda: 1, "run() needs to accept an argument for input data."),
        (lambda request_headers: 1, 'run() needs to accept an argument other than "request_headers".'),
        (lambda a, /: 1, "run() cannot accept positional-only arguments, *args, or **kwargs."),
        (lambda *a: 1, "run() cannot accept positional-only arguments, *args, or **kwargs."),
        (lambda a, **b: 1, "run() cannot accept positional-only arguments, *args, or **kwargs."),
        (lambda a, b: 1, "run() has a second argument without a default: 'b'."),
        (lambda request_headers, a, b: 1, "run() has a second argument without a default: 'b'."),
        (lambda a, *, b: 1, "run() has a second argument without a default: 'b'."),
        (type, "run() must be a Python function: "),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_a_run_that_no_request_can_be_given_to_is_refused(
    run: Callable[..., Any], text: str, raw: bool
) -> None:
    """When the script is loaded, not at each call; the texts are those of the Azure inference server."""
    with pytest.raises(LoadFailed) as refused:
        ScriptCalls(run, raw=raw)
    assert str(refused.value).startswith(text)
    assert refused.value.exit_code == 3


# --- request_headers ---


def test_a_run_may_take_the_headers() -> None:
    """A plain dict: names in Title-Case, repeated ones joined, those with an underscore left out."""

    def run(request_headers: dict[str, str], raw_data: str) -> list[Any]:
        return [raw_data, type(request_headers).__name__, request_headers]

    calls = ScriptCalls(run)
    assert (calls.form.kind, calls.wants_head) == ("string", True)
    headers = [("x-ms-request-id", "7"), ("ACCEPT", "a"), ("accept", "b"), ("my_name", "x"), ("ETag", '"é"')]
    assert json.loads(ask(calls, b"body", *headers).body) == [
        "body",
        "dict",
        {"X-Ms-Request-Id": "7", "Accept": "a,b", "Etag": '"é"'},
    ]


def test_a_run_is_told_what_is_left_of_its_callers_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said when the request came has become less since, and is at least a millisecond."""
    monkeypatch.setattr("stoker.scripts.arguments.time.monotonic_ns", lambda: 1_000_000_000)
    for deadline_ns, left_ms in ((1_150_000_000, "150"), (1_000_000_001, "1"), (900_000_000, "1")):
        head = RequestHead("POST", "/score", "", [("x-request-timeout-ms", "200")], "", deadline_ns)
        assert request_headers(RequestHead.from_json(head.to_json())) == {"X-Request-Timeout-Ms": left_ms}


def test_a_request_without_a_head_has_no_headers() -> None:
    """Requests that the server makes itself, to try a script out, have none."""

    def run(raw_data: str, request_headers: Any) -> Any:
        return request_headers

    assert ScriptCalls(run).answer(ScriptRequest(b"", b"")).body == b"{}"


# --- results ---


@pytest.mark.parametrize(
    ("result", "body"),
    [
        ([4], b"[4]"),
        ({"a": 1, "b": (2, 3)}, b'{"a": 1, "b": [2, 3]}'),
        ("h\u00e9", b'"h\\u00e9"'),
        ("[1, 2]", b'"[1, 2]"'),
        (None, b"{}"),
        (True, b"true"),
        (0.5, b"0.5"),
        (float("nan"), b"NaN"),
        (np.arange(3), b"[0, 1, 2]"),
        (np.float32(0.5), b"0.5"),
        ({"p": np.ones((1, 2))}, b'{"p": [[1.0, 1.0]]}'),
    ],
)
def test_results_are_json(result: Any, body: bytes) -> None:
    """200, and the time that `run` took."""
    answer = ask(ScriptCalls(lambda raw_data: result))
    assert (answer.status, answer.body, answer.lines, answer.failed) == (200, body, b"", False)
    assert answer.exec_ns is not None
    assert answer.exec_ns >= 0


class _Exploding:
    @property
    def headers(self) -> None:
        raise RuntimeError("headers")

    def get_data(self) -> None: ...


_endless: list[Any] = []
_endless.append(_endless)


@pytest.mark.parametrize(
    "result",
    [b"bytes", {1, 2}, object(), _endless, (n for n in "ab"), {(1, 2): 3}, _Exploding()],
    ids=["bytes", "set", "object", "circle", "generator", "key", "property that raises"],
)
def test_a_result_that_cannot_be_sent_is_an_internal_error(
    result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of the Azure inference server, but the script is said to be at fault; the log says why."""
    answer = ask(ScriptCalls(lambda raw_data: result))
    assert (answer.status, answer.failed, answer.exec_ns) == (500, True, None)
    content = json.loads(answer.body)
    assert content["message"] == INTERNAL
    (record,) = caplog.records
    assert content["error_id"] in record.message
    assert record.exc_info is not None


def test_a_response_is_sent_as_it_is() -> None:
    """Status, headers and body are the script's; 4xx is no failure, 5xx is one; the time is told."""

    def run(raw_data: str) -> AMLResponse:
        return AMLResponse(raw_data, int(raw_data), {"X-Kind": "a"})

    teapot, bad = ask(ScriptCalls(run), b"418"), ask(ScriptCalls(run), b"503")
    assert (teapot.status, teapot.body, teapot.failed) == (418, b"418", False)
    assert b"X-Kind: a\r\n" in teapot.lines
    assert teapot.exec_ns is not None
    assert (bad.status, bad.failed) == (503, True)


# --- failures ---


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        SystemExit(0),
        SystemExit("secret"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        RecursionError(),
        StopIteration(),
    ],
    ids=repr,
)
def test_an_exception_is_told_to_nobody_but_the_log(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with a text that says nothing and an id that the log has; an exit does not end the process."""

    def run(raw_data: str) -> None:
        raise error

    answer = ask(ScriptCalls(run), b"[]")
    assert (answer.status, answer.failed, answer.exec_ns) == (500, True, None)
    content = json.loads(answer.body)
    assert content == {
        "message": SCRIPT_FAILED,
        "code": "model_failed",
        "error_id": content["error_id"],
    }
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert content["error_id"] in record.message
    assert "in run" in caplog.text


def test_the_log_shows_an_exception_from_the_script_on(caplog: pytest.LogCaptureFixture) -> None:
    """How the server came to call it is nothing that its author can mend."""

    def run(raw_data: str) -> None:
        raise ValueError("no rows")

    ask(ScriptCalls(run), b"[]")
    begins, *_ = re.findall(r"Traceback \(most recent call last\):\n +File .*, in (\w+)", caplog.text)
    assert begins == "run"


def test_a_result_that_cannot_be_read_does_not_end_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """Its methods are code of the script too, and may raise what is no Exception."""

    class Cancelled(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise asyncio.CancelledError

    answer = ask(ScriptCalls(lambda raw_data: Cancelled(a=1)), b"[]")
    assert (answer.status, answer.failed) == (500, True)
    assert "the result of run() cannot be sent" in caplog.text


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"data": [1 2]}', "Expecting ',' delimiter: line 1 column 13 (char 12)"),
        (b'{"data": [1]} x', "Extra data: line 1 column 15 (char 14)"),
        (b"a=1&b=2", "Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 levels deep: line 1 column 101 (char 100)"),
        (b"[" + b"1" * 5000 + b"]", "an integer has too many digits"),
    ],
)
def test_a_script_that_cannot_read_what_is_no_json_is_not_to_blame(body: bytes, where: str) -> None:
    """Its exception becomes a 400 that says where the body is wrong."""
    answer = ask(ScriptCalls(raises), body)
    assert (answer.status, answer.failed) == (400, False)
    assert message(answer) == f"Request body is not valid JSON: {where}"
    assert json.loads(answer.body)["code"] == "malformed_body"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"\xef\xbb\xbf{}",
        b"[NaN, Infinity]",
        b'"\\ud800"',
        b"[" + b"1" * 400 + b"]",
        b"[" * 100 + b"]" * 100,
        b'["' + b"[" * 200 + b'"]',
    ],
)
def test_a_script_that_cannot_use_valid_json_is_to_blame(body: bytes) -> None:
    """What Python's reader takes is JSON here."""
    answer = ask(ScriptCalls(raises), body)
    assert (answer.status, answer.failed) == (500, True)
    assert message(answer) == SCRIPT_FAILED


def test_a_script_may_take_what_is_no_json() -> None:
    """Only a script that raises shows that JSON was expected."""
    assert ask(ScriptCalls(echo), b"not json").status == 200


def test_a_script_that_was_interrupted_says_so() -> None:
    """Whatever its body was."""

    def run(raw_data: str) -> None:
        raise ScoringTimeout(5)

    answer = ask(ScriptCalls(run), b"not json")
    assert (answer.status, answer.failed, message(answer)) == (500, True, "Scoring timeout after 5 ms")


# --- coroutines ---


def test_a_coroutine_is_awaited() -> None:
    """`async def run` gives its result; all calls of a thread share an event loop, so what is kept stays usable."""
    loops = []

    async def run(raw_data: str) -> str:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return raw_data

    calls = ScriptCalls(run)
    assert [ask(calls, b"a").body, ask(calls, b"b").body] == [b'"a"', b'"b"']
    assert loops[0] is loops[1]


def test_a_coroutine_that_raises_fails_alone() -> None:
    """The next request finds the event loop as it was."""

    async def run(raw_data: str) -> str:
        await asyncio.sleep(0)
        if raw_data == "1":
            sys.exit(3)
        return raw_data

    calls = ScriptCalls(run)
    assert [ask(calls, b"1").status, ask(calls, b"b").status] == [500, 200]


# --- the raw form ---


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "OPTIONS"])
def test_a_raw_run_gets_the_request(method: str) -> None:
    """Every method, with query, headers and the body's bytes, whatever they are."""

    def run(request: AMLRequest) -> Any:
        return [
            request.method,
            request.args.get("a"),
            request.headers["content-type"],
            list(request.get_data()),
        ]

    calls = ScriptCalls(run, raw=True)
    assert (calls.form.kind, calls.wants_head) == ("raw", True)
    answer = ask(calls, b"\xff\x00", ("Content-Type", "image/png"), method=method, query="a=1")
    assert json.loads(answer.body) == [method, "1", "image/png", [255, 0]]


def test_a_raw_run_may_take_the_headers_too() -> None:
    """`request_headers` is never the data."""

    def run(request_headers: dict[str, str], request: AMLRequest) -> Any:
        return [request_headers["Accept"], request.method]

    assert ask(ScriptCalls(run, raw=True), b"", ("accept", "a")).body == b'["a", "POST"]'


def test_a_raw_run_that_raises_is_to_blame() -> None:
    """Its body need not be JSON."""
    answer = ask(ScriptCalls(raises, raw=True), b"\xff")
    assert (answer.status, message(answer)) == (500, SCRIPT_FAILED)


def test_a_raw_request_is_closed_after_its_answer() -> None:
    """Uploaded files do not stay open; a response may still read them while it is made."""
    closed = []

    def run(request: AMLRequest) -> Any:
        request.close = lambda: closed.append(True)  # type: ignore[method-assign]
        return AMLResponse(None, 200) if not closed else None

    assert ask(ScriptCalls(run, raw=True)).status == 200
    assert closed == [True]


# --- the schema form ---


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
    """Converted by the decorators; unknown members are ignored, defaults honoured."""
    calls = ScriptCalls(schema_run)
    assert (calls.form.kind, calls.wants_head) == ("schema", True)
    assert ask(calls, b'{"data": [[1, 2]], "other": 0}', JSON_TYPE).body == b"[6.0]"
    assert ask(calls, b'{"factor": 3, "data": [[1, 2], [0, 1]]}', JSON_TYPE).body == b"[9.0, 3.0]"


def test_a_decorated_run_describes_itself(schema_run: Any) -> None:
    """The schemas of the decorators are what `swagger.json` shows."""
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
    """The encoding is told from the bytes, as `json.loads` does."""
    body = '{"data": [[1, 2]]}'.encode(encoding)
    assert ask(ScriptCalls(schema_run), body, ("Content-Type", content_type)).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-json", "text/json", "json", ""])
def test_a_decorated_run_takes_nothing_but_json(schema_run: Any, content_type: str) -> None:
    """415 with the text of the Azure inference server."""
    answer = ask(ScriptCalls(schema_run), b'{"data": [[1, 2]]}', ("content-type", content_type))
    assert (answer.status, answer.failed) == (415, False)
    assert message(answer) == "Expects Content-Type to be application/json"


def test_a_decorated_run_needs_a_content_type(schema_run: Any) -> None:
    """None at all is 415 too."""
    assert ask(ScriptCalls(schema_run), b'{"data": [[1, 2]]}').status == 415


def test_the_query_of_a_get_needs_no_content_type(schema_run: Any) -> None:
    """The frontend has made a JSON object of it."""
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
def test_values_of_another_type_are_the_callers_fault(schema_run: Any, data: bytes) -> None:
    """Whatever numpy says of them."""
    assert ask(ScriptCalls(schema_run), b'{"data": %b}' % data, JSON_TYPE).status == 400


def test_an_exception_within_a_decorated_run_is_the_scripts_fault(schema_run: Any) -> None:
    """A ValueError of the script is told apart from one of the conversion, and stays secret."""
    answer = ask(ScriptCalls(schema_run), b'{"data": [[1, 2]], "factor": 0}', JSON_TYPE)
    assert (answer.status, answer.failed, message(answer)) == (500, True, SCRIPT_FAILED)


def test_a_decorated_run_may_be_a_coroutine_and_take_headers() -> None:
    """The forms can be combined, except with rawhttp."""
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
