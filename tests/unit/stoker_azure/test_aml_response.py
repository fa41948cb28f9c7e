"""Responses that scripts make, and what of them goes to the caller."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.wrappers import Response

from stoker.wire.script_requests import ScriptAnswer
from stoker_azure.aml_response import AMLResponse, answer_from

HTML = "text/html; charset=utf-8"


def headers(response: Response) -> list[tuple[str, str]]:
    """The headers of a response but for its length and the server's flag."""
    left_out = {"content-length", "x-ms-run-function-failed"}
    return [(name, value) for name, value in response.headers if name.lower() not in left_out]


@pytest.mark.parametrize(
    ("arguments", "status", "body", "expected"),
    [
        (("text", 200), 200, b"text", [("Content-Type", HTML)]),
        ((b"\x00\xff", 201), 201, b"\x00\xff", [("Content-Type", HTML)]),
        (("é", 200), 200, "é".encode(), [("Content-Type", HTML)]),
        ((None, 200), 200, b"{}", [("Content-Type", "application/json")]),
        ((None, 404, {}, True), 404, b"{}", [("Content-Type", "application/json")]),
        (({"a": [1, None]}, 200, {}, True), 200, b'{"a": [1, null]}', [("Content-Type", "application/json")]),
        (("é", 200, {}, True), 200, b'"\\u00e9"', [("Content-Type", "application/json")]),
        ((0, 200, {}, True), 200, b"0", [("Content-Type", "application/json")]),
        (("x", "418 TEAPOT"), 418, b"x", [("Content-Type", HTML)]),
    ],
)
def test_messages(
    arguments: tuple[Any, ...], status: int, body: bytes, expected: list[tuple[str, str]]
) -> None:
    """Text and bytes are HTML unless said otherwise; None is an empty object; `json_str` is Python's JSON."""
    response = AMLResponse(*arguments)
    assert (response.status_code, response.get_data(), headers(response)) == (status, body, expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("x", 200, {"X-Multi": "a, b"}), [("Content-Type", HTML), ("X-Multi", "a"), ("X-Multi", "b")]),
        (
            ("x", 200, {"Expires": "Wed, 21 Oct 2026 07:28:00 GMT"}),
            [("Content-Type", HTML), ("Expires", "Wed"), ("Expires", "21 Oct 2026 07:28:00 GMT")],
        ),
        (("x", 200, {"Content-Type": "image/png"}), [("Content-Type", "image/png")]),
        (("x", 200, {"content-type": "image/png"}), [("Content-Type", HTML), ("content-type", "image/png")]),
        (
            ({}, 200, {"Content-Type": "text/plain"}, True),
            [("Content-Type", "application/json"), ("Content-Type", "text/plain")],
        ),
        (
            (None, 200, {"Content-Type": "text/plain"}),
            [("Content-Type", "application/json"), ("Content-Type", "text/plain")],
        ),
    ],
)
def test_headers_are_split_at_commas(arguments: tuple[Any, ...], expected: list[tuple[str, str]]) -> None:
    """Each part is a line of its own; only the spelling `Content-Type` replaces the default, and only for text."""
    assert headers(AMLResponse(*arguments)) == expected


def test_parts_of_a_response_can_be_read_and_changed() -> None:
    """A script can read and change status, data, type and cookies."""
    response = AMLResponse("x", 200)
    assert (response.status, response.mimetype, response.content_type) == ("200 OK", "text/html", HTML)
    response.set_data("changed")
    response.headers["X-Own"] = "1"
    response.set_cookie("k", "v")
    response.status_code = 202
    answer = answer_from(response)
    assert (answer.status, answer.body) == (202, b"changed")
    assert answer.lines.decode().splitlines() == [
        f"Content-Type: {HTML}",
        "X-Own: 1",
        "Set-Cookie: k=v; Path=/",
    ]
    assert response.data == b"changed"


@pytest.mark.parametrize("message", [5, object()])
def test_a_message_of_another_type_fails_when_it_is_sent(message: object) -> None:
    """Without `json_str` only text and bytes can be sent."""
    with pytest.raises(TypeError):
        answer_from(AMLResponse(message, 200))


def test_an_answer_has_no_length_and_no_flag() -> None:
    """Both are the server's to write."""
    answer = answer_from(AMLResponse({"a": 1}, 200, json_str=True))
    assert answer == ScriptAnswer(b'{"a": 1}', 200, b"Content-Type: application/json\r\n", failed=False)


