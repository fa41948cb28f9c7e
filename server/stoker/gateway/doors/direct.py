"""The direct door: plain scoring requests are answered inside uvicorn's HTTP protocol, without an ASGI cycle.

A request is plain when it is HTTP/1.1 with one Host, a POST to a scoring path with a valid key, has a
Content-Length within the limit, carries no header that asks for more (Expect, Transfer-Encoding, Content-Encoding,
Upgrade, Origin, TraceId, the name of a deployment, an image, a form or an array as Content-Type), its model does not
want to see its head, and no other request of its connection is unanswered. Everything else goes uvicorn's way to the
Starlette app, which gives the same answers byte for byte, but for upper case in the names of a script's own headers.

Callers send the same head (request line and headers) with every request. So the heads of plain requests are
remembered byte for byte with what they said, and a request that arrives in one piece behind a known head is
not parsed again; only its key is verified again.

To uvicorn a direct request looks like one of its own cycles (`_DirectCycle`), so that its pipelining, its
shutdown and its connection bookkeeping stay right. This relies on uvicorn's internals: pyproject.toml pins
the versions that passed the tests.
"""

from __future__ import annotations

import io
import re
import socket
from asyncio import Event
from http import HTTPMethod
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stoker.errors import (
    HeaderTooLarge,
    MalformedBody,
    MethodNotAllowed,
    RequestTimeout,
    StokerError,
    TargetTooLong,
)
from stoker.gateway.gateway import Gateway, PlainHead
from stoker.gateway.http.answers import CLOSE_LINE, error_body, error_lines, json_lines
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES
from stoker.gateway.http.heads import (
    MAX_CHUNK_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    NOT_ALLOWED,
    SCORING_METHODS,
)
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.protocols.binary_dialect import is_array
from stoker.gateway.protocols.infer_dialect import JSON_LENGTH, InferDialect
from stoker.gateway.traffic import DEPLOYMENT_HEADER
from stoker.wire.images import is_media

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call, Dialect
    from stoker.gateway.scoring.service import Service

__all__ = ["DirectProtocol"]

_END_OF_HEAD: Final = b"\r\n\r\n"
_REMEMBERED_HEAD_BYTES: Final = 4096
# A method that this parser does not know ends it; a line like this one is HTTP nevertheless.
_REQUEST_LINE: Final = re.compile(rb"([A-Z]+) [^ \r\n]+ HTTP/1\.[01]\r?\n")
_METHODS: Final = frozenset(method.encode() for method in HTTPMethod)
_OFFER: Final = frozenset({b"upgrade", b"http2-settings"})
_GO_ON: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNK_FRAMING_BYTES: Final = 16
# What uvloop reads at most at once.
_READ_BYTES: Final = 1 << 18
_CLOSE_WAIT: Final = 8
_LOOK_AGAIN_S: Final = 0.05
(
    _AUTHORIZATION,
    _LENGTH,
    _TYPE,
    _HOST,
    _JSON_LENGTH,
    _ACCEPTS,
    _REQUEST_ID,
    _LEGACY_ID,
    _CLIENT_ID,
    _NOT_PLAIN,
) = range(10)
_HEADERS: Final = {
    b"authorization": _AUTHORIZATION,
    b"content-length": _LENGTH,
    b"content-type": _TYPE,
    b"host": _HOST,
    JSON_LENGTH: _JSON_LENGTH,
    b"accept-encoding": _ACCEPTS,
    b"x-request-id": _REQUEST_ID,
    b"x-ms-request-id": _LEGACY_ID,
    b"x-ms-client-request-id": _CLIENT_ID,
    b"expect": _NOT_PLAIN,
    b"transfer-encoding": _NOT_PLAIN,
    b"content-encoding": _NOT_PLAIN,
    b"upgrade": _NOT_PLAIN,
    b"origin": _NOT_PLAIN,
    b"traceid": _NOT_PLAIN,
    DEPLOYMENT_HEADER: _NOT_PLAIN,
}
# Of several, the other door says what is wrong.
_ONCE: Final = (_HOST, _JSON_LENGTH)


