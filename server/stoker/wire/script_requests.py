"""Requests to entry scripts that take whole bodies, and their answers: one variable row each way.

Such a script may get more than the body: the request's id for its log lines and, if it asks for them, method, query
and headers. Its answer has a status, header lines and the duration of `run`. Both are packed after a small fixed head
in native byte order, because the two processes share a machine.

Bodies of several callers can be merged: `{"data": [a, b]}` and `{"data": [c]}` become `{"data": [a, b, c]}`. Merging
works on the text: the rows of such a body are between the first `[` and the last `]`. So no Python lists are made,
and each number reaches the script exactly as its caller wrote it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from stoker.wire.json_bodies import check_text

if TYPE_CHECKING:
    from stoker.script_form import ScriptForm

HEAD_ROOM_BYTES: Final = 1 << 18
"""How much longer than its body a request may be; the server accepts at most 64 KiB of headers."""

_REQUEST: Final = struct.Struct("=IIQ")
_ANSWER: Final = struct.Struct("=HHIQ")
_FAILED: Final = 1
_EXECUTED: Final = 2


class RequestHead(Struct, frozen=True):
    """The parts of a request that a script may ask for beside its body.

    Attributes:
        path: The path as it was sent, percent-encoded.
        query: The query after the `?`, percent-encoded.
        headers: Names and values in the order in which they came, decoded as latin-1.
        deadline_ns: When the caller stops waiting, as `time.monotonic_ns`; 0 if unknown.
        stream: Where to send the pieces of an answer, see `stoker.wire.script_streams`; empty for a single answer.
        only_piece: Whether the answer must be a single piece, so that it is an error if `run` yields more or none.
    """

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    remote: str
    deadline_ns: int = 0
    stream: str = ""
    only_piece: bool = False

    def to_json(self) -> bytes:
        """Return the head as JSON text."""
        how = (self.deadline_ns, self.stream, self.only_piece)
        return orjson.dumps([self.method, self.path, self.query, self.headers, self.remote, *how])

    @classmethod
    def from_json(cls, text: bytes) -> RequestHead:
        """Inverse of `to_json`."""
        method, path, query, headers, *others = orjson.loads(text)
        return cls(method, path, query, [(name, value) for name, value in headers], *others)


class ScriptRequest(Struct, frozen=True):
    """A request on its way to a script.

    Attributes:
        body: The body as received; decompressed if the script takes text or arguments.
        rows: How many rows it has, if it is `{"data": [row, ...]}` and may be merged with others; else 0.
    """

    request_id: bytes
    body: bytes
    rows: int = 0
    head: RequestHead | None = None

    def pack(self) -> bytes:
        """Return the bytes of the row."""
        head = b"" if self.head is None else self.head.to_json()
        return b"".join(
            (_REQUEST.pack(len(self.request_id), len(head), self.rows), self.request_id, head, self.body)
        )

    @classmethod
    def unpack(cls, data: bytes) -> ScriptRequest:
        """Inverse of `pack`."""
        id_bytes, head_bytes, rows = _REQUEST.unpack_from(data)
        head_start = _REQUEST.size + id_bytes
        body_start = head_start + head_bytes
        head = RequestHead.from_json(data[head_start:body_start]) if head_bytes else None
        return cls(data[_REQUEST.size : head_start], data[body_start:], rows, head)


class ScriptAnswer(Struct, frozen=True):
    """A script's answer on its way to the caller.

    Attributes:
        lines: Header lines, each ended by CRLF, without Content-Length; empty means JSON's content type.
        failed: Whether `run` failed: it raised, or returned a status of 500 and above.
        exec_ns: How long `run` took if it returned, else None.
    """

    body: bytes
    status: int = 200
    lines: bytes = b""
    failed: bool = False
    exec_ns: int | None = None

    def pack(self) -> bytes:
        """Return the bytes of the row."""
        flags = (_FAILED if self.failed else 0) | (_EXECUTED if self.exec_ns is not None else 0)
        return b"".join(
            (_ANSWER.pack(self.status, flags, len(self.lines), self.exec_ns or 0), self.lines, self.body)
        )

    @classmethod
    def unpack(cls, data: bytes) -> ScriptAnswer:
        """Inverse of `pack`."""
        status, flags, lines_bytes, exec_ns = _ANSWER.unpack_from(data)
        body_start = _ANSWER.size + lines_bytes
        return cls(
            data[body_start:],
            status,
            data[_ANSWER.size : body_start],
            bool(flags & _FAILED),
            exec_ns if flags & _EXECUTED else None,
        )


def script_row(
    parser: Any, form: ScriptForm, request_id: bytes, body: bytes, head: RequestHead | None
) -> bytes:
    """Return a request as its row; `parser`, a `simdjson.Parser` of this thread, counts rows that may be merged."""
    if form.kind == "string":
        check_text(body)
    rows = row_count(parser, body, form.merge_key) if form.batching == "merge" else 0
    return ScriptRequest(request_id, body, rows, head).pack()


MERGED_BYTES: Final = 8 << 20
"""The longest text to merge, alone and together; merging longer texts saves nothing."""


def row_count(parser: Any, body: bytes, key: str = "data") -> int:
    """Return how many rows a body has that may be merged with others, 0 for any other body.

    `parser` is a `simdjson.Parser` of this thread, `key` the only key that the body may have.
    """
    if len(body) > MERGED_BYTES:
        return 0
    document: Any = None
    rows: Any = None
    try:
        document = parser.parse(body)
        if len(document) != 1:
            return 0
        rows = document[key]
        # Only lists have buffers; a dict with entries has a length too.
        return len(rows) if hasattr(rows, "as_buffer") else 0
    except (ValueError, TypeError, KeyError, RuntimeError):
        return 0
    finally:
        # simdjson refuses to parse while anything refers to its last document.
        document = rows = None


def merge(bodies: Sequence[bytes], key: str = "data") -> bytes:
    """Return one body with the rows of all bodies in order; `row_count` must be positive for each of them."""
    return b"{%b: [%b]}" % (json.dumps(key).encode(), b", ".join(map(_rows_text, bodies)))


def row_texture(body: bytes) -> tuple[bool, ...]:
    """Return which kinds of JSON values the rows of a mergeable body have.

    Whole numbers next to fractions, or null next to numbers, become one type in an array or a table. Rows of equal
    texture keep the types that they have alone.
    """
    text = _rows_text(body)
    if b'"' in text:
        # Letters of strings mean nothing, so only texts that change a whole column are searched.
        return (True, b"null" in text, b"{" in text)
    return (
        False,
        b"." in text or b"e" in text or b"E" in text,
        b"n" in text,
        b"t" in text,
        b"f" in text,
    )


def _rows_text(body: bytes) -> bytes:
    return body[body.index(b"[") + 1 : body.rindex(b"]")]
