"""The clients on real sockets: connections kept, lost and refused."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

import httpx
import numpy as np
import pytest
from tests.patience import PROGRAM_S
from tests.unit.stoker_client.puppet_server import KEY, Behaviour, PuppetServer, Request, answer, like_stoker

from stoker_client import AsyncClient, Client, ConnectionFailed, InvalidInput, Unauthorized

Serve: TypeAlias = Callable[[Behaviour], PuppetServer]

ROWS = np.full((2, 784), 1 / 784, np.float32)


def no_sleep(_: float) -> None:
    raise AssertionError("no pause was expected")


async def no_sleep_async(_: float) -> None:
    raise AssertionError("no pause was expected")


def test_one_connection_serves_all_calls(serve: Serve) -> None:
    """Calls one after another use one connection; errors of the server do not cost it."""
    server = serve(like_stoker)
    with Client(server.uri, KEY) as client:
        assert client.ready()
        for _ in range(3):
            assert client.score(ROWS).shape == (2,)
        with pytest.raises(InvalidInput, match=r"expected rows of 784 numbers, row 0 has 3.*request id r-1"):
            client.score([[1, 2, 3]])
        client.score(ROWS)
    assert len(server.requests) == 6
    assert server.connections == 1


@pytest.mark.anyio
async def test_one_connection_serves_all_asynchronous_calls(serve: Serve) -> None:
    """The asynchronous client keeps its connection too."""
    server = serve(like_stoker)
    async with AsyncClient(server.uri, KEY) as client:
        await client.wait_until_ready(5)
        for _ in range(3):
            assert (await client.score(ROWS)).shape == (2,)
    assert server.connections == 1


def test_score_many_uses_concurrency_connections(serve: Serve) -> None:
    """Concurrency is the number of connections, and they are kept between calls."""
    server = serve(like_stoker)
    rows = np.zeros((60, 784), np.float32)
    rows[:, 0] = np.arange(60)
    with Client(server.uri, KEY) as client:
        for _ in range(2):
            classes = client.score_many(rows, batch_rows=1, concurrency=4)
            np.testing.assert_array_equal(classes, np.arange(60) % 10)
    assert len(server.requests) == 120
    assert server.connections <= 4


def closes_on_second_request(request: Request) -> bytes | None:
    """A server whose idle time ends at the very moment that the second request arrives."""
    return None if (request.connection, request.number) == (0, 1) else answer([4])


def test_a_connection_closed_as_idle_costs_nothing(serve: Serve) -> None:
    """A request on a connection that the server just closed is sent again at once, on a new one."""
    server = serve(closes_on_second_request)
    with Client(server.uri, sleep=lambda s: None if s == 0 else no_sleep(s)) as client:
        assert [client.score_json({"data": ROWS}) for _ in range(3)] == [[4], [4], [4]]
    places = [(request.connection, request.number) for request in server.requests]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.anyio
async def test_a_connection_closed_as_idle_costs_an_asynchronous_call_nothing(serve: Serve) -> None:
    """The asynchronous client sends again in the same way."""
    server = serve(closes_on_second_request)
    async with AsyncClient(server.uri) as client:
        assert [(await client.score_json({"data": ROWS})) for _ in range(3)] == [[4], [4], [4]]
    assert [request.connection for request in server.requests] == [0, 0, 1, 1]


def run_program(code: str, uri: str) -> str:
    """Run a user's code in a process of its own, whose forks and loops are not those of the tests.

    Returns:
        What it has said of connections that were left open.
    """
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code, uri, KEY]
    return subprocess.run(command, check=True, timeout=PROGRAM_S, stderr=subprocess.PIPE, text=True).stderr


FORKING = """
import os, sys
from stoker_client import Client
client = Client(*sys.argv[1:])
rows = [[0.0] * 784]
client.score(rows)
child = os.fork()
if child == 0:
    client.score(rows)
    client.score(rows)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.score(rows)
