"""Request ids as the Azure inference server has them.

`x-request-id` names this request, `x-ms-request-id` is its older name, `x-ms-client-request-id` is the client's own
id. The ids that a client sends are returned unchanged; if it sends only the older name, its value is returned as
the client's own id too.

The header `traceparent` of W3C's Trace Context says which trace a request belongs to.
"""

from __future__ import annotations

import itertools
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from stoker.errors import HeaderTooLarge, RequestError

TRACEPARENT: Final = b"traceparent"
"""The name of the header."""

# Versions after 00 may have more fields; version ff is invalid (Trace Context, section 3.2.2).
_TRACEPARENT_FORM: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE: Final = b"0" * 32
_NO_PARENT: Final = b"0" * 16
_SAMPLED: Final = 1


class SpanContext(NamedTuple):
    """The identity of a span, as it is passed on to those whose spans are its children.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 of them.
        parent_id: The id of its own parent where known; not passed on.
    """

    trace_id: str
    span_id: str
    sampled: bool = True
    parent_id: str = ""

    @property
    def traceparent(self) -> bytes:
        """The header's value."""
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}".encode()


def span_context_of(traceparent: bytes) -> SpanContext | None:
    """Return the span that a header value names; None if it is absent or invalid."""
    found = _TRACEPARENT_FORM.fullmatch(traceparent)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_PARENT:
        return None
    if found[4] is not None and traceparent.startswith(b"00"):
        return None
    return SpanContext(found[1].decode(), found[2].decode(), bool(int(found[3], 16) & _SAMPLED))


_MAX_CHARS: Final = 100
# One uuid4 per process, with a counter in its last 12 digits: unique, and ten times cheaper than a uuid4 per
# request.
_PREFIX: Final = str(uuid.uuid4())[:24].encode()
_START: Final = int.from_bytes(os.urandom(5), "big")
_counter = itertools.count(_START)
_COUNTER_MASK: Final = (1 << 48) - 1
_FRESH_LINES: Final = b"x-request-id: %b%%012x\r\nx-ms-request-id: %b%%012x\r\n" % (_PREFIX, _PREFIX)
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_HEADERS: Final = (b"x-request-id", b"x-ms-request-id", b"x-ms-client-request-id", TRACEPARENT)


def sent_ids(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the ids and the trace header of a request in the order of `RequestIds`, empty where absent."""
    return [headers.get(name, b"") for name in _HEADERS]


def refusal_id_lines(sent: Sequence[bytes]) -> bytes:
    """Header lines with the ids of a request that is refused before `RequestIds` is made.

    As the Azure inference server does: if one of the other ids is invalid, only the request's own id; if that one
    is invalid, none.
    """
    try:
        return RequestIds(*sent).lines
    except RequestError:
        pass
    try:
        return b"x-request-id: %b\r\n" % RequestIds(sent[0]).request_id
    except RequestError:
        return b""


def ids_of_refused(headers: Mapping[bytes, bytes]) -> RequestIds:
    """Return the ids of a refused request for the log; fresh ones if its own are invalid."""
    sent = sent_ids(headers)
    try:
        return RequestIds(*sent)
    except RequestError:
        return RequestIds(traceparent=sent[-1])


def fresh_id_lines() -> bytes:
    """Header lines with a fresh id, for a request whose client sent none."""
    number = next(_counter) & _COUNTER_MASK
    return _FRESH_LINES % (number, number)


class RequestIds:
    """The ids of one request."""

    __slots__ = ("_others", "_traceparent", "request_id")

    def __init__(
        self, sent: bytes = b"", sent_legacy: bytes = b"", sent_client: bytes = b"", traceparent: bytes = b""
    ) -> None:
        """Keep the ids that the client sent; empty values count as absent.

        The value of `traceparent` is kept unparsed: it is only needed if the request is logged.
        """
        self._others: tuple[bytes, bytes] | None
        if traceparent:
            self._traceparent = traceparent
        if not (sent or sent_legacy or sent_client):
            self.request_id = b"%b%012x" % (_PREFIX, next(_counter) & _COUNTER_MASK)
            self._others = None
            return
        if len(sent) > _MAX_CHARS:
            raise HeaderTooLarge("x-request-id must not exceed 100 characters")
        if len(sent_legacy) > _MAX_CHARS or len(sent_client) > _MAX_CHARS:
            raise HeaderTooLarge("x-ms-request-id and x-ms-client-request-id must not exceed 100 characters")
        if _CONTROL.search(sent + sent_legacy + sent_client):
            raise RequestError("A request id must not hold control characters.")
        self.request_id = sent or b"%b%012x" % (_PREFIX, next(_counter) & _COUNTER_MASK)
        self._others = (sent_legacy or sent_client or self.request_id, sent_client or sent_legacy)

    @property
    def lines(self) -> bytes:
        """The header lines that carry the ids in the answer; gRPC's answers have none."""
        legacy, client = self._others or (self.request_id, b"")
        lines = b"x-request-id: %b\r\nx-ms-request-id: %b\r\n" % (self.request_id, legacy)
        return lines + b"x-ms-client-request-id: %b\r\n" % client if client else lines

    @property
    def span(self) -> SpanContext | None:
        """The span that the request names as its parent; None if it names no valid one."""
        # Not set by `__init__`: most requests have none, and should not pay for it.
        return span_context_of(getattr(self, "_traceparent", b""))

    @property
    def trace_id(self) -> str:
        """The trace id of the request; empty if it has sent no valid one."""
        span = self.span
        return "" if span is None else span.trace_id

    def join(self, span: SpanContext) -> None:
        """Use this span as the request's from now on."""
        self._traceparent = span.traceparent
