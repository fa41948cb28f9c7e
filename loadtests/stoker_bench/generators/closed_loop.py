"""A closed-loop HTTP load generator: `python -m stoker_bench.generators.closed_loop`.

It is used where wrk is not installed. Each connection sends the same bytes again as soon as its answer is complete;
figures go to stdout as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
import uvloop

from stoker_bench.generators.http_caller import HttpCaller, allow_many_connections, is_success
from stoker_bench.generators.kept_connection import keep_connected
from stoker_bench.generators.load_generator import LoadFigures, figures_of

__all__ = ["closed_loop", "main"]


class _Tally:
    """What all connections of one run have seen."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.errors = 0
        self.closing = False


class _Connection(HttpCaller):
    """One caller: writes the request, awaits the whole answer, writes it again."""

    def __init__(self, request: bytes, tally: _Tally) -> None:
        super().__init__()
        self._request = request
        self._tally = tally

    def opened(self) -> None:
        self._call()

    def _call(self) -> None:
        self._started_s = time.perf_counter()
        self.send(self._request)

    def answered(self, status: int, kept: bool) -> None:
        if self._tally.closing:
            return
        if is_success(status):
            self._tally.latencies_s.append(time.perf_counter() - self._started_s)
        else:
            self._tally.errors += 1
        if kept:
            self._call()

    def dropped(self) -> None:
        if not self._tally.closing:
            self._tally.errors += 1


async def _keep_calling(host: str, port: int, request: bytes, tally: _Tally) -> None:
    def refused(_: float) -> None:
        tally.errors += 1

    await keep_connected(host, port, lambda: _Connection(request, tally), refused)


async def closed_loop(
    host: str, port: int, request: bytes, connections: int, seconds: float, begin_s: float | None = None
) -> tuple[LoadFigures, list[float]]:
    """Load a server for `seconds`; requests under way at the end are not counted.

    Args:
        host: Where it listens.
        port: Where it listens.
        request: The bytes that every connection sends over and over.
        connections: Callers.
        seconds: How long answers are counted.
        begin_s: From which reading of `time.monotonic` on answers are counted; None for at once. Errors before that
            count all the same.

    Returns:
        The figures, and the latency of each counted answer in seconds.
    """
    tally = _Tally()
    callers = [asyncio.create_task(_keep_calling(host, port, request, tally)) for _ in range(connections)]
    if begin_s is not None:
        await asyncio.sleep(begin_s - time.monotonic())
        tally.latencies_s.clear()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    duration_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    tally.closing = True
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    figures = figures_of(tally.latencies_s, tally.errors, duration_s, cores=cpu_s / duration_s)
    return figures, tally.latencies_s


def main() -> None:
    """Run the generator as its command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True, help="file with the request's bytes")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--begin", type=float, help="monotonic time from which answers are counted")
    parser.add_argument("--latencies", type=Path, help="file (.npy) for each latency in seconds")
    args = parser.parse_args()
    allow_many_connections()
    load = closed_loop(
        args.host, args.port, args.request.read_bytes(), args.connections, args.seconds, args.begin
    )
    figures, latencies_s = uvloop.run(load)
    if args.latencies:
        np.save(args.latencies, np.array(latencies_s))
    print(orjson.dumps(asdict(figures)).decode())


if __name__ == "__main__":
    main()
