"""Poisson arrivals: the search for a rate, its definition, and the loop against tiny servers."""

import asyncio
import math
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from stoker_bench.contestants.servers import HOST
from stoker_bench.generators.scoring_request import scoring_request
from stoker_bench.gpu.arrivals import LoadGen, Query, loadgen_version
from stoker_bench.gpu.poisson import PoissonSearch, combined_run, confirmed_rate, highest_rate
from stoker_bench.gpu.poisson_loop import poisson_loop

REQUEST = scoring_request(f"http://{HOST}:1/score", b"{}").http_bytes
RESULT = {"queries": 100, "errors": 0, "overloaded": False, "p99_ms": None, "cores": 0.5}


def test_the_range_is_halved_until_the_edge_is_near() -> None:
    """A server that holds up to 730/s is found out within a 64th of the range, from below."""
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= 730

    found = highest_rate(holds, 1000, steps=6)
    assert 730 - 1000 / 64 <= found <= 730
    assert tried[:3] == [500, 750, 625]
    assert len(tried) == 6


def test_no_valid_rate_is_zero() -> None:
    """A server that holds no rate has rate 0, and is not asked to confirm it."""
    assert highest_rate(lambda _: False, 1000, steps=4) == 0
    assert confirmed_rate(lambda _: pytest.fail("nothing to confirm"), 0.0) == 0


def test_a_rate_that_passed_by_luck_is_lowered() -> None:
    """The confirmed rate has passed once more; after three failures there is none."""
    assert confirmed_rate(lambda rate: rate < 99, 100.0) == pytest.approx(97)
    assert confirmed_rate(lambda rate: rate < 50, 100.0) == 0


def test_a_run_is_valid_within_the_limit_and_without_failures() -> None:
    """The percentile is that of all latencies; an error or an overload makes a run invalid, however fast it was."""
    latencies_s = np.arange(1, 101) / 1e4
    run = combined_run(50, [RESULT, RESULT], latencies_s, limit_ms=10)
    assert (run.queries, run.valid, run.cores) == (200, True, 1.0)
    assert run.p99_ms == pytest.approx(9.901)
    assert not combined_run(50, [RESULT], latencies_s, limit_ms=9.9).valid
    assert not combined_run(50, [RESULT, {**RESULT, "errors": 1}], latencies_s, limit_ms=10).valid
    assert not combined_run(50, [RESULT, {**RESULT, "overloaded": True}], latencies_s, limit_ms=10).valid
    nothing = combined_run(50, [RESULT], np.empty(0), limit_ms=10)
    assert (nothing.p99_ms, nothing.valid) == (math.inf, False)


def test_loadgens_percentile_replaces_the_measured_one() -> None:
    """The largest of its processes' percentiles bounds that of all of them."""
    results = [{**RESULT, "p99_ms": 4.0}, {**RESULT, "p99_ms": 11.0}]
    run = combined_run(50, results, np.full(10, 1e-3), limit_ms=10)
    assert (run.p99_ms, run.valid) == (11.0, False)
    # Unless the run was cut short: then LoadGen has not seen what was not sent.
    results[1]["overloaded"] = True
    assert combined_run(50, results, np.full(10, 1e-3), limit_ms=10).p99_ms == pytest.approx(1)


def test_search_compares_its_rate_with_the_offline_rate() -> None:
    """The best run is the last valid one, and without a rate there is none."""
    runs = tuple(
        combined_run(rate, [RESULT], np.full(9, 1e-3), limit_ms=limit) for rate, limit in ((50, 2), (75, 0))
    )
    search = PoissonSearch("arrivals", 50, runs, 100)
    assert search.of_ceiling == 0.5
    assert search.best is runs[0]
    assert PoissonSearch("arrivals", 0, runs[1:], 100).best is None


class Immediate:
    """All queries at once, due a while ago."""

    def __init__(self, queries: int, ago_s: float = 0.0) -> None:
        self.queries, self.ago_s = queries, ago_s
        self.completed: list[int] = []

    def run(self, issue: Callable[[Query], None], stopped: threading.Event) -> None:
        """Issue them."""
        for token in range(self.queries):
            issue(Query(token, time.monotonic() - self.ago_s))

    def complete(self, query: Query) -> None:
        """Keep the token."""
        self.completed.append(query.token)

    def p99_ms(self) -> float:
        """The percentile that the source has seen."""
        return 12.5


async def load(arrivals, answer: bytes | None, connections: int = 2, limit_s: float = 60.0):
    """Run the loop against a server that answers every request alike, or hangs up on it."""
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        try:
            while True:
                await reader.readexactly(len(REQUEST))
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        figures, latencies_s = await poisson_loop(
            HOST,
            port,
            REQUEST,
            arrivals,
            connections=connections,
            planned=arrivals.queries,
            limit_s=limit_s,
            begin_s=time.monotonic(),
        )
    return figures, latencies_s, accepted


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.anyio
async def test_queries_share_the_connections() -> None:
    """More queries than connections are all answered, and each is reported to its source once."""
    arrivals = Immediate(20, ago_s=5)
    figures, latencies_s, accepted = await load(arrivals, OK)
    assert (figures["queries"], figures["errors"], figures["overloaded"]) == (20, 0, False)
    assert figures["p99_ms"] == 12.5
    assert accepted == 2
    assert sorted(arrivals.completed) == list(range(20))
    # Latency counts from when a query was due, not from when it was sent.
    assert len(latencies_s) == 20
    assert min(latencies_s) >= 5


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [BUSY, None])
async def test_failures_end_a_run_early(answer: bytes | None) -> None:
    """Once more than 1 % has failed nothing further is sent, and every query is reported to its source."""
    arrivals = Immediate(50)
    figures, latencies_s, _ = await load(arrivals, answer, connections=1)
    assert figures["overloaded"]
    assert 1 <= figures["errors"] <= 2
    assert latencies_s == []
    assert sorted(arrivals.completed) == list(range(50))


@pytest.mark.anyio
async def test_too_late_answers_end_a_run_early() -> None:
    """Answers beyond the limit are no errors, but the run is over once they are too many."""
    arrivals = Immediate(50, ago_s=5)
    figures, latencies_s, _ = await load(arrivals, OK, connections=1, limit_s=1)
    assert (figures["overloaded"], figures["errors"]) == (True, 0)
    assert 1 <= len(latencies_s) < 50


@pytest.mark.anyio
@pytest.mark.skipif(loadgen_version() is None, reason="LoadGen has no wheel for this platform")
async def test_loadgen_issues_its_queries_and_reports_a_percentile() -> None:
    """LoadGen's server scenario ends once each of its queries has been completed, and has a percentile."""

    class Forty(LoadGen):
        queries = 40

    figures, latencies_s, _ = await load(Forty(rate=400, seconds=0.1, seed=1), OK)
    assert (figures["queries"], figures["errors"], len(latencies_s)) == (40, 0, 40)
    assert figures["p99_ms"] > 0
