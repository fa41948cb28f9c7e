"""uvicorn's HTTP protocol with bounds: on the size of heads and chunks, and on the time of slow or idle connections.

uvicorn limits neither the size of a head nor the extensions of chunks, and it closes a connection whose client has
half-closed it. It treats every offer of an upgrade as an upgrade, and answers malformed HTTP with its own text.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import socket
import struct
import termios
from contextlib import suppress
from functools import partial
from http import HTTPMethod
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stoker.errors import (
    HeaderTooLarge,
    MalformedBody,
    MethodNotAllowed,
    RequestTimeout,
    StokerError,
    TargetTooLong,
)
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.requests import (
    MAX_HEAD_BYTES,
    MAX_TARGET_BYTES,
    NOT_ALLOWED,
    SCORING_METHODS,
)
from stoker.gateway.http.responses import CLOSE_LINE, error_body, error_lines, json_lines
from stoker.gateway.listeners.idle_watch import IdleWatch
from stoker.gateway.listeners.message_bounds import MessageBounds

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, HTTPScope

    from stoker.gateway.listeners.answer_headers import HttpState
    from stoker.gateway.listeners.app_throttle import AppThrottle

# The parser closes the connection on an unknown method, although such a request line is valid HTTP.
_REQUEST_LINE: Final = re.compile(rb"([A-Z]+) [^ \r\n]+ HTTP/1\.[01]\r?\n")
_METHODS: Final = frozenset(method.encode() for method in HTTPMethod)
_OFFER: Final = frozenset({b"upgrade", b"http2-settings"})
_GO_ON: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE_WAIT: Final = 8
_RECHECK_S: Final = 0.05


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with bounds.

    Attributes:
        idle_sweeps: How many sweeps of the listener have passed since this connection last made progress.
        arrived_bytes: How many bytes of the body of the last request have arrived.
        watch: Ends the connection when nothing moves on it.
        fresh: Whether nothing has arrived on the connection yet.
        in_head: Whether the head of a request has begun to arrive and is not complete.
        retires_s: When the connection reaches its maximum age, in the loop's time; the next answer closes it.
        throttle: Delays requests that score nothing; None begins all at once.
    """

    retires_s = math.inf
    old = False
    throttle: AppThrottle | None = None
    server_state: HttpState

    def __init__(self, *args: Any, gateway: Gateway, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.idle_sweeps = 0
        self.arrived_bytes = 0
        self.watch = IdleWatch()
        self.fresh = True
        self._gateway = gateway
        self._between = True
        self.in_head = False
        self._bounds = MessageBounds()
        self._stripped_head = b""
        self._running: RequestResponseCycle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request that has arrived is unanswered; the next one may already be arriving."""
        if self.pipeline:
            return True
        return self.cycle is not None and not self.cycle.response_complete and not self._receives_body

    @property
    def receiving(self) -> bool:
        """Whether a request has begun to arrive and is not complete."""
        return self.in_head or self._receives_body

    @property
    def arriving(self) -> bool:
        """Whether a request is still arriving, even if it has been answered already."""
        return not self._between

    @property
    def unacknowledged_bytes(self) -> int:
        """How much of its answers has not been taken from this process."""
        return int(self.transport.get_write_buffer_size())

    def idle_limit_s(self, keep_alive_s: int) -> int:
        """Return how many idle seconds are too many, given the limit for keep-alive."""
        return keep_alive_s

    def close_unless_readable(self) -> None:
        """Close the connection, which is idle, unless a request waits in the kernel: its caller would get a reset."""
        transport = self.transport
        if transport.is_closing():
            return
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as sock:
            (unread_bytes,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
            if unread_bytes:
                return
            # The transport closes its socket later; the caller must know before it sends one more request.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        transport.close()

    def retire(self) -> None:
        """Close the connection with its next answer, so that the client connects again, perhaps to another server."""
        cycle = self.cycle
        begun = getattr(cycle, "response_started", False) and not cycle.response_complete
        if self.pipeline or begun:
            # A pipelined request would be lost with the connection, or its answer would not announce the close.
            return
        self.old = True
        if cycle is not None:
            cycle.keep_alive = False

    @property
    def _receives_body(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and bool(self.cycle.more_body)

    @property
    def _speaks_1_1(self) -> bool:
        """Whether the request that is being answered is HTTP/1.1."""
        return bool(self.parser.get_http_version() == "1.1")

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._feed(data)
        if self.in_head or self._bounds.framing_bytes is not None:
            self._bound(len(data))

    def _feed(self, data: bytes) -> None:
        """Feed the parser; a request that offers an upgrade is parsed again without the offer."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # After an offer of an upgrade the parser treats all that follows as another protocol, so a new one
            # continues.
            self.parser = httptools.HttpRequestParser(self)
            offered, self._stripped_head = self._stripped_head, b""
            if rest := offered + data[upgrade.args[0] :]:
                self._feed(rest)
        except httptools.HttpParserInvalidMethodError:
            line = _REQUEST_LINE.match(data)
            # The method is known, so the parser has failed on something behind it.
            if line is not None and line[1] not in _METHODS:
                self._refuse(MethodNotAllowed(NOT_ALLOWED, allowed=SCORING_METHODS))
            else:
                self.send_400_response("The request is not HTTP.")
        except httptools.HttpParserError:
            self.send_400_response("The request is not HTTP.")

    def _strip_upgrade(self) -> bytes:
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

    def _bound(self, received_bytes: int) -> None:
        """Close a connection that sends too much beside the content of bodies."""
        if self.in_head:
            if not self._bounds.exceed_head(received_bytes):
                return
            if not self.headers and len(self.url) > MAX_TARGET_BYTES:
                self._refuse(TargetTooLong.over(MAX_TARGET_BYTES))
            else:
                self._refuse(HeaderTooLarge.over(MAX_HEAD_BYTES))
        elif self._bounds.exceed_framing(received_bytes):
            if self.receiving:
                self._refuse(MalformedBody("The chunks of the body have too long extensions or trailers."))
            self.transport.close()

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._bounds.begin_chunk()

    def on_message_begin(self) -> None:
        # uvicorn's scope is made later, only for requests that need one.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.idle_sweeps = self.arrived_bytes = self.watch.arriving_sweeps = 0
        self.fresh = False
        bounds = self._bounds
        bounds.framing_bytes, bounds.head_bytes = None, -1
        self.in_head = True
        self._between = False

    def on_headers_complete(self) -> None:
        self.in_head = False
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._stripped_head = self._strip_upgrade()
        elif not self._handle_directly():
            self._handle_by_app()
        if self.old and self.cycle is not None:
            self.cycle.keep_alive = False

    def _handle_directly(self) -> bool:
        """Handle the request without the app, if possible; overridden by the fast path."""
        return False

    def _handle_by_app(self) -> None:
        """Let uvicorn handle the request: do what its `on_message_begin` would have done."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        if any(name == b"transfer-encoding" for name, _ in headers):
            self._bounds.expect_chunks()
        super().on_headers_complete()
        # Trailers must not be added to the headers, which have been checked already.
        self.headers = []

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if self.throttle is None or self._scores(cycle.scope):
            super()._start_asgi_task(cycle, app)
        else:
            self.throttle.submit(partial(self._begin, cycle, app))

    def _begin(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        # A caller that has disconnected needs no answer.
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, app)

    def _scores(self, scope: HTTPScope) -> bool:
        """Whether a request scores rows with a valid key: such requests begin in one turn, and share batches."""
        if scope["method"] != "POST" or scope["path"].endswith("/index"):
            return False
        authorization = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return any(service.access.allows(authorization) for service in self._gateway.directory.all_services)

    def on_body(self, body: bytes) -> None:
        self.idle_sweeps = 0
        self.arrived_bytes += len(body)
        if self._bounds.framing_bytes is not None:
            self._bounds.framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._stripped_head:
            return
        self._between = True
        self._bounds.framing_bytes = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP; uvicorn calls this, and closes the connection afterwards."""
        self._refuse(MalformedBody(msg))

    def time_out(self) -> None:
        """Close a connection whose request does not arrive in time, or that has been idle for too long."""
        if self.receiving:
            self._refuse(RequestTimeout("The request did not arrive in time."))
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # what asyncio expects; uvicorn says None
        """Handle the end of what the client sends: it has gone, or only waits for answers."""
        if self.receiving:
            self._refuse(MalformedBody("The request ended before its body was complete."))
        if self.transport.is_closing() or not self.busy:
            return False
        self.cycle.keep_alive = False
        if self._speaks_1_1 and (probe := self._probe()):
            self.transport.write(probe)
            self.loop.call_later(_RECHECK_S, self._check_half_closed)
        return True

    def _probe(self) -> bytes:
        """Return bytes that a waiting client ignores, and that make a client that has gone reset the connection.

        Otherwise the two cannot be distinguished.
        """
        running = self._running
        # uvicorn's cycle is that of the request that came last, which may be queued behind this one.
        cycle = self.cycle if running is None or running.response_complete else running
        if not getattr(cycle, "response_started", False):
            # An interim answer is ignored (RFC 9110, section 15.2).
            return _GO_ON
        # Lengths of chunks may begin with zeros (RFC 9112, section 7.1), and chunks are written whole.
        return b"0" if getattr(cycle, "chunked_encoding", None) else b""

    def _check_half_closed(self) -> None:
        """Abort a half-closed connection whose client has gone; as it is not read, nothing else would notice."""
        if self.transport.is_closing() or not self.busy:
            return
        state = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == _CLOSE_WAIT:
            self.loop.call_later(_RECHECK_S, self._check_half_closed)
        else:
            self.transport.abort()

    def _refuse(self, error: StokerError) -> None:
        if self.transport.is_closing():
            return
        if self.busy:
            # The client would take it for the answer to the previous request, whose answer closes the connection now.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        body = error_body(error)
        lines = json_lines(body) + error_lines(error) + CLOSE_LINE
        self._answer_last(error.status, lines, body)

    def _answer_last(self, status: int, lines: bytes, body: bytes) -> None:
        """Write an answer with `Connection: close`."""
        head = STATUS_LINE[status] + self.server_state.default_lines + lines
        self.transport.write(b"".join((head, b"\r\n", body)))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        running, self._running = self._running, None
        if running is not None and not running.response_complete:
            # uvicorn notifies the latest cycle, which may be queued behind this one.
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        # Requests of a client that does not read its answers are not read any further.
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()
