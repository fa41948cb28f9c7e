"""The fast path: plain scoring requests are answered inside uvicorn's HTTP protocol, without an ASGI cycle.

A request is plain when it is HTTP/1.1 with one Host, a POST to a scoring path with a valid key, has a
Content-Length within the limit, has no header that needs the app (Expect, Transfer-Encoding, Content-Encoding,
Upgrade, Origin, TraceId, Prefer, the name of a deployment, an image, a form or an array as Content-Type), its model's
script does not read the head, and no other request of its connection is unanswered. Every other request goes
through uvicorn to the Starlette app, which gives the same answers byte for byte, except for upper case in the names
of a script's own headers.

Clients send the same head (request line and headers) with every request. So the heads of plain requests are cached,
as bytes, together with their meaning. A request that arrives in one piece with a cached head is not parsed; only its
key is verified each time.

To uvicorn a direct request looks like one of its own cycles (`_DirectCycle`), so that its pipelining, its shutdown
and its bookkeeping of connections keep working. This depends on uvicorn's internals: pyproject.toml pins the
versions that passed the tests.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
from asyncio import Event
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from stoker.errors import Overloaded, StokerError
from stoker.gateway.gateway import DEPLOYMENT_HEADER, Gateway, PlainHead
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance, Caller
from stoker.gateway.http.request_ids import TRACEPARENT, RequestIds
from stoker.gateway.http.requests import MAX_HEADERS
from stoker.gateway.http.responses import CLOSE_LINE, refusal
from stoker.gateway.listeners.bounded import BoundedProtocol
from stoker.gateway.protocols.azure import is_array
from stoker.gateway.protocols.infer import JSON_LENGTH, InferDialect
from stoker.gateway.protocols.torchserve import PREDICTIONS
from stoker.gateway.scoring.call_options import (
    GATEWAY_HEADERS,
    PATIENCE_HEADERS,
    CallOptions,
    read_call_options,
)
from stoker.gateway.scoring.caller_identity import identify_caller
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.wire.images import is_media

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call, Dialect
    from stoker.gateway.scoring.service import Service

# Headers of scoring requests: what the fast path reads, and what it leaves to the app.
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
    _TRACE,
    _PATIENCE,
    _NOT_PLAIN,
) = range(12)
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
    TRACEPARENT: _TRACE,
    b"expect": _NOT_PLAIN,
    b"transfer-encoding": _NOT_PLAIN,
    b"content-encoding": _NOT_PLAIN,
    b"upgrade": _NOT_PLAIN,
    b"origin": _NOT_PLAIN,
    b"traceid": _NOT_PLAIN,
    b"prefer": _NOT_PLAIN,
    DEPLOYMENT_HEADER: _NOT_PLAIN,
    **dict.fromkeys((*PATIENCE_HEADERS, *GATEWAY_HEADERS), _PATIENCE),
}
# If these headers are repeated, the app answers with the error; an empty one may be the first of several.
_ONCE: Final = (_HOST, _JSON_LENGTH, _AUTHORIZATION)


def plain_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes] | None:
    """The values of the names above, in their order, empty where absent; None if the request is not plain."""
    values = [b""] * _NOT_PLAIN
    for name, value in headers:
        known = _HEADERS.get(name)
        if known == _NOT_PLAIN or (known in _ONCE and (values[known] or not value)):
            return None
        if known is not None:
            values[known] = value
    return values if values[_HOST] and len(headers) <= MAX_HEADERS else None


def is_plain_head(head: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether these bytes are exactly the request line of a POST and the headers that were parsed."""
    return head.startswith(b"POST ") and head.count(b"\r\n") == head.count(b"\n") == len(headers) + 2


# Receives long bodies straight into the memory in which they are read.
#
# A loop that passes `bytes` to a protocol copies a body twice before it is gathered: from its read buffer, and from
# the parser. So a connection with a long body hands its transport to a receiver, which lets the kernel write into the
# body itself, and takes it back for a shorter request. For short bodies the receiver would be slower: it is asked for
# memory before each read.
STRAIGHT_BODY_BYTES: Final = 1 << 18
"""Bodies from this size on are received so; for bodies of half the size it saves nothing."""

# One for all connections: it is emptied before the loop reads again. A head fits into it.
_CHUNK: Final = memoryview(bytearray(1 << 14))

_new_bytes: Final = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)


