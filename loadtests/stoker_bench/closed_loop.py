"""A closed-loop HTTP load generator: `python -m stoker_bench.closed_loop`, used where wrk is not installed.

Each connection sends the same bytes again as soon as its answer is complete; figures go to stdout as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import cast

import httptools
import numpy as np
import orjson
import uvloop

from stoker_bench.load_generator import LoadFigures

__all__ = ["closed_loop", "main"]

RECONNECT_DELAY_S = 0.02
HTTP_OK, HTTP_REDIRECTS = 200, 300


class _Tally:
    """What all connections of one run have seen."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.errors = 0
        self.closing = False


class _Connection(asyncio.Protocol):
    """One caller: writes the request, awaits the whole answer, writes it again."""

    def __init__(self, request: bytes, tally: _Tally) -> None:
        self._request = request
        self._tally = tally
        self._parser = httptools.HttpResponseParser(self)
        self._awaiting = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._awaiting = True
        self._started_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_complete(self) -> None:
        if self._tally.closing:
            return
        self._awaiting = False
        if HTTP_OK <= self._parser.get_status_code() < HTTP_REDIRECTS:
            self._tally.latencies_s.append(time.perf_counter() - self._started_s)
        else:
            self._tally.errors += 1
        if self._parser.should_keep_alive():
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._awaiting and not self._tally.closing:
            self._tally.errors += 1
        if not self.lost.done():
            self.lost.set_result(None)

    def abort(self) -> None:
        self._transport.abort()


async def _keep_calling(host: str, port: int, request: bytes, tally: _Tally) -> None:
    """Hold one connection until cancelled, with a new one whenever the server ends it."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            _, connection = await loop.create_connection(lambda: _Connection(request, tally), host, port)
        except OSError:
            tally.errors += 1
            await asyncio.sleep(RECONNECT_DELAY_S)
            continue
        try:
            await connection.lost
        finally:
            connection.abort()


async def closed_loop(host: str, port: int, request: bytes, connections: int, seconds: float) -> LoadFigures:
    """Load a server for `seconds`; requests under way at the end are not counted."""
    tally = _Tally()
    started_s = time.perf_counter()
    callers = [asyncio.create_task(_keep_calling(host, port, request, tally)) for _ in range(connections)]
    await asyncio.sleep(seconds)
    duration_s = time.perf_counter() - started_s
    tally.closing = True
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return _figures(tally.latencies_s, tally.errors, duration_s)


def _figures(latencies_s: list[float], errors: int, duration_s: float) -> LoadFigures:
    p50_s, p99_s = np.percentile(latencies_s, (50, 99)).tolist() if latencies_s else (0.0, 0.0)
    return LoadFigures(len(latencies_s), errors, duration_s, p50_s * 1e3, p99_s * 1e3)


def main() -> None:
    """Run the generator as its command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True, help="file with the request's bytes")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    load = closed_loop(args.host, args.port, args.request.read_bytes(), args.connections, args.seconds)
    print(orjson.dumps(asdict(uvloop.run(load))).decode())


if __name__ == "__main__":
    main()