class _DirectCycle:
    """What uvicorn's protocol reads and sets on the request of a connection. One serves all direct requests of it."""

    __slots__ = ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self) -> None:
        self.body = bytearray()
        self.disconnected = False
        self.keep_alive = True
        self.message_event = Event()
        self.more_body = False
        self.response_complete = True


class DirectProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with a short cut for scoring.

    Attributes:
        idle_sweeps: How often the listener has looked since this connection last made progress.
        unread_bytes: How much of its answers had not been taken from this process when the listener looked last.
        arriving_sweeps: How often the listener has found the same request arriving, and the server reading it.
        arrived_bytes: How much of that request's body has arrived.
        fresh: Whether nothing has arrived on it yet.
    """

    def __init__(self, *args: Any, gateway: Gateway, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.idle_sweeps = 0
        self.unread_bytes = 0
        self.arriving_sweeps = 0
        self.arrived_bytes = 0
        self.fresh = True
        self._gateway = gateway
        self._in_headers = False
        self._head_bytes = 0
        self._framing_bytes: int | None = None
        self._offered = b""
        self._direct = _DirectCycle()
        self._receiving: Service | None = None
        self._dialect: Dialect | None = None
        self._between = True
        self._new_head = b""
        self._reserved_bytes = 0
        self._ids: RequestIds | None = None
        self._first_chunk = b""
        self._gathered: io.BytesIO | None = None
        self._call: Call | None = None

    @property
    def busy(self) -> bool:
        """Whether a request that has arrived is unanswered; another one may be arriving behind it."""
        if self.pipeline:
            return True
        return self.cycle is not None and not self.cycle.response_complete and not self._receives_body

    @property
    def receiving(self) -> bool:
        """Whether a request has begun to arrive and is not complete."""
        return self._in_headers or self._receives_body

    @property
    def arriving(self) -> bool:
        """Whether a request has begun to arrive and is not complete, though it may have been answered already."""
        return not self._between

    @property
    def _receives_body(self) -> bool:
        if self._receiving is not None:
            return True
        return self.cycle is not None and not self.cycle.response_complete and bool(self.cycle.more_body)

    def receives_for(self, service: Service) -> bool:
        """Whether the body of a plain request for this service is arriving."""
        return self._receiving is service

    def data_received(self, data: bytes) -> None:
        if self._between:
            end = data.find(_END_OF_HEAD, 0, _REMEMBERED_HEAD_BYTES) + 4
            head = data[:end]
            known = self._gateway.heads.get(head)
            if known is None:
                self._new_head = head
            elif (
                len(data) == end + known.body_bytes
                and (self.cycle is None or self.cycle.response_complete)
                and known.service.access.allows(known.authorization)
            ):
                if self.timeout_keep_alive_task is not None:
                    self._unset_keepalive_if_required()
                self.fresh = False
                if known.closes:
                    self._direct.keep_alive = False
                self._score(known.service, data[end:], None, known.dialect)
                return
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._in_headers:
            self._bound_head(len(data))
        elif self._framing_bytes is not None:
            self._bound_chunks(len(data))

    def _feed(self, data: bytes) -> None:
        """Let the parser read; a request that offers an upgrade is read again as if it had not."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # This parser takes all that follows for another protocol: a new one goes on.
            self.parser = httptools.HttpRequestParser(self)
            offered, self._offered = self._offered, b""
            if rest := offered + data[upgrade.args[0] :]:
                self._feed(rest)
        except httptools.HttpParserInvalidMethodError:
            line = _REQUEST_LINE.match(data)
            # Behind a method that it knows, it has stumbled over something that followed.
            if line is not None and line[1] not in _METHODS:
                self._refuse(MethodNotAllowed(NOT_ALLOWED, allowed=SCORING_METHODS))
            else:
                self.send_400_response("The request is not HTTP.")
        except httptools.HttpParserError:
            self.send_400_response("The request is not HTTP.")

    def _head_without_offer(self) -> bytes:
        """The head that has just been parsed, without its offer of an upgrade.

        Java's HttpClient offers h2c with its first request, which may have a body of any kind.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                options = map(bytes.strip, value.split(b","))
                kept = [option for option in options if option.lower() not in _OFFER]
                lines.append(b"connection: " + b", ".join(kept))
            elif name not in _OFFER:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _bound_head(self, received_bytes: int) -> None:
        """End a connection whose head does not end; the chunk in which it began is not counted."""
        if self._head_bytes < 0:
            self._head_bytes = 0
            return
        self._head_bytes += received_bytes
        if self._head_bytes <= MAX_HEAD_BYTES:
            return
        if not self.headers and len(self.url) > MAX_TARGET_BYTES:
            self._refuse(TargetTooLong.over(MAX_TARGET_BYTES))
        else:
            self._refuse(HeaderTooLarge.over(MAX_HEAD_BYTES))

    def _bound_chunks(self, received_bytes: int) -> None:
        """End a connection whose chunks are mostly extensions; the parser takes them for nothing, at any length."""
        assert self._framing_bytes is not None, "looked at before"
        self._framing_bytes += received_bytes
        if self._framing_bytes <= MAX_CHUNK_FRAMING_BYTES:
            return
        if self.receiving:
            self._refuse(MalformedBody("The chunks of the body have too long extensions or trailers."))
        self.transport.close()

    def on_chunk_header(self) -> None:
        """A chunk begins: its length and line ends are no extension."""
        if self._framing_bytes is not None:
            self._framing_bytes -= _CHUNK_FRAMING_BYTES

    def on_message_begin(self) -> None:
        # uvicorn's scope is made later, for those requests that need one.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.idle_sweeps = self.arriving_sweeps = self.arrived_bytes = 0
        self.fresh = False
        self._framing_bytes = None
        self._in_headers = True
        self._head_bytes = -1
        self._between = False

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._offered = self._head_without_offer()
        elif not self._take_directly():
            self._take_normally()

    def _take_directly(self) -> bool:
        gateway, parser = self._gateway, self.parser
        service = gateway.routes.get(self.url)
        infers = service is None
        if service is None:
            service = gateway.infer_routes.get(self.url)
        if (
            service is None
            or not service.dialect.direct
            or (self.cycle is not None and not self.cycle.response_complete)
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
        ):
            return False
        values = self._plain_headers()
        if values is None:
            return False
        authorization, length_text, content_type, _, json_length, accepts, *sent_ids = values
        length = int(length_text or 0)
        if not 0 < length <= service.max_body_bytes or not service.access.allows(authorization):
            return False
        if infers:
            if not self._takes_infer(json_length, accepts):
                return False
        elif is_media(content_type) or is_array(content_type):
            return False
        else:
            self._dialect = None
        closes = not parser.should_keep_alive()
        self._ids = None
        if any(sent_ids):
            try:
                self._ids = RequestIds(*sent_ids)
            except StokerError:
                return False
        elif self._is_whole(self._new_head):
            head = PlainHead(service, authorization, length, self._dialect, closes)
            self._gateway.remember(self._new_head, head)
        if length > LARGE_BODY_BYTES:
            if not self._gateway.bodies.reserve(length):
                return False
            self._reserved_bytes = length
        self._receiving = service
        self._first_chunk = b""
        self._direct.response_complete = False
        self._direct.keep_alive = not closes
        self.cycle = self._direct  # type: ignore[assignment]
        return True

    def _takes_infer(self, json_length: bytes, accepts: bytes) -> bool:
        if b"gzip" in accepts or b"deflate" in accepts:
            return False
        try:
            self._dialect = InferDialect.for_length(json_length)
        except StokerError:
            return False
        return True

    def _plain_headers(self) -> list[bytes] | None:
        """Values in the order of the names above, empty where absent; None if the request is not plain."""
        values = [b""] * _NOT_PLAIN
        for name, value in self.headers:
            known = _HEADERS.get(name)
            if known == _NOT_PLAIN or (known in _ONCE and values[known]):
                return None
            if known is not None:
                values[known] = value
        return values if values[_HOST] and len(self.headers) <= MAX_HEADERS else None

    def _is_whole(self, head: bytes) -> bool:
        """Whether these bytes are the request line and the headers that were parsed, and nothing else."""
        return head.startswith(b"POST ") and head.count(b"\r\n") == head.count(b"\n") == len(self.headers) + 2

    def _take_normally(self) -> None:
        """Let uvicorn take the request: make up for what its `on_message_begin` would have done."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        if any(name == b"transfer-encoding" for name, _ in headers):
            # What has arrived with the head is not counted.
            self._framing_bytes = -_READ_BYTES
        super().on_headers_complete()
        # Trailers are no headers of the request, which have been looked at.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self.idle_sweeps = 0
        self.arrived_bytes += len(body)
        if self._framing_bytes is not None:
            self._framing_bytes -= len(body)
        if self._receiving is None:
            super().on_body(body)
        elif self._gathered is not None:
            self._gathered.write(body)
        elif self._first_chunk:
            # Other than joined chunks, its content is never there twice.
            self._gathered = io.BytesIO()
            self._gathered.write(self._first_chunk)
            self._gathered.write(body)
        else:
            self._first_chunk = body

    def on_message_complete(self) -> None:
        if self._offered:
            return
        self._between = True
        self._framing_bytes = None
        self._new_head = b""
        service = self._receiving
        if service is None:
            super().on_message_complete()
            return
        self._receiving = None
        body = self._first_chunk if self._gathered is None else self._gathered.getvalue()
        self._first_chunk, self._gathered = b"", None
        self._score(service, body, self._ids, self._dialect)

    def _score(self, service: Service, body: bytes, ids: RequestIds | None, dialect: Dialect | None) -> None:
        direct = self._direct
        direct.response_complete = False
        self.cycle = direct  # type: ignore[assignment]  # it has all that uvicorn uses of a cycle
        self._call = service.score_soon(body, ids, self._respond, dialect)

    def _respond(self, status: int, lines: bytes, body: bytes) -> None:
        direct = self._direct
        direct.response_complete = True
        self._call = None
        self.idle_sweeps = 0
        if self._reserved_bytes:
            self._release_reserved()
        self.server_state.total_requests += 1
        transport = self.transport
        if transport.is_closing():
            return
        closing = self._gateway.closes or not direct.keep_alive
        if closing and not self._gateway.closes:
            lines += CLOSE_LINE
        transport.write(b"".join((STATUS_LINE[status], self._gateway.default_lines, lines, b"\r\n", body)))
        if closing:
            transport.close()
        elif self.pipeline:
            self.on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; uvicorn calls this, and the connection ends with it."""
        self._refuse(MalformedBody(msg))

    def time_out(self) -> None:
        """End a connection whose request does not arrive, or that has been idle for too long."""
        if self.receiving:
            self._refuse(RequestTimeout("The request did not arrive in time."))
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # what asyncio expects; uvicorn says None
        """The client sends no more: it has gone, or it only waits for what it has asked for."""
        if self.receiving:
            self._refuse(MalformedBody("The request ended before its body was complete."))
        if self.transport.is_closing() or not self.busy:
            return False
        self.cycle.keep_alive = False
        direct = self.cycle is self._direct  # type: ignore[comparison-overlap]  # see _take_directly
        modern = direct or self.parser.get_http_version() == "1.1"
        if modern and not getattr(self.cycle, "response_started", False):
            # From here both look the same. A client that has gone resets the connection when something
            # arrives; one that waits ignores an interim answer (RFC 9110, section 15.2).
            self.transport.write(_GO_ON)
            self.loop.call_later(_LOOK_AGAIN_S, self._look_after_end)
        return True

    def _look_after_end(self) -> None:
        """End a connection whose client has gone; nothing is read from it that would say so."""
        if self.transport.is_closing() or not self.busy:
            return
        state = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == _CLOSE_WAIT:
            self.loop.call_later(_LOOK_AGAIN_S, self._look_after_end)
        else:
            self.transport.abort()

    def _refuse(self, error: StokerError) -> None:
        if self.transport.is_closing():
            return
        if self.busy:
            # The caller would take it for the answer to the request before, which is the connection's last now.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        body = error_body(error)
        lines = json_lines(body) + error_lines(error) + CLOSE_LINE
        head = STATUS_LINE[error.status] + self._gateway.default_lines + lines
        self.transport.write(b"".join((head, b"\r\n", body)))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._call is not None:
            self._call.abandon()
            self._call = None
        self._release_reserved()
        self._receiving = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        # A client that does not read its answers gets no more of its requests read.
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()

    def _release_reserved(self) -> None:
        if self._reserved_bytes:
            self._gateway.bodies.release(self._reserved_bytes)
            self._reserved_bytes = 0
