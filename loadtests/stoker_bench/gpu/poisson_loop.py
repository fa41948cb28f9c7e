"""One process of Poisson arrivals on kept-alive connections: `python -m stoker_bench.gpu.poisson_loop`.

An open loop: queries are sent when they are due, whether or not earlier ones have been answered. One for which no
connection is free waits, and that counts. Figures go to stdout as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import uvloop

from stoker_bench.generators.closed_loop import HttpCaller, allow_many_connections, is_success, keep_connected
from stoker_bench.gpu.arrivals import Arrivals, LoadGen, Query, Schedule

DRAIN_S = 8.0
TOLERATED_SHARE = 0.01
SWITCH_S = 1e-4
"""The thread that issues queries must not wait for the loop's thread longer than a fraction of their latency."""


class _Pool:
    """The connections, the waiting queries, and the results of all queries."""

    def __init__(self, request: bytes, limit_s: float, tolerated: float, arrivals: Arrivals) -> None:
        self._request = request
        self._limit_s = limit_s
        self._tolerated = tolerated
        self._arrivals = arrivals
        self._idle: list[_Caller] = []
        self._waiting: deque[Query] = deque()
        self.latencies_s: list[float] = []
        self.issued = self.under_way = self.errors = self.late = 0
        self.overloaded = threading.Event()
        self._drained: asyncio.Future[None] | None = None

    def issue(self, query: Query) -> None:
        """Send a query, as soon as a connection is free."""
        self.issued += 1
        if self.overloaded.is_set():
            self._arrivals.complete(query)
            return
        self.under_way += 1
        while self._idle:
            caller = self._idle.pop()
            if not caller.lost.done():
                caller.ask(query, self._request)
                return
        self._waiting.append(query)

    def take(self, caller: _Caller) -> None:
        """Use a connection that is free."""
        if self._waiting:
            caller.ask(self._waiting.popleft(), self._request)
        else:
            self._idle.append(caller)

    def finish(self, query: Query, status: int) -> None:
        """Take note of an answer, or with the status 0 that there is none."""
        latency_s, succeeded = time.monotonic() - query.due_s, is_success(status)
        self.under_way -= 1
        if succeeded:
            self.latencies_s.append(latency_s)
        else:
            self.errors += 1
        if not succeeded or latency_s > self._limit_s:
            self.late += 1
            if self.late > self._tolerated and not self.overloaded.is_set():
                self._abandon()
        self._arrivals.complete(query)
        self._notify_drained()

    def _abandon(self) -> None:
        """The percentile cannot be met any more: send nothing further, so that the server is free again soon."""
        self.overloaded.set()
        while self._waiting:
            self.under_way -= 1
            self._arrivals.complete(self._waiting.popleft())

    async def drain(self) -> None:
        """Await the last answers; missing ones count as failed."""
        self._drained = asyncio.get_running_loop().create_future()
        self._notify_drained()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._drained
        self.errors += self.under_way

    def _notify_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and not self.under_way:
            self._drained.set_result(None)


class _Caller(HttpCaller):
    """A connection of the pool."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self._pool = pool
        self._query: Query | None = None

    def ask(self, query: Query, request: bytes) -> None:
        self._query = query
        self.send(request)

    def opened(self) -> None:
        self._pool.take(self)

    def answered(self, status: int, kept: bool) -> None:
        self._finish(status)
        if kept:
            self._pool.take(self)

    def dropped(self) -> None:
        self._finish(0)

    def _finish(self, status: int) -> None:
        query, self._query = self._query, None
        if query is not None:
            self._pool.finish(query, status)


async def poisson_loop(
    host: str,
    port: int,
    request: bytes,
    arrivals: Arrivals,
    *,
    connections: int,
    planned: float,
    limit_s: float,
    begin_s: float,
) -> tuple[dict[str, Any], list[float]]:
    """Send queries as they arrive, and await their answers.

    Args:
        connections: Maximum number of requests in flight; further ones wait.
        planned: Expected number of requests.
        limit_s: The run ends early once more than 1 % of them took longer.
        begin_s: When arrivals begin, by `time.monotonic`.

    Returns:
        What `stoker_bench.gpu.poisson.combined_run` combines, and the latency of each answer in seconds.
    """
    pool = _Pool(request, limit_s, planned * TOLERATED_SHARE, arrivals)
    callers = [
        asyncio.create_task(keep_connected(host, port, lambda: _Caller(pool))) for _ in range(connections)
    ]
    await asyncio.sleep(begin_s - time.monotonic())
    started_s, cpu_s = time.monotonic(), time.process_time()
    loop = asyncio.get_running_loop()

    def issue(query: Query) -> None:
        loop.call_soon_threadsafe(pool.issue, query)

    await asyncio.to_thread(arrivals.run, issue, pool.overloaded)
    await pool.drain()
    cores = (time.process_time() - cpu_s) / (time.monotonic() - started_s)
    for caller in callers:
        caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*callers, return_exceptions=True)
    figures = {
        "queries": pool.issued,
        "errors": pool.errors,
        "overloaded": pool.overloaded.is_set(),
        "p99_ms": arrivals.p99_ms(),
        "cores": cores,
    }
    return figures, pool.latencies_s


def main() -> None:
    """Run the generator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True, help="file with the request's bytes")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="mean queries a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--limit-ms", type=float, required=True, help="most of the 99th percentile")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--begin", type=float, required=True, help="monotonic time of the first arrivals")
    parser.add_argument("--latencies", type=Path, required=True, help="file (.npy) for the latencies")
    parser.add_argument("--loadgen", action="store_true", help="arrivals by MLPerf's LoadGen")
    args = parser.parse_args()
    allow_many_connections()
    sys.setswitchinterval(SWITCH_S)
    source = LoadGen if args.loadgen else Schedule
    load = poisson_loop(
        args.host,
        args.port,
        args.request.read_bytes(),
        source(args.rate, args.seconds, args.seed),
        connections=args.connections,
        planned=args.rate * args.seconds,
        limit_s=args.limit_ms / 1e3,
        begin_s=args.begin,
    )
    figures, latencies_s = uvloop.run(load)
    np.save(args.latencies, np.array(latencies_s))
    print(orjson.dumps(figures).decode())


if __name__ == "__main__":
    main()