def allocate_body(length: int) -> io.BytesIO:
    """Return a stream over uninitialized memory, all of which has to be written before its value is read.

    Clearing the memory would take as long as copying the body, and the system need not provide unwritten pages.
    """
    return io.BytesIO(_new_bytes(None, length))


class BodyReceiver(asyncio.BufferedProtocol):
    """The protocol of a connection's transport while its requests have long bodies."""

    def __init__(self, connection: DirectProtocol) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._loop = asyncio.get_running_loop()
        self._holds_transport = False
        self._memory: memoryview | None = None
        self._arrived_bytes = 0

    def receive(self, body: io.BytesIO) -> None:
        """Receive the rest of a body, behind what came with the head; nothing else may hold its memory meanwhile."""
        self._memory, self._arrived_bytes = body.getbuffer(), body.tell()
        if not self._holds_transport:
            self._holds_transport = True
            self._hand_over(self)

    def _hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol of the transport: uvloop uses the new one after reading has been started again."""
        transport = self._transport
        transport.set_protocol(protocol)
        if transport.is_reading():
            transport.pause_reading()
            transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes, which ends with the body."""
        del sizehint
        self._finish()
        return _CHUNK if self._memory is None else self._memory[self._arrived_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that were read into the memory."""
        connection, memory = self._connection, self._memory
        if memory is None:
            connection.data_received(bytes(_CHUNK[:nbytes]))
            if self._memory is None and not connection.in_head:
                # This request is not received straight.
                self._holds_transport = False
                self._hand_over(connection)
            return
        self._arrived_bytes += nbytes
        if not connection.body_grew(nbytes):
            self._memory = None
        elif self._arrived_bytes == len(memory):
            # The loop holds the memory until this returns. Mostly it asks for more first, which finishes the body.
            self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        """Hand over the body once it is complete."""
        if self._memory is not None and self._arrived_bytes == len(self._memory):
            # A stream whose memory is exported would copy it.
            self._memory = None
            self._connection.on_message_complete()

    def eof_received(self) -> bool | None:
        """Handle the end of what the caller sends."""
        self._finish()
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._memory = None
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop writing: the caller does not read its answers."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Continue to write."""
        self._connection.resume_writing()


_END_OF_HEAD: Final = b"\r\n\r\n"
_REMEMBERED_HEAD_BYTES: Final = 4096


class _DirectCycle:
    """uvicorn's view of a direct request: the cycle that it reads and sets. One serves all of a connection."""

    __slots__ = ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self) -> None:
        self.body = bytearray()
        self.disconnected = False
        self.keep_alive = True
        self.message_event = Event()
        self.more_body = False
        self.response_complete = True