@pytest.mark.parametrize(
    ("response", "failed"),
    [
        (AMLResponse("x", 499), False),
        (AMLResponse("x", 500), True),
        (AMLResponse("x", 503), True),
        (AMLResponse("x", 400, run_function_failed=True), True),
        (AMLResponse("x", 400, {"x-ms-run-function-failed": "True"}), True),
        (Response("x", 500), True),
        (Response("x", 404), False),
    ],
)
def test_response_with_status_500_or_more_is_a_failed_run(response: Response, failed: bool) -> None:
    """A status of 500 or more marks a failure of `run`, and so does the header that says so."""
    answer = answer_from(response)
    assert answer.failed is failed
    assert b"x-ms-run-function-failed" not in answer.lines


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_body_drop_the_message(status: int) -> None:
    """Any message is dropped."""
    assert answer_from(AMLResponse(None, status)).body == b""
    assert answer_from(AMLResponse("x", status)).body == b""


@pytest.mark.parametrize("status", [0, 100, 101, 199, 600, 1000])
def test_a_status_that_ends_no_request_is_refused(status: int) -> None:
    """A caller would wait for another answer, or could not read it."""
    with pytest.raises(ValueError, match="use one from 200 to 599"):
        answer_from(AMLResponse("x", status))


def test_ids_and_framing_are_the_servers() -> None:
    """A script cannot give a request another id, nor say how the body is sent."""
    names = ("x-request-id", "X-Ms-Request-Id", "x-ms-client-request-id", "Transfer-Encoding", "Connection",
             "x-ms-run-fn-exec-ms", "Content-Length", "keep-alive")  # fmt: skip
    response = Response("x", headers={**dict.fromkeys(names, "1"), "X-Kept": "1"}, mimetype="text/plain")
    lines = answer_from(response).lines.decode().splitlines()
    assert sorted(lines) == ["Content-Type: text/plain; charset=utf-8", "X-Kept: 1"]


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "a\rb", "a\0b", "a\x01b", "a\x1bb", "a\x7f"])
def test_a_control_character_in_a_header_is_refused(value: str) -> None:
    """Line breaks by Werkzeug, and where a script goes around it, by us, with all others."""
    if "\r" in value or "\n" in value:
        with pytest.raises(ValueError, match="newline"):
            AMLResponse("x", 200, {"X-Own": value})
    response = Response("x")
    response.headers._list.append(("X-Own", value))
    with pytest.raises(ValueError, match="control character in its header X-Own"):
        answer_from(response)


@pytest.mark.parametrize("name", ["X Own", "X-Own\r\nX-Injected", "", "Näme", "a:b"])
def test_a_header_name_that_is_no_token_is_refused(name: str) -> None:
    """It could end the head of the answer, or begin another line."""
    with pytest.raises(ValueError, match="header name"):
        answer_from(AMLResponse("x", 200, {name: "1"}))


def test_letters_beyond_ascii() -> None:
    """Headers are latin-1; a location is made an URI."""
    assert b"X-Own: caf\xe9\r\n" in answer_from(AMLResponse("x", 200, {"X-Own": "café"})).lines
    assert b"Location: /caf%C3%A9\r\n" in answer_from(Response("", 302, {"Location": "/café"})).lines
    with pytest.raises(ValueError, match="latin-1"):
        answer_from(AMLResponse("x", 200, {"X-Own": "→"}))


def test_a_generated_body_is_collected() -> None:
    """It is generated once, and its resources are released, even when it fails."""
    ended = []

    def parts(fail: bool) -> Iterator[bytes | str]:
        yield b"a"
        yield "é"
        if fail:
            raise KeyError("k")

    response = Response(parts(fail=False))
    response.call_on_close(lambda: ended.append(1))
    assert answer_from(response).body == b"a\xc3\xa9"
    failing = Response(parts(fail=True))
    failing.call_on_close(lambda: ended.append(2))
    with pytest.raises(KeyError):
        answer_from(failing)
    assert ended == [1, 2]


def test_responses_of_flask(tmp_path: Path) -> None:
    """Text, JSON and files; Flask's text is HTML too."""
    flask = pytest.importorskip("flask")
    assert answer_from(flask.Response("x")).lines == f"Content-Type: {HTML}\r\n".encode()
    file = tmp_path / "a.bin"
    file.write_bytes(b"\x00\x01")
    with flask.Flask("test", root_path=str(tmp_path)).test_request_context():
        assert answer_from(flask.jsonify(a=1)).body == b'{"a":1}\n'
        sent = answer_from(flask.send_file(file, mimetype="image/png"))
        moved = answer_from(flask.redirect("/elsewhere"))
    assert sent.body == b"\x00\x01"
    assert b"Content-Type: image/png\r\n" in sent.lines
    assert moved.status == 302
    assert b"Location: /elsewhere\r\n" in moved.lines