"""

FORKING_WITH_A_TRANSPORT = """
import os, sys, httpx
from stoker_client import Client
client = Client(*sys.argv[1:], transport=httpx.HTTPTransport())
unused = Client(*sys.argv[1:], transport=httpx.HTTPTransport())
rows = [[0.0] * 784]
client.score(rows)
child = os.fork()
if child == 0:
    unused.score(rows)
    try:
        client.score(rows)
    except RuntimeError as error:
        os._exit(0 if "make a client in each process" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
client.score(rows)
"""

TWO_LOOPS = """
import asyncio, sys
from stoker_client import AsyncClient
client = AsyncClient(*sys.argv[1:])
async def twice():
    for _ in range(2):
        await client.score([[0.0] * 784])
asyncio.run(twice())
asyncio.run(twice())
"""

LOOPS_SIDE_BY_SIDE = """
import asyncio, sys, threading
from stoker_client import AsyncClient
client = AsyncClient(*sys.argv[1:])
turns = threading.Barrier(2)
async def by_turns():
    for _ in range(5):
        turns.wait()
        await client.score([[0.0] * 784])
threads = [threading.Thread(target=lambda: asyncio.run(by_turns())) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

CLOSED_IN_ANOTHER_LOOP = """
import asyncio, sys
from stoker_client import AsyncClient
client = AsyncClient(*sys.argv[1:])
async def once():
    await client.score([[0.0] * 784])
asyncio.run(once())
asyncio.run(client.aclose())
try:
    asyncio.run(once())
except RuntimeError as error:
    assert "was closed" in str(error)
"""


@pytest.mark.parametrize(
    ("code", "connections"), [(FORKING, [0, 1, 1, 0]), (FORKING_WITH_A_TRANSPORT, [0, 1, 0])]
)
def test_a_forked_process_has_connections_of_its_own(serve: Serve, code: str, connections: list[int]) -> None:
    """Two processes on one connection would read each other's answers; a transport of the user's is refused."""
    server = serve(like_stoker)
    run_program(code, server.uri)
    assert [request.connection for request in server.requests] == connections


@pytest.mark.parametrize(
    ("code", "connections"),
    [
        (TWO_LOOPS, [0, 0, 1, 1]),
        (LOOPS_SIDE_BY_SIDE, [0] * 5 + [1] * 5),
        (CLOSED_IN_ANOTHER_LOOP, [0]),
    ],
)
def test_each_event_loop_has_connections_of_its_own(serve: Serve, code: str, connections: list[int]) -> None:
    """They are closed when it ends, whether there is another one by then, or one at the same time."""
    server = serve(like_stoker)
    assert run_program(code, server.uri) == ""
    assert sorted(request.connection for request in server.requests) == connections


def test_request_is_sent_again_after_an_answer_cut_short(serve: Serve) -> None:
    """A server that goes away in the middle of its answer has not answered."""
    whole = answer([1, 2, 3], connection="close")
    server = serve(lambda request: whole[:-4] if request.connection == 0 else whole)
    with Client(server.uri) as client:
        assert client.score_json({"data": ROWS}) == [1, 2, 3]
    assert server.connections == 2


def test_a_server_that_is_not_there_is_named() -> None:
    """A refused connection ends in an error with the address; the port is held so that nobody takes it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}/score", retries=0) as client:
            assert not client.ready()
            with pytest.raises(
                ConnectionFailed, match=rf"cannot reach http://127\.0\.0\.1:{port}: .*refused"
            ):
                client.score(ROWS)


def test_wrong_key_is_tried_once(serve: Serve) -> None:
    """A key that the server does not accept is reported at once."""
    server = serve(like_stoker)
    with Client(server.uri, "a-wrong-key", sleep=no_sleep) as client, pytest.raises(Unauthorized):
        client.score(ROWS)
    assert len(server.requests) == 1


def test_loopback_bypasses_the_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment cannot reach this machine's loopback, so the client goes straight."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = serve(like_stoker)
    with Client(server.uri, KEY, retries=0) as client:
        assert client.score(ROWS).shape == (2,)


def test_plain_loopback_reads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is encrypted there, and to read the authorities takes 20 ms for each client."""
    made: list[str] = []
    monkeypatch.setattr(httpx, "create_ssl_context", lambda: made.append(uri) or True)
    uris = ("http://127.0.0.1/score", "https://127.0.0.1/score", "http://stoker.invalid/score")
    for uri in uris:
        Client(uri).close()
    assert made == list(uris[1:])


def test_a_proxy_of_the_environment_is_used_elsewhere(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """To other hosts the client goes the way that the environment names."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    proxy = serve(lambda _: answer([3]))
    monkeypatch.setenv("http_proxy", proxy.origin)
    with Client("http://stoker.invalid/score", retries=0) as client:
        assert client.score([[1]]).tolist() == [3]
    assert proxy.requests[0].path == "http://stoker.invalid/score"
