"""A handler's input from a request, and the answer from its result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.errors import RequestError
from stoker.wire.script_requests import RequestHead, ScriptRequest
from stoker_torchserve.rows import encode_answer, read_row
from stoker_torchserve.ts.context import RequestProcessor


def make_request(body: bytes, kind: str = "", query: str = "", **headers: str) -> ScriptRequest:
    sent = [("content-type", kind)] if kind else []
    sent += [(name.replace("_", "-"), value) for name, value in headers.items()]
    return ScriptRequest(b"7", body, head=RequestHead("POST", "/predictions/m", query, sent, "127.0.0.1"))


def form(*fields: tuple[str, str, bytes]) -> bytes:
    parts = [b"--XyZ\r\ncontent-disposition: form-data; %s\r\n\r\n%s\r\n" % (
        f'name="{name}"{more}'.encode(), content) for name, more, content in fields]  # fmt: skip
    return b"".join(parts) + b"--XyZ--\r\n"


FORM = "multipart/form-data; boundary=XyZ"


@pytest.mark.parametrize(
    ("request_", "row"),
    [
        (make_request(b"\x00\xff"), {"body": bytearray(b"\x00\xff")}),
        (make_request(b"", "image/png"), {"body": bytearray()}),
        (make_request(b'{"a": [1]}', "application/json"), {"body": {"a": [1]}}),
        (make_request(b'{"a": [1]}', "Application/JSON; charset=utf-8"), {"body": {"a": [1]}}),
        (make_request(b"{", "application/json"), {"body": bytearray(b"{")}),
        (make_request(b"[" * 100_000, "application/json"), {"body": bytearray(b"[" * 100_000)}),
        (make_request("é".encode(), "text/plain"), {"body": "é"}),
        (make_request(b"\xff", "text/plain"), {"body": bytearray(b"\xff")}),
        (
            make_request(b"b", query="k=v&k=w&empty="),
            {"k": bytearray(b"w"), "empty": bytearray(), "body": bytearray(b"b")},
        ),
        (
            make_request(b"a=1+2&b=%C3%A9%00", "application/x-www-form-urlencoded"),
            {"a": bytearray(b"1 2"), "b": bytearray("é\0".encode())},
        ),
        (
            make_request(
                form(("data", '; filename="a.png"', b"\r\n--Xy\r\n\x00"), ("text", "", b"hello")), FORM
            ),
            {"data": bytearray(b"\r\n--Xy\r\n\x00"), "text": bytearray(b"hello")},
        ),
        (
            make_request(form(("data", '; filename="a"\r\ncontent-type: application/json', b"[1]")), FORM),
            {"data": [1]},
        ),
    ],
)
def test_a_request_becomes_a_row(request_: ScriptRequest, row: dict[str, Any]) -> None:
    """The content type decides, as in TorchServe; unreadable content is passed on as it was sent."""
    assert read_row(request_)[0] == row


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (make_request(b"x", "multipart/form-data"), "names no boundary"),
        (make_request(b"--XyZ\r\n", FORM), "last boundary is missing"),
        (make_request(b"--XyZ\r\nx: y\r\n\r\nx\r\n--XyZ--", FORM), "has no name"),
        (make_request(form(*[("a", "", b"")] * 1001), FORM), "more than 1000 parts"),
        (make_request(b"x", content_encoding="gzip"), "uncompressed"),
    ],
)
def test_a_broken_form_is_refused(request_: ScriptRequest, message: str) -> None:
    """The status is 400, or 415 for a compressed one; no handler is called."""
    with pytest.raises(RequestError, match=message):
        read_row(request_)


def test_headers_are_found_in_any_case() -> None:
    """A field's type is found under the field's name."""
    _, head = read_row(
        make_request(form(("data", '; filename="a"\r\ncontent-type: image/png', b"")), FORM, x_mine="1")
    )
    assert head.get_request_property("X-Mine") == "1"
    assert head.get_request_property("data") == {"content-type": "image/png"}
    assert head.get_request_property("explain") is None


@pytest.mark.parametrize(
    ("value", "body", "kind"),
    [
        ({"a": 1.5}, b'{\n  "a": 1.5\n}', "application/json"),
        (7, b"7", "application/json"),
        ("text", b"text", "text/plain; charset=utf-8"),
        (bytearray(b"\x01"), b"\x01", "application/octet-stream"),
    ],
)
def test_an_answer_is_sent_as_it_is(value: Any, body: bytes, kind: str) -> None:
    """Text and bytes as they are, all else as JSON with two spaces, as TorchServe writes it."""
    answer = encode_answer(value, RequestProcessor({}))
    assert (answer.body, answer.status, answer.failed) == (body, 200, False)
    assert answer.lines == f"content-type: {kind}\r\n".encode()


def test_a_handler_sets_status_and_headers() -> None:
    """Headers that the server writes itself are left out, and an answer without content has no body."""
    processor = RequestProcessor({})
    processor.report_status(204)
    processor.add_response_property("Content-Type", "x/y")
    processor.add_response_property("Content-Length", "99")
    processor.add_response_property("X-Mine", "1")
    answer = encode_answer({"a": 1}, processor)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.lines == b"content-type: x/y\r\nx-mine: 1\r\n"


@pytest.mark.parametrize(
    ("name", "value", "status"), [("a b", "x", 200), ("x", "a\r\nset-cookie: b", 200), ("x", "y", 99)]
)
def test_invalid_header_or_status_of_a_handler_is_refused(name: str, value: str, status: int) -> None:
    """A handler's header cannot end early and begin another."""
    processor = RequestProcessor({})
    processor.add_response_property(name, value)
    processor.report_status(status)
    with pytest.raises(ValueError, match="the handler has set"):
        encode_answer(json.loads("1"), processor)
