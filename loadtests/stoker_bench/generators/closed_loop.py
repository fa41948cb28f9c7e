"""A connection that a load generator holds: made anew whenever the server ends or refuses it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, cast

import httptools

from stoker_bench.generators.load_generator import LoadFigures, figures_of

RECONNECT_DELAY_S: Final = 0.02


class KeptConnection(asyncio.Protocol):
    """One connection of `keep_connected`."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        del exc
        if not self.lost.done():
            self.lost.set_result(None)


async def keep_connected(
    host: str,
    port: int,
    make: Callable[[], KeptConnection],
    refused: Callable[[float], None] = lambda _: None,
) -> None:
    """Hold one connection until cancelled, with a new one whenever the server ends it.

    Args:
        make: Makes the protocol of each connection.
        refused: Called with the time of each failed attempt, by `time.monotonic`.
    """
    loop = asyncio.get_running_loop()
    while True:
        tried_s = time.monotonic()
        try:
            _, connection = await loop.create_connection(make, host, port)
        except OSError:
            refused(tried_s)
            await asyncio.sleep(RECONNECT_DELAY_S)
            continue
        try:
            await connection.lost
        finally:
            connection.abort()


HTTP_OK, HTTP_REDIRECTS = 200, 300


def is_success(status: int) -> bool:
    """Return whether a status is 2xx."""
    return HTTP_OK <= status < HTTP_REDIRECTS


def allow_many_connections() -> None:
    """Raise this process's limit of open files as far as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class HttpCaller(KeptConnection):
    """One connection with at most one request in flight; subclasses handle answers."""

    def __init__(self) -> None:
        super().__init__()
        self._parser = httptools.HttpResponseParser(self)
        self.awaiting = False

    def opened(self) -> None:
        """Called when requests can be sent."""

    def answered(self, status: int, kept: bool) -> None:
        """Called with each answer, and whether the connection accepts another request."""

    def dropped(self) -> None:
        """Called when the connection ends during a request."""

    def send(self, request: bytes) -> None:
        """Send a whole request."""
        self.awaiting = True
        self._transport.write(request)

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


class Tally:
    """Latencies and errors of all connections of one run."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.errors = 0
        self.closing = False

    def count(self, began_s: float, *, succeeded: bool) -> None:
        """Count an answer to a request that began at this reading of `time.perf_counter`."""
        if succeeded:
            self.latencies_s.append(time.perf_counter() - began_s)
        else:
            self.count_error()

    def count_error(self) -> None:
        """Count a failed request, except at the end of the run."""
        if not self.closing:
            self.errors += 1


Caller = Callable[[Tally], KeptConnection]
"""Makes a connection that calls, and counts in the tally."""


class _Connection(HttpCaller):
    """One caller: writes a request, awaits the whole answer, writes the next one."""

    def __init__(self, requests: Iterator[bytes], tally: Tally) -> None:
        super().__init__()
        self._requests = requests
        self._tally = tally

    def opened(self) -> None:
        self._call()

    def _call(self) -> None:
        self._started_s = time.perf_counter()
        self.send(next(self._requests))

    def answered(self, status: int, kept: bool) -> None:
        if self._tally.closing:
            return
        self._tally.count(self._started_s, succeeded=is_success(status))
        if kept:
            self._call()

    def dropped(self) -> None:
        self._tally.count_error()


def http_caller(*requests: bytes) -> Caller:
    """Return how callers of HTTP/1.1 are made; together they send these requests in turn."""
    return partial(_Connection, itertools.cycle(requests))


async def closed_loop(
    host: str, port: int, caller: Caller, connections: int, seconds: float, begin_s: float | None = None
) -> tuple[LoadFigures, list[float]]:
    """Load a server for `seconds`; requests in flight at the end are not counted.

    Args:
        begin_s: When answers begin to count, by `time.monotonic`; None for at once. Earlier errors count too.

    Returns:
        The figures, and the latency of each counted answer in seconds.
    """
    tally = Tally()
    callers = [
        asyncio.create_task(keep_connected(host, port, lambda: caller(tally), lambda _: tally.count_error()))
        for _ in range(connections)
    ]
    if begin_s is not None:
        await asyncio.sleep(begin_s - time.monotonic())
        tally.latencies_s.clear()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    duration_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    tally.closing = True
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    figures = figures_of(tally.latencies_s, tally.errors, duration_s, cores=cpu_s / duration_s)
    return figures, tally.latencies_s
