"""Answers as all protocols write them: a status, a block of header lines, a body.

The direct protocol writes the block to the socket as it is. For ASGI it is split into pairs, so both give the same
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.responses import Response

from stoker.errors import InvalidInput, MethodNotAllowed, StokerError, Unauthorized, UnsupportedEncoding
from stoker.gateway.http.request_ids import RequestIds, refusal_id_lines, sent_ids
from stoker.gateway.http.requests import content_length

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Send

Respond = Callable[[int, bytes, bytes], None]
"""Called once with status, header lines (each ended by CRLF), and body."""

CLOSE_LINE: Final = b"connection: close\r\n"
JSON_TYPE_LINE: Final = b"content-type: application/json\r\n"
_JSON_LINES: Final = JSON_TYPE_LINE + b"content-length: %d\r\n"


def json_lines(body: bytes) -> bytes:
    """Return the header lines of a JSON body."""
    return _JSON_LINES % len(body)


def error_body(error: StokerError) -> bytes:
    """The JSON of an error: `{"message": ..., "code": ...}`, with `error_id` where the log has details under it."""
    content: dict[str, Any] = {"message": str(error), "code": error.code}
    if error.error_id is not None:
        content["error_id"] = error.error_id
    return json.dumps(content).encode()


def error_answer(error: StokerError) -> tuple[int, bytes]:
    """Return status and body of an error as Triton and TensorFlow Serving answer: input that does not fit is 400."""
    status = 400 if isinstance(error, InvalidInput) else error.status
    return status, json.dumps({"error": str(error)}).encode()


def parse_error(body: bytes) -> dict[str, Any] | None:
    """Return the JSON of an error; None for an error answer that a script has written itself."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and "message" in content else None


def failed_line(failed: bool) -> bytes:
    """Return the header line that says whether the model or script has failed, in the spelling of Azure."""
    return b"x-ms-run-function-failed: %b\r\n" % (b"True" if failed else b"False")


def error_lines(error: StokerError) -> bytes:
    """Return the header lines that an error adds."""
    lines = failed_line(error.run_failed)
    for field in retry_fields(error):
        lines += b"%b: %b\r\n" % field
    if isinstance(error, Unauthorized):
        lines += b"www-authenticate: %b\r\n" % error.challenge.encode()
    if isinstance(error, MethodNotAllowed) and error.allowed:
        lines += b"allow: %b\r\n" % ", ".join(error.allowed).encode()
    if isinstance(error, UnsupportedEncoding) and error.accepted:
        lines += b"accept-encoding: %b\r\n" % ", ".join(error.accepted).encode()
    return lines


def retry_fields(error: StokerError) -> list[tuple[bytes, bytes]]:
    """Return the fields that say when a refused request may be retried, and why it was refused."""
    seconds, milliseconds = error.retry_after_s, error.retry_after_ms
    if seconds is None or milliseconds is None:
        return []
    fields = [(b"retry-after", b"%d" % seconds), (b"retry-after-ms", b"%d" % milliseconds)]
    if error.refusal is not None:
        fields.append((b"stoker-refused", error.refusal.explained.encode()))
    return fields


def code_line(error: StokerError) -> bytes:
    """Return the header line with an error's code, for protocols whose JSON has no field for it."""
    return b"x-stoker-error-code: %b\r\n" % error.code.encode()


def split_lines(lines: bytes) -> list[tuple[bytes, bytes]]:
    """Return header lines as pairs for ASGI."""
    pairs = []
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        pairs.append((name, value))
    return pairs


_SHORT_BODY_BYTES: Final = 1 << 16


class Answer(NamedTuple):
    """Status, header lines and body."""

    status: int
    lines: bytes
    body: bytes


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


async def respond_or_refuse(
    request: Request,
    respond: Callable[[Request], Awaitable[Response]],
    error_form: Callable[[StokerError], tuple[int, bytes]],
) -> Response:
    """Answer a request that is not scored, with its ids; `error_form` returns status and body of an error."""
    sent = sent_ids(dict(request.headers.raw))
    try:
        lines = RequestIds(*sent).lines
        response = await respond(request)
    except StokerError as error:
        lines = refusal_id_lines(sent) + error_lines(error) + code_line(error)
        status, body = error_form(error)
        response = Response(body, status, media_type="application/json")
    response.raw_headers.extend(split_lines(lines))
    return response


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
