"""The metadata of calls: the header fields of a request, and the fields and status of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from stoker import errors
from stoker.errors import MalformedBody, NotSupported, StokerError, UnsupportedEncoding
from stoker.gateway.http.requests import authorization_in
from stoker.gateway.http.responses import retry_fields
from stoker.gateway.scoring.call_options import GRPC_TIMEOUT, UNIT_NS
from stoker.wire.http2.fields import Fields, encoded


class Status(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_STATUSES: Final[dict[type[errors.StokerError], Status]] = {
    errors.StokerError: Status.INTERNAL,
    errors.RequestError: Status.INVALID_ARGUMENT,
    errors.UnknownSequence: Status.FAILED_PRECONDITION,
    errors.Unauthorized: Status.UNAUTHENTICATED,
    errors.Forbidden: Status.PERMISSION_DENIED,
    errors.NotFound: Status.NOT_FOUND,
    errors.RegionTaken: Status.ALREADY_EXISTS,
    errors.UnknownService: Status.NOT_FOUND,
    errors.NotSupported: Status.UNIMPLEMENTED,
    errors.MethodNotAllowed: Status.UNIMPLEMENTED,
    errors.UnsupportedEncoding: Status.UNIMPLEMENTED,
    errors.RequestTimeout: Status.DEADLINE_EXCEEDED,
    errors.BodyTooLarge: Status.RESOURCE_EXHAUSTED,
    errors.ImageTooLarge: Status.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: Status.RESOURCE_EXHAUSTED,
    errors.RequestOverQuota: Status.RESOURCE_EXHAUSTED,
    errors.Overloaded: Status.UNAVAILABLE,
    errors.TooManySequences: Status.RESOURCE_EXHAUSTED,
    errors.NotReady: Status.UNAVAILABLE,
    errors.DeviceLost: Status.UNAVAILABLE,
    errors.DeviceOutOfMemory: Status.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: Status.DEADLINE_EXCEEDED,
    errors.ScoringTimeout: Status.DEADLINE_EXCEEDED,
}
"""By class; a class that is not here has the status of the nearest one above it in the tree."""


_RELAYED: Final = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    409: Status.ABORTED,
    501: Status.UNIMPLEMENTED,
    503: Status.UNAVAILABLE,
    504: Status.DEADLINE_EXCEEDED,
}
"""By the status for HTTP, of errors that another process had, and whose class is not known here."""


def status_of(error: errors.StokerError) -> Status:
    """Return the status that a call ends with which raised this error."""
    if error.status != type(error).status:
        return _RELAYED.get(error.status, Status.INTERNAL)
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)


_DETAILS_CHARS: Final = 1024
_OK_STATUS: Final = b"\x88"
"""`:status: 200` by its place in HPACK's table."""
ANSWER_HEAD: Final = _OK_STATUS + encoded([(b"content-type", b"application/grpc")])
_OK: Final = encoded([(b"grpc-status", b"0")]) + b"\0\x0cx-request-id%c%b"
_ENCODINGS: Final = (b"", b"identity", b"gzip", b"deflate")
_UNQUOTED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class CallHead(NamedTuple):
    """The head of a call.

    Attributes:
        method: The method, as `find` has returned it; None if there is no such method.
        encoding: How compressed messages are compressed; empty if none is.
        metadata: All fields but pseudo fields, by name; of several with one name, the last.
    """

    method: Any
    authorization: bytes
    timeout_ns: int | None
    encoding: bytes
    request_id: bytes
    metadata: dict[bytes, bytes]
    error: StokerError | None
    content_bytes: int | None

    def headers(self) -> dict[bytes, bytes]:
        """Return its metadata as headers of HTTP, without those whose values are bytes."""
        return {name: value for name, value in self.metadata.items() if not name.endswith(b"-bin")}


def head_reader(find: Callable[[str], Any]) -> Callable[[Fields], CallHead]:
    """Return a function that reads the head of a call; `find` finds a method by its path, or raises NotSupported."""

    def read(fields: Fields) -> CallHead:
        metadata = dict(fields)
        method, timeout_ns, error = None, None, None
        try:
            _check_kind(metadata)
            method = find(metadata[b":path"].decode("latin-1"))
            timeout_ns = _timeout_ns(metadata.get(b"grpc-timeout"))
        except StokerError as wrong:
            error = wrong.with_traceback(None)
        length = metadata.get(b"content-length")
        return CallHead(
            method,
            authorization_in(fields) if b"authorization" in metadata else b"",
            timeout_ns,
            metadata.get(b"grpc-encoding", b""),
            metadata.get(b"x-request-id", b""),
            {name: value for name, value in fields if not name.startswith(b":")},
            error,
            int(length) if length is not None and re.fullmatch(rb"[0-9]{1,18}", length) else None,
        )

    return read


def _check_kind(metadata: dict[bytes, bytes]) -> None:
    kind = metadata.get(b"content-type", b"")
    if metadata[b":method"] != b"POST" or not kind.startswith(b"application/grpc"):
        raise NotSupported("This port speaks gRPC: POST with the content type application/grpc.")
    if kind[16:17] not in (b"", b";") and kind != b"application/grpc+proto":
        raise NotSupported("Messages are read as application/grpc or application/grpc+proto.")
    if metadata.get(b"grpc-encoding", b"") not in _ENCODINGS:
        raise UnsupportedEncoding("Messages are read as they are, or compressed by gzip or deflate.")


def _timeout_ns(value: bytes | None) -> int | None:
    if value is None:
        return None
    match = GRPC_TIMEOUT.fullmatch(value)
    if match is None:
        raise MalformedBody("grpc-timeout is no time: up to eight digits and a unit")
    return int(match[1]) * UNIT_NS[match[2]]


def error_text(error: StokerError) -> str:
    """Return the message of an error, cut to the length that clients accept as metadata."""
    text = str(error)
    return text if len(text) <= _DETAILS_CHARS else text[: _DETAILS_CHARS - 1] + "…"


def ok_trailers(request_id: bytes) -> bytes:
    """Return the trailers of a successful answer, encoded; an id has at most 100 bytes."""
    return _OK % (len(request_id), request_id)


def error_fields(error: StokerError) -> Fields:
    """Return the fields that end a call with an error, in the terms of gRPC."""
    text = quote(error_text(error), safe=_UNQUOTED, errors="replace").encode()
    fields = [
        (b"grpc-status", b"%d" % status_of(error)),
        (b"grpc-message", text),
        (b"error-code", error.code.encode()),
    ]
    fields += retry_fields(error)
    if error.retry_after_ms is not None:
        # Retry policies of gRPC clients read this field.
        fields.append((b"grpc-retry-pushback-ms", b"%d" % error.retry_after_ms))
    if error.error_id is not None:
        fields.append((b"error-id", error.error_id.encode()))
    if isinstance(error, UnsupportedEncoding):
        fields.append((b"grpc-accept-encoding", b"identity,gzip,deflate"))
    return fields


def trailers_only(trailers: bytes) -> bytes:
    """Return the head of an answer that has no messages and ends at once, encoded."""
    return ANSWER_HEAD + trailers
