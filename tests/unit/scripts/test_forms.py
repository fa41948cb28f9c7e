"""The forms of `run`: the arguments that requests become, and signatures that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.scripts.calling import SCRIPT_FAILED, ask, echo, message, raises

from stoker.errors import LoadFailed
from stoker.scripts.forms import request_headers
from stoker.scripts.invocation import ScriptCalls
from stoker.wire.script_requests import RequestHead, ScriptRequest
from stoker_azure.aml_request import AMLRequest
from stoker_azure.aml_response import AMLResponse

pytestmark = pytest.mark.usefixtures("without_flask")


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
    """The text is the body without a byte order mark, also of a form, and `{}` for a GET without a query."""
    calls = ScriptCalls(echo)
    assert (calls.form.kind, calls.wants_head) == ("string", False)
    assert json.loads(ask(calls, body).body) == text


def test_the_body_is_passed_by_name() -> None:
    """`run` may take the body by keyword only; further arguments keep their defaults."""

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
    """The answer is 400 with the text of the Azure inference server; `run` is not called."""
    answer = ask(ScriptCalls(raises), body)
    assert (answer.status, answer.failed, answer.exec_ns) == (400, False, None)
    assert message(answer) == f"Input cannot be decoded as UTF-8: {text}"


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
def test_a_run_that_cannot_take_a_request_is_refused(run: Callable[..., Any], text: str, raw: bool) -> None:
    """The script is refused when it is loaded; the texts are those of the Azure inference server."""
    with pytest.raises(LoadFailed) as refused:
        ScriptCalls(run, raw=raw)
    assert str(refused.value).startswith(text)
    assert refused.value.exit_code == 3


def test_a_run_may_take_the_headers() -> None:
    """The headers are a dict: names in Title-Case, repeated ones joined, those with an underscore left out."""

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


def test_a_run_gets_the_time_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header has the remaining time, at least a millisecond, not the timeout that the caller sent."""
    monkeypatch.setattr("stoker.scripts.forms.time.monotonic_ns", lambda: 1_000_000_000)
    for deadline_ns, left_ms in ((1_150_000_000, "150"), (1_000_000_001, "1"), (900_000_000, "1")):
        head = RequestHead("POST", "/score", "", [("x-request-timeout-ms", "200")], "", deadline_ns)
        assert request_headers(RequestHead.from_json(head.to_json())) == {"X-Request-Timeout-Ms": left_ms}


def test_a_request_without_a_head_has_no_headers() -> None:
    """Requests that the server makes itself to check a script have no headers."""

    def run(raw_data: str, request_headers: Any) -> Any:
        return request_headers

    assert ScriptCalls(run).answer(ScriptRequest(b"", b"")).body == b"{}"


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "OPTIONS"])
def test_a_raw_run_gets_the_request(method: str) -> None:
    """The request has its method, query, headers and the bytes of its body."""

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
    """`request_headers` is never taken for the data."""

    def run(request_headers: dict[str, str], request: AMLRequest) -> Any:
        return [request_headers["Accept"], request.method]

    assert ask(ScriptCalls(run, raw=True), b"", ("accept", "a")).body == b'["a", "POST"]'


def test_an_error_of_a_raw_run_is_500() -> None:
    """The body of a raw request need not be JSON, so it is not blamed."""
    answer = ask(ScriptCalls(raises, raw=True), b"\xff")
    assert (answer.status, message(answer)) == (500, SCRIPT_FAILED)


def test_a_raw_request_is_closed_after_its_answer() -> None:
    """Uploaded files are closed only after the response has been made."""
    closed = []

    def run(request: AMLRequest) -> Any:
        request.close = lambda: closed.append(True)  # type: ignore[method-assign]
        return AMLResponse(None, 200) if not closed else None

    assert ask(ScriptCalls(run, raw=True)).status == 200
    assert closed == [True]
