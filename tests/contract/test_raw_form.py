"""Scripts under `@rawhttp` (CONTRACT A.4 to A.6, A.8): the request itself in, any response out."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.contract.in_process import APP, DOORS, InProcessServer, script

from stoker_azure.aml_request import AMLRequest
from stoker_azure.aml_response import AMLResponse

HTML = "text/html; charset=utf-8"

answers: dict[str, Callable[[AMLRequest], Any]] = {
    "binary in": lambda request: AMLResponse(len(request.get_data()), 200, json_str=True),
    "echo": lambda request: AMLResponse(request.get_data(), 200),
    "image": lambda request: AMLResponse(request.get_data(), 200, {"Content-Type": "image/png"}),
    "no content": lambda _: AMLResponse(None, 204),
    "created": lambda _: AMLResponse({"a": 1}, 201, json_str=True),
    "unavailable": lambda _: AMLResponse("bad", 503),
    "bad": lambda _: AMLResponse("bad", 400),
    "a list": lambda _: [1, 2, 3],
    "nothing": lambda _: AMLResponse(None, 200),
    "said to have failed": lambda _: AMLResponse("x", 200, run_function_failed=True),
    "raise": lambda _: 1 / 0,
    "headers": lambda _: AMLResponse("x", 200, {"X-Multi": "a, b", "X-One": "1"}),
    "dates": lambda _: AMLResponse("x", 200, {"Expires": "Thu, 01 Dec 1994 16:00:00 GMT"}),
    "lower case": lambda _: AMLResponse("x", 200, {"content-type": "text/plain"}),
    "query": lambda request: [request.args.get("a", type=int), request.args.getlist("b")],
    "twice": lambda request: [request.get_data().decode(), request.get_data(as_text=True)],
    "address": lambda request: [request.url, request.remote_addr, request.headers["X-Custom"]],
    "coding": lambda request: [request.headers.get("Content-Encoding"), len(request.get_data())],
    "a bad header": lambda _: AMLResponse("x", 200, {"X Bad": "1"}),
    "a bad status": lambda _: AMLResponse("x", 199),
}


def run(request: AMLRequest) -> Any:
    """Answer as the header X-Do says."""
    return answers[request.headers["X-Do"]](request)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """One script with all of these answers."""
    with InProcessServer(script(run, raw=True)) as running:
        yield running


@pytest.mark.parametrize(
    ("do", "status", "content_type", "body", "failed"),
    [
        ("binary in", 200, "application/json", b"4", "False"),
        ("echo", 200, HTML, b"\x89PNG", "False"),
        ("image", 200, "image/png", b"\x89PNG", "False"),
        ("no content", 204, "application/json", b"", "False"),
        ("created", 201, "application/json", b'{"a": 1}', "False"),
        ("unavailable", 503, HTML, b"bad", "True"),
        ("bad", 400, HTML, b"bad", "False"),
        ("a list", 200, "application/json", b"[1, 2, 3]", "False"),
        ("nothing", 200, "application/json", b"{}", "False"),
        ("said to have failed", 200, HTML, b"x", "True"),
    ],
)
def test_responses_are_sent_as_they_are(
    server: InProcessServer, do: str, status: int, content_type: str, body: bytes, failed: str
) -> None:
    """Status, type and content; 500 and above is a failure; the time of `run` is there for each."""
    answer = server.by_both_doors(b"\x89PNG", [("X-Do", do)])

    assert (answer.status, answer.header("content-type"), answer.body) == (status, content_type, body)
    assert answer.header("x-ms-run-function-failed") == failed
    assert answer.header("x-ms-run-fn-exec-ms")
    assert answer.header("x-request-id")


def test_no_content_has_no_length(server: InProcessServer) -> None:
    """204 says nothing of a content; the connection goes on."""
    with server.connect() as connection:
        message = b"POST /score HTTP/1.1\r\nHost: x\r\nX-Do: no content\r\nContent-Length: 0\r\n\r\n"
        assert connection.ask(message).header("content-length") is None
        connection.assert_open()


def test_a_script_that_raises_has_failed(server: InProcessServer) -> None:
    """As in the other forms, without a time."""
    answer = server.by_both_doors(b"", [("X-Do", "raise")])

    assert (answer.status, answer.header("x-ms-run-function-failed")) == (500, "True")
    assert answer.header("x-ms-run-fn-exec-ms") is None


@pytest.mark.parametrize("do", ["a bad header", "a bad status"])
def test_responses_that_cannot_be_sent_are_failures(server: InProcessServer, do: str) -> None:
    """A header with a blank in its name would be none; a status below 200 would be no answer."""
    answer = server.by_both_doors(b"", [("X-Do", do)])

    assert (answer.status, answer.json()["code"]) == (500, "internal")
    assert answer.header("x-ms-run-function-failed") == "True"


def test_header_values_are_split_at_commas(server: InProcessServer) -> None:
    """Each part is a header line of its own; so dates come in two parts, as from Azure."""

    def lines(do: str, name: str) -> list[str]:
        return [value for given, value in server.ask(headers=[("X-Do", do)]).headers if given.lower() == name]

    assert lines("headers", "x-multi") == ["a", "b"]
    assert lines("headers", "x-one") == ["1"]
    assert lines("dates", "expires") == ["Thu", "01 Dec 1994 16:00:00 GMT"]
    assert lines("lower case", "content-type") == [HTML, "text/plain"]


def test_a_script_sees_the_request(server: InProcessServer) -> None:
    """Query, body as often as it likes, address and headers."""
    path = "/score?a=1&b=x&b=y"
    for door in DOORS.values():
        assert server.ask("POST", path, [("X-Do", "query"), *door], b"").json() == [1, ["x", "y"]]
        assert server.ask("POST", path, [("X-Do", "twice"), *door], b"body").json() == ["body", "body"]
        sent = [("X-Do", "address"), ("x-custom", "1"), *door]
        url, address, custom = server.ask("POST", path, sent, b"").json()
        assert (url.partition("://")[2], address, custom) == (
            "localhost/score?a=1&b=x&b=y",
            "127.0.0.1",
            "1",
        )


def test_a_compressed_body_is_the_scripts_to_read(server: InProcessServer) -> None:
    """It gets the sent bytes with their encoding, and may inflate them itself."""
    body = gzip.compress(b"x" * 1000)
    for encoding in ("gzip", "br", "gzip, deflate"):
        sent = [("X-Do", "coding"), ("Content-Encoding", encoding)]
        assert server.ask("POST", "/score", sent, body).json() == [encoding, len(body)]


def test_forms_are_the_scripts_to_read(server: InProcessServer) -> None:
    """No content type is refused."""
    sent = [("X-Do", "echo"), ("Content-Type", "multipart/form-data; boundary=x"), *APP]

    assert server.ask("POST", "/score", sent, b"--x--").body == b"--x--"
