"""Requests and answers in ASGI: reading headers, the head that scripts see, and sending an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from stoker.gateway.http.answers import (
    CLOSE_LINE,
    code_line,
    error_body,
    error_lines,
    json_lines,
    split_lines,
)
from stoker.gateway.http.bodies import content_length
from stoker.gateway.http.request_ids import refusal_id_lines, sent_ids
from stoker.wire.envelope import RequestHead

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Scope, Send

    from stoker.errors import StokerError

__all__ = ["Answer", "authorization_of", "content_encodings", "refusal", "request_head", "send_answer"]

_SHORT_BODY_BYTES: Final = 1 << 16


class Answer(NamedTuple):
    """Status, header lines and body."""

    status: int
    lines: bytes
    body: bytes


def content_encodings(scope: Scope) -> list[bytes]:
    """All values of the header `Content-Encoding`, in order."""
    return [value for name, value in scope["headers"] if name == b"content-encoding"]


def authorization_of(request: Request) -> bytes:
    """Value of the header `Authorization`; empty where there is none."""
    return request.headers.get("authorization", "").encode("latin-1")


def request_head(scope: Scope, inflated_bytes: int | None) -> RequestHead:
    """Return the part of a request that a script may see; a body that was inflated appears as if it was sent so."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    if inflated_bytes is not None:
        framing = ("content-encoding", "content-length", "transfer-encoding")
        pairs = [pair for pair in pairs if pair[0] not in framing]
        pairs.append(("content-length", str(inflated_bytes)))
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    remote = scope.get("client")
    return RequestHead(
        scope["method"],
        path.decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        pairs,
        remote[0] if remote else "",
    )


def refusal(
    error: StokerError, headers: Mapping[bytes, bytes], status: int | None = None, body: bytes | None = None
) -> Answer:
    """Return the answer to a request whose body is not read, with these headers.

    The error is in Azure's JSON by default.
    """
    foreign = body is not None
    if body is None:
        body = error_body(error)
    lines = json_lines(body) + refusal_id_lines(sent_ids(headers)) + error_lines(error)
    if foreign:
        lines += code_line(error)
    length = content_length(headers)
    nothing_follows = length <= 0 and b"transfer-encoding" not in headers
    if not nothing_follows and (b"expect" in headers or not 0 <= length <= _SHORT_BODY_BYTES):
        # The connection is closed rather than receiving a long body only to drop it. A client that has sent
        # `Expect: 100-continue` must not send its body after the refusal.
        lines += CLOSE_LINE
    return Answer(status or error.status, lines, body)


async def send_answer(send: Send, answer: Answer) -> None:
    """Send an answer by ASGI."""
    start: Message = {
        "type": "http.response.start",
        "status": answer.status,
        "headers": split_lines(answer.lines),
    }
    await send(start)
    content: dict[str, Any] = {"type": "http.response.body", "body": answer.body}
    await send(content)