class DirectProtocol(BoundedProtocol):
    """uvicorn's protocol with a short path for scoring requests."""

    def __init__(self, *args: Any, gateway: Gateway, **kwargs: Any) -> None:
        super().__init__(*args, gateway=gateway, **kwargs)
        self._direct = _DirectCycle()
        self._receiving: Service | None = None
        self._dialect: Dialect | None = None
        self._options: CallOptions | None = None
        self._new_head = b""
        self._head_ends = 0
        self._allowance: Allowance | None = None
        self._ids: RequestIds | None = None
        self._first_chunk = b""
        self._gathered: io.BytesIO | None = None
        self._receives_straight = False
        self._receiver: BodyReceiver | None = None
        self._call: Call | None = None
        self._heads = gateway.heads

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._gateway.regions is not None:
            self._heads = self._gateway.heads_of(self.client[0] if self.client else "")

    @property
    def _receives_body(self) -> bool:
        return self._receiving is not None or super()._receives_body

    @property
    def _speaks_1_1(self) -> bool:
        # The parser does not see a request behind a cached head.
        direct = self.cycle is self._direct  # type: ignore[comparison-overlap]  # see _take_directly
        return direct or super()._speaks_1_1

    def retire(self) -> None:
        """Close the connection with its next answer; set in a field that is read anyway, so it costs nothing."""
        super().retire()
        if self.old:
            self._direct.keep_alive = False

    def receives_for(self, service: Service) -> bool:
        """Whether the body of a plain request to this service is arriving."""
        return self._receiving is service

    def data_received(self, data: bytes) -> None:
        if self._between:
            # Usually the head is the same as the last one, whose length is known; only whole heads are cached.
            known = self._heads.get(data[: self._head_ends])
            if known is None:
                self._head_ends = data.find(_END_OF_HEAD, 0, _REMEMBERED_HEAD_BYTES) + 4
                known = self._heads.get(data[: self._head_ends])
            end = self._head_ends
            if known is None:
                self._new_head = data[:end]
            elif (
                len(data) == end + known.body_bytes
                and (self.cycle is None or self.cycle.response_complete)
                and (caller := known.service.access.holder(known.authorization))
            ):
                if self.timeout_keep_alive_task is not None:
                    self._unset_keepalive_if_required()
                self.fresh = False
                if known.closes:
                    self._direct.keep_alive = False
                self._score(known.service, data[end:], None, known.dialect)
                if caller is not DEFAULT or known.options is not None:
                    self._set_caller(caller, known.options)
                return
            elif known.body_bytes >= STRAIGHT_BODY_BYTES and self._begin_straight(known, data, end):
                return
        # As in the base class, but without calling it: clients that send head and body separately come here twice.
        self._unset_keepalive_if_required()
        self._feed(data)
        if self.in_head or self._framing_bytes is not None:
            self._bound(len(data))
        elif self._receives_straight:
            # This request waits for its body, whose end the parser does not see.
            self.parser = httptools.HttpRequestParser(self)
            self._receive_straight()

    def _begin_straight(self, known: PlainHead, data: bytes, end: int) -> bool:
        """Receive a long body without the parser, if the cached head announces one that has not arrived."""
        if (
            known.body_bytes > LARGE_BODY_BYTES
            or end + known.body_bytes <= len(data)
            or not (self.cycle is None or self.cycle.response_complete)
            or not (caller := known.service.access.holder(known.authorization))
        ):
            return False
        self._unset_keepalive_if_required()
        self.on_message_begin()
        self.in_head = False
        self._dialect, self._ids, self._options = known.dialect, None, known.options
        if caller is not DEFAULT:
            self._options = (
                CallOptions(caller) if known.options is None else known.options._replace(caller=caller)
            )
        self._expect(known.service, known.body_bytes, closes=known.closes)
        self.on_body(data[end:])
        self._receive_straight()
        return True

    def _expect(self, service: Service, length: int, *, closes: bool) -> None:
        direct = self._direct
        self._receiving, self._first_chunk = service, b""
        if length >= STRAIGHT_BODY_BYTES:
            self._gathered, self._receives_straight = allocate_body(length), True
        direct.response_complete = False
        direct.keep_alive = not (closes or self.old)
        self.cycle = direct  # type: ignore[assignment]  # it has all that uvicorn uses of a cycle

    def _receive_straight(self) -> None:
        """Receive the rest of a long body without the parser, unless its beginning was refused."""
        self._receives_straight = False
        if self._receiving is None or self._gathered is None:
            return
        if self._receiver is None:
            self._receiver = BodyReceiver(self)
        self._receiver.receive(self._gathered)

    def body_grew(self, more_bytes: int) -> bool:
        """Count bytes of a body that have arrived; False if there is no room for them and the request was refused."""
        self.idle_sweeps = 0
        self.arrived_bytes += more_bytes
        return self._allowance is None or self._cover_body(self._allowance)

    def _handle_directly(self) -> bool:
        gateway, parser, url = self._gateway, self.parser, self.url
        service = (
            gateway.routes.get(url) or gateway.infer_routes.get(url) or gateway.prediction_routes.get(url)
        )
        if (
            service is None
            or not service.dialect.direct
            or (self.cycle is not None and not self.cycle.response_complete)
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
        ):
            return False
        values = plain_headers(self.headers)
        if values is None:
            return False
        authorization, length_text, content_type, host, json_length, accepts, *sent_ids, patience = values
        length = int(length_text or 0)
        if (
            not 0 < length <= service.limits.max_body_bytes
            or not (caller := service.access.holder(authorization))
            or not (gateway.hosts is None or gateway.hosts.have(host))
        ):
            return False
        if not self._choose_dialect(content_type, json_length, accepts):
            return False
        closes = not parser.should_keep_alive()
        try:
            self._options = self._find_asker(caller) if patience or caller is not DEFAULT else None
        except StokerError:
            return False
        self._ids = None
        if any(sent_ids):
            try:
                self._ids = RequestIds(*sent_ids)
            except StokerError:
                return False
        elif is_plain_head(self._new_head, self.headers):
            head = PlainHead(service, authorization, length, self._dialect, closes, self._options)
            self._gateway.cache_head(self._heads, self._new_head, head)
        if length > LARGE_BODY_BYTES and not self._announce(service, authorization, length):
            return False
        self._expect(service, length, closes=closes)
        return True

    def _find_asker(self, caller: CallerTerms) -> CallOptions | None:
        headers = self.headers
        return read_call_options(caller, dict(headers), headers, trusts_proxy=self._gateway.trusts_proxy)

    def _announce(self, service: Service, authorization: bytes, length: int) -> bool:
        """Announce a large body; False if there is no room, and the app has to answer."""

        def find_caller() -> Caller:
            return identify_caller(service, authorization, self.client[0] if self.client else "")

        allowance = Allowance(self._gateway.bodies, find_caller)
        try:
            allowance.announce(length)
        except Overloaded:
            return False
        self._allowance = allowance
        return True

    def _choose_dialect(self, content_type: bytes, json_length: bytes, accepts: bytes) -> bool:
        """Set the dialect of the path; False if the app has to read the body."""
        if self.url in self._gateway.infer_routes:
            return self._choose_infer_dialect(json_length, accepts)
        self._dialect = PREDICTIONS if self.url in self._gateway.prediction_routes else None
        return not (is_media(content_type) or is_array(content_type))

    def _choose_infer_dialect(self, json_length: bytes, accepts: bytes) -> bool:
        if b"gzip" in accepts or b"deflate" in accepts:
            return False
        regions = self._gateway.regions
        if regions is not None and not regions.serves(self.client[0] if self.client else ""):
            regions = None
        try:
            self._dialect = InferDialect.for_length(json_length, regions)
        except StokerError:
            return False
        return True

    def on_body(self, body: bytes) -> None:
        if self._receiving is None:
            super().on_body(body)
            return
        self.idle_sweeps = 0
        self.arrived_bytes += len(body)
        if self._gathered is not None:
            if self._allowance is None or self._cover_body(self._allowance):
                self._gathered.write(body)
        elif self._first_chunk:
            # Unlike joining the chunks, this never holds the content twice.
            self._gathered = io.BytesIO()
            self._gathered.write(self._first_chunk)
            self._gathered.write(body)
        else:
            self._first_chunk = body

    def on_message_complete(self) -> None:
        service = self._receiving
        if service is None:
            super().on_message_complete()
            self._new_head = b""
            return
        self._between = True
        self._new_head = b""
        self._receiving = None
        self._receives_straight = False
        body = self._first_chunk if self._gathered is None else self._gathered.getvalue()
        self._first_chunk, self._gathered = b"", None
        self._score(service, body, self._ids, self._dialect)
        if self._options is not None:
            self._set_caller(self._options.caller, self._options)

    def _set_caller(self, caller: CallerTerms, options: CallOptions | None) -> None:
        """Set the caller of the latest call, before it is submitted; the caller's terms may change."""
        if self._call is not None:
            options = CallOptions(caller) if options is None else options._replace(caller=caller)
            options.apply_to(self._call)

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
        if self._allowance is not None:
            self._release_allowance()
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

    def connection_lost(self, exc: Exception | None) -> None:
        if self._call is not None:
            self._call.abandon()
            self._call = None
        self._release_allowance()
        self._receiving = None
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn notifies the latest cycle, which may be queued behind this one.
            running.disconnected = True
            running.message_event.set()
        self._running = self._receiver = None
        super().connection_lost(exc)

    def _cover_body(self, allowance: Allowance) -> bool:
        """Reserve memory for what has arrived of a large body; refuse the request if there is no room."""
        service = self._receiving
        assert service is not None, "its body arrives"
        try:
            allowance.cover(self.arrived_bytes)
        except Overloaded as error:
            self._gateway.report_refusal(service, dict(self.headers), error)
            status, body = error.status, None
            if self._dialect is not None:
                status, _, body = self._dialect.refusal(error)
            answer = refusal(error, dict(self.headers), status, body)
            self._receiving = self._gathered = None
            self._direct.response_complete = True
            self._release_allowance()
            # The body is too long to read it only to drop it, so the answer closes the connection.
            self._answer_last(*answer)
            return False
        return True

    def _release_allowance(self) -> None:
        if self._allowance is not None:
            self._allowance.release()
            self._allowance = None
