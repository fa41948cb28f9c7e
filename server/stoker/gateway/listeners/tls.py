"""A port with TLS: its connections are accepted, handed over and counted before a byte of them is read (decision 43).

The event loop's own servers would begin each handshake at once, always with the same context, and would not report
handshakes that fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from stoker.errors import MalformedBody
from stoker.gateway.http.responses import CLOSE_LINE, error_body, error_lines, json_lines
from stoker.gateway.listeners.acceptor import Acceptor
from stoker.metrics.memory import MetricPage
from stoker.system.certificates import FollowedCertificate, TlsFiles

logger = logging.getLogger(__name__)

_ALPN: Final = {"http": ("http/1.1",), "grpc": ("h2",)}
_ACCEPTED_A_TURN: Final = 16
_BACKLOG: Final = 2048
_HANDSHAKE_S: Final = 10.0
"""A connection whose handshake takes longer is closed."""
_FAREWELL_S: Final = {"http": 3600.0, "grpc": 30.0}
"""How long an end may take. The HTTP listener ends connections itself: slow readers are not cut off."""
_ACCEPT_AGAIN_S: Final = 1.0
_LOG_EVERY_S: Final = 60.0
_NOT_TLS: Final = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER"})
_PLAIN_HTTP: Final = MalformedBody(
    "This port speaks TLS: its address begins with https://, not with http://."
)


class TlsListener:
    """Accepts the TLS connections of one protocol in a frontend; belongs to its event loop.

    Attributes:
        pending: How many handshakes are under way.
    """

    def __init__(
        self, files: TlsFiles, protocol: str, page: MetricPage, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the certificate; nothing is accepted before `start`."""
        self._certificate = FollowedCertificate(files, _ALPN[protocol])
        self._protocol, self._page, self._clock_s = protocol, page, clock_s
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.pending = 0
        self._all_settled = asyncio.Event()
        self._unlogged, self._logged_s = 0, -math.inf
        self._make_protocol: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol
        self._acceptor = Acceptor()
        self._pending_changed: Callable[[], None] = lambda: None
        self._report_expiry()

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return bool(self._listening)

    def start(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        acceptor: Acceptor,
        pending_changed: Callable[[], None],
    ) -> None:
        """Set how connections are served, before any is accepted; those that `acceptor` refuses are closed."""
        self._make_protocol, self._acceptor, self._pending_changed = make_protocol, acceptor, pending_changed

    def listen(self, sock: socket.socket) -> None:
        """Accept the connections of a socket, and own the socket."""
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._listening.append(sock)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def close(self) -> None:
        """Accept nothing more; handshakes go on."""
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.remove_reader(sock.fileno())
            sock.close()
        self._listening.clear()

    def check_certificate(self) -> None:
        """Load the certificate again if its file has changed; call this once a second."""
        self._certificate.reload_if_changed()
        self._report_expiry()

    async def wait_for_handshakes(self, timeout_s: float) -> None:
        """Wait until no handshake is under way, or for `timeout_s`."""
        self._all_settled.clear()
        if self.pending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_settled.wait(), timeout_s)

    def begin(self, connection: socket.socket) -> None:
        """Serve a connection that has been accepted, in a task."""
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Counted now, not in the next turn: more connections are accepted in this one.
        self._count(1)

    async def serve(self, connection: socket.socket) -> None:
        """Serve a connection that another frontend has handed over; raise OSError if the handshake has failed."""
        if not self._acceptor.accepts(connection.fileno(), handed_over=True):
            connection.close()
            return
        self._count(1)
        await self._shake_hands(connection)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            await self._shake_hands(connection)

    async def _shake_hands(self, connection: socket.socket) -> None:
        # The loop closes its own descriptor with the handshake; callers that speak plain HTTP get an answer.
        copy = -1
        try:
            connection.setblocking(False)
            copy = os.dup(connection.fileno())
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._certificate.current.context,
                ssl_handshake_timeout=_HANDSHAKE_S,
                ssl_shutdown_timeout=_FAREWELL_S[self._protocol],
            )
        except OSError as error:
            self._count_failure(error, copy)
            connection.close()
            raise
        finally:
            if copy >= 0:
                os.close(copy)
            self._count(-1)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                connection, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # There is no descriptor, and there will be none in the next turn.
                loop = asyncio.get_running_loop()
                loop.remove_reader(sock.fileno())
                loop.call_later(_ACCEPT_AGAIN_S, self._resume_accepting, sock)
                return
            if self._acceptor.accepts(connection.fileno()):
                self.begin(connection)
            else:
                connection.close()

    def _resume_accepting(self, sock: socket.socket) -> None:
        if sock in self._listening:
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def _count(self, change: int) -> None:
        self.pending += change
        if not self.pending:
            self._all_settled.set()
        self._pending_changed()

    def _report_expiry(self) -> None:
        self._page.set_certificate_expiry(self._protocol, self._certificate.current.expires_s)

    def _count_failure(self, error: OSError, copy: int) -> None:
        """Count and log a handshake that has failed, and answer a caller that speaks plain HTTP."""
        reason = getattr(error, "reason", None)
        if reason in _NOT_TLS:
            kind, problem = "not_tls", "the caller does not speak TLS"
            if reason == "HTTP_REQUEST" and self._protocol == "http":
                problem = "the caller speaks plain HTTP: http:// where https:// is meant"
                _answer_in_plain_http(copy)
        elif isinstance(error, ssl.SSLError):
            kind, problem = "refused", str(error.reason or error)
        elif isinstance(error, ConnectionAbortedError):
            kind, problem = "timeout", f"it was not complete after {_HANDSHAKE_S:g} s"
        else:
            # Mostly probes of whether the port is open.
            kind, problem = "closed", ""
        self._page.count_handshake_failure(self._protocol, kind)
        if problem:
            self._log(problem)

    def _log(self, problem: str) -> None:
        self._unlogged += 1
        now_s = self._clock_s()
        if now_s - self._logged_s < _LOG_EVERY_S:
            return
        logger.warning(
            "TLS handshakes for %s that failed: %d; the last one: %s", self._protocol, self._unlogged, problem
        )
        self._logged_s, self._unlogged = now_s, 0


def _answer_in_plain_http(descriptor: int) -> None:
    """Answer a caller that speaks plain HTTP with an error, if its connection still accepts it."""
    body = error_body(_PLAIN_HTTP)
    lines = json_lines(body) + error_lines(_PLAIN_HTTP) + CLOSE_LINE
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.setblocking(False)
        sock.send(b"".join((b"HTTP/1.1 400 Bad Request\r\n", lines, b"\r\n", body)))
        sock.shutdown(socket.SHUT_WR)
