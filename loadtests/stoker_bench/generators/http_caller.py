"""A caller on one kept-alive HTTP connection: bytes out, the status of the answer in."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import TYPE_CHECKING

import httptools

from stoker_bench.generators.kept_connection import KeptConnection

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HTTP_OK", "HttpCaller", "allow_many_connections", "is_success"]

HTTP_OK, HTTP_REDIRECTS = 200, 300


def is_success(status: int) -> bool:
    """Tell whether a status is one of 2xx."""
    return HTTP_OK <= status < HTTP_REDIRECTS


def allow_many_connections() -> None:
    """Raise this process's limit of open files as far as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class HttpCaller(KeptConnection):
    """One connection with at most one request under way; what follows from an answer is its subclasses'.

    Attributes:
        awaiting: Whether a request is under way.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parser = httptools.HttpResponseParser(self)
        self.awaiting = False

    def opened(self) -> None:
        """Hear that requests can be sent."""

    def answered(self, status: int, kept: bool) -> None:
        """Hear of a whole answer, and whether the connection takes another request."""

    def dropped(self) -> None:
        """Hear that the connection ended while a request was under way."""

    def send(self, request: bytes) -> None:
        """Send a whole request."""
        self.awaiting = True
        self._transport.write(request)

    def send_parts(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send a whole request that lies in several places."""
        self.awaiting = True
        self._transport.writelines(parts)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        super().connection_made(transport)
        self.opened()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.awaiting = False
        kept = self._parser.should_keep_alive()
        if not kept:
            self._transport.close()
        self.answered(self._parser.get_status_code(), kept)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        if self.awaiting:
            self.dropped()
        super().connection_lost(exc)
