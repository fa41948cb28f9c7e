"""The bench's own load generator against tiny servers on the loopback."""

import asyncio
from collections.abc import Callable

import pytest

from stoker_bench.contestants.servers import HOST, free_port
from stoker_bench.generators.closed_loop import closed_loop, http_caller
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import ScoringRequest, scoring_request


def request_to(port: int) -> ScoringRequest:
    """Return the request that all send."""
    return scoring_request(f"http://{HOST}:{port}/score", b'{"data": []}', key="k")


SECONDS = 1.0
"""Long enough for some requests where the machine does other things meanwhile."""


class Tiny:
    """Answers each request as `answer` says, and counts them; None hangs up."""

    def __init__(self, answer: Callable[[int], bytes | None]) -> None:
        self.answer = answer
        self.expected = b""
        self.requests: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readexactly(len(self.expected)))
                answer = self.answer(len(self.requests))
                if answer is None:
                    break
                writer.write(answer)
                if b"connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def load(self, connections: int):
        """Load this server for a moment."""
        server = await asyncio.start_server(self, HOST, 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            request = request_to(port)
            self.expected = request.http_bytes
            figures, latencies_s = await closed_loop(
                request.host, request.port, http_caller(request.http_bytes), connections, SECONDS
            )
            assert len(latencies_s) == figures.requests
            return figures


def fixed(status: str, headers: str = "", body: bytes = b"[[0]]") -> Callable[[int], bytes]:
    """Answer always the same."""
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode()
    return lambda _: head + body


@pytest.mark.anyio
async def test_each_connection_is_kept_and_asks_again_after_each_answer() -> None:
    """The requests arrive byte for byte on as many connections as asked for, and those answered are counted."""
    tiny = Tiny(fixed("200 OK"))
    figures = await tiny.load(connections=3)
    assert tiny.connections == 3
    assert set(tiny.requests) == {tiny.expected}
    assert figures.errors == 0
    # At most one request a connection was still under way at the end.
    assert len(tiny.requests) - 3 <= figures.requests <= len(tiny.requests)
    assert 0 < figures.p50_ms <= figures.p99_ms
    assert figures.duration_s >= SECONDS


@pytest.mark.anyio
async def test_chunked_answers_are_whole_before_the_next_request() -> None:
    """An answer without a content length counts once, when its last chunk is there."""
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[[0\r\n2\r\n]]\r\n0\r\n\r\n"
    tiny = Tiny(lambda _: answer)
    figures = await tiny.load(connections=1)
    assert figures.errors == 0
    assert len(tiny.requests) - 1 <= figures.requests <= len(tiny.requests)


@pytest.mark.anyio
async def test_other_statuses_are_errors() -> None:
    """A 503 is an error and no request, and the connection goes on."""
    tiny = Tiny(fixed("503 Service Unavailable"))
    figures = await tiny.load(connections=1)
    assert figures.requests == 0
    assert figures.errors >= len(tiny.requests) - 1 > 0
    assert tiny.connections == 1


@pytest.mark.anyio
async def test_close_after_an_answer_is_no_error() -> None:
    """`Connection: close` makes the generator connect anew, and costs nobody a request."""
    tiny = Tiny(fixed("200 OK", "connection: close\r\n"))
    figures = await tiny.load(connections=1)
    assert figures.errors == 0
    assert figures.requests >= 1
    assert tiny.connections >= 2


@pytest.mark.anyio
async def test_hanging_up_on_a_request_is_an_error() -> None:
    """A request whose connection ends before its answer is counted as failed, and the caller comes back."""
    tiny = Tiny(lambda number: None if number == 2 else fixed("200 OK")(number))
    figures = await tiny.load(connections=1)
    assert figures.errors == 1
    assert figures.requests >= 2
    assert tiny.connections == 2


@pytest.mark.anyio
async def test_nobody_there_ends_in_time_with_errors() -> None:
    """A refused connection is tried again until the time is over, and every refusal counts."""
    request = request_to(free_port())
    figures, _ = await closed_loop(request.host, request.port, http_caller(request.http_bytes), 2, SECONDS)
    assert figures.requests == 0
    assert figures.errors >= 2


@pytest.mark.anyio
async def test_own_generator_runs_in_a_process_of_its_own() -> None:
    """The process that OwnGenerator starts sends the request and hands its figures back."""
    tiny = Tiny(fixed("200 OK"))
    server = await asyncio.start_server(tiny, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        request = request_to(port)
        tiny.expected = request.http_bytes
        figures = await asyncio.to_thread(OwnGenerator().run, request, 2, 1)
    assert figures.errors == 0
    assert len(tiny.requests) - 2 <= figures.requests <= len(tiny.requests)
    assert set(tiny.requests) == {request.http_bytes}
