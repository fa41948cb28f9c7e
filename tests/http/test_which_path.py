"""The choice of the path: a frontend's listener with an app that refuses all requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.http.raw_http import AsyncConnection, Headers, bearer, request, scoring
from tests.patience import PATIENCE_S
from tests.puppets import BODIES, metric_memory, puppet_service

from stoker.gateway.gateway import Gateway
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.listeners.listener import Listener
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.scoring.script_dialect import ScriptDialect
from stoker.keys.access import Access
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier
from stoker.script_form import ScriptForm

KEY = "a-key-of-this-test-0001"
LIMIT_BYTES = 1000
MIB = 1 << 20
BY_THE_APP = 418
DIRECTLY = 503
"""No device process is attached, so the fast path's answer to whatever it takes is that nothing is ready."""


async def _app(_: Scope, receive: Receive, send: Send) -> None:
    """Read the request and answer with a status that nobody else uses."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": BY_THE_APP, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def _listener(
    script: ScriptForm | None = None, app: ASGIApp = _app, bodies: BodyBudget | None = None
) -> AsyncIterator[tuple[Listener, int]]:
    """A listener with the services `a`, perhaps of a script or of 6 MiB on a budget, and `b`, and its port."""
    memory = metric_memory()
    access = Access(KeyVerifier(Path("no-keys-here"), "a", Keys(KEY, KEY + "-other")))
    services = {
        name: puppet_service(name, memory, slot=slot, access=access, max_body_bytes=LIMIT_BYTES)
        for slot, name in enumerate(("a", "b"))
    }
    if script is not None:
        services["a"].signature = replace(BODIES, script=script)
        services["a"].dialect = ScriptDialect("a", script)
    sock = socket.create_server(("127.0.0.1", 0))
    gateway = Gateway(ModelDirectory(services), memory)
    if bodies is not None:
        gateway.bodies = bodies
        services["a"].limits = msgspec.structs.replace(services["a"].limits, max_body_bytes=6 * MIB)
    listener = Listener(app, gateway, [sock])
    await listener.start()
    try:
        yield listener, sock.getsockname()[1]
    finally:
        await listener.stop_listening()
        assert await listener.finish(5) == 0


@asynccontextmanager
async def _listening(script: ScriptForm | None = None) -> AsyncIterator[AsyncConnection]:
    """A connection to such a listener."""
    async with _listener(script) as (_, port), await AsyncConnection.open(port) as connection:
        yield connection


PATH = "/api/v1/service/a/score"
BODY = b'{"data": [[1]]}'


@pytest.mark.anyio
@pytest.mark.parametrize("headers", [[], [("Content-Type", "application/json")], [("X-Request-Id", "a")]])
@pytest.mark.parametrize(
    "path",
    [
        PATH,
        "/v2/models/a/infer",
        "/predictions/a",
        "/api/v1/service/a/v1/embeddings",
        "/api/v1/service/a/v1/rerank",
    ],
)
async def test_plain_scoring_requests_are_answered_directly(path: str, headers: Headers) -> None:
    """A POST with a valid key and a body within the limit costs no ASGI cycle."""
    async with _listening() as connection:
        statuses = [(await connection.ask(scoring(path, KEY, BODY, headers))).status for _ in range(3)]

    assert statuses == [DIRECTLY] * 3


@pytest.mark.anyio
@pytest.mark.parametrize("value", ["close", "Close"])
async def test_requests_that_end_their_connection_are_answered_directly(value: str) -> None:
    """So are those of callers that connect anew for each one; the answer says that it was the last."""
    async with _listener() as (_, port):
        for _ in range(3):
            async with await AsyncConnection.open(port) as connection:
                kept = await connection.ask(scoring(PATH, KEY, BODY))
                last = await connection.ask(scoring(PATH, KEY, BODY, [("Connection", value)]))
                assert await connection.closes_silently()
            assert (kept.status, kept.closes) == (DIRECTLY, False)
            assert (last.status, last.closes) == (DIRECTLY, True)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "headers", [[], [("X-Request-Id", "a")], [("TraceId", "t")]], ids=["known", "new", "app"]
)
async def test_the_next_answer_is_the_last_of_an_old_connection(headers: Headers) -> None:
    """This holds for both paths: a remembered head costs nothing, and other heads get the line too."""
    message = scoring(PATH, KEY, BODY, headers)
    async with _listener() as (listener, port), await AsyncConnection.open(port) as connection:
        assert not (await connection.ask(message)).closes
        (served,) = listener.connections
        served.retires_s = 0.0
        listener.sweep()
        assert (await connection.ask(message)).closes
        assert await connection.closes_silently()


@pytest.mark.anyio
async def test_heads_of_different_lengths_take_turns_on_one_connection() -> None:
    """Each request is what its own head says, whichever was there before: remembered, new or the app's."""
    messages = {
        scoring(PATH, KEY, BODY): DIRECTLY,
        scoring(PATH, KEY, BODY + b" " * 90): DIRECTLY,
        scoring(PATH, KEY, BODY, [("X-Longer", "1" * 50)]): DIRECTLY,
        scoring(PATH, KEY + "-other", BODY): DIRECTLY,
        scoring(PATH, KEY + "-wrong", BODY): BY_THE_APP,
        scoring(PATH, KEY, BODY, [("TraceId", "t")]): BY_THE_APP,
        scoring("/nowhere", KEY, BODY): BY_THE_APP,
    }
    async with _listener() as (_, port), await AsyncConnection.open(port) as connection:
        for _ in range(2):
            for before in messages:
                for message, status in messages.items():
                    assert (await connection.ask(before)).status == messages[before]
                    assert (await connection.ask(message)).status == status, message


def test_a_busy_loop_accepts_many_connections_a_turn() -> None:
    """The loop takes one from a socket in each turn: under load, where turns are long, others would wait."""

    async def accepted(turns: int) -> int:
        async with _listener() as (listener, port):
            with ExitStack() as callers:
                for _ in range(40):
                    callers.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                return len(listener.connections)

    assert uvloop.run(accepted(turns=8)) >= 30


@pytest.mark.anyio
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(scoring(PATH, KEY, BODY, [("Origin", "https://x.example")]), id="origin"),
        pytest.param(scoring(PATH, KEY, BODY, [("Content-Encoding", "identity")]), id="content encoding"),
        pytest.param(scoring(PATH, KEY, BODY, [("Upgrade", "h2c")]), id="upgrade"),
        pytest.param(scoring(PATH, KEY, BODY, [("TraceId", "t")]), id="trace id"),
        pytest.param(scoring(PATH, KEY, BODY, [("Content-Type", "image/png")]), id="image"),
        pytest.param(scoring(PATH, KEY, BODY, [("Content-Type", "multipart/form-data")]), id="form"),
        pytest.param(scoring(PATH, KEY, BODY, [("Host", "another")]), id="two hosts"),
        pytest.param(scoring(PATH, KEY, BODY).replace(b"Host: localhost\r\n", b""), id="no host"),
        pytest.param(scoring(PATH, KEY, BODY).replace(b"Host: localhost", b"Host:"), id="empty host"),
        pytest.param(scoring(PATH, KEY, BODY, [("x-a", "1")] * 98), id="many headers"),
        pytest.param(scoring(PATH, KEY, BODY, [("X-Request-Id", "a" * 101)]), id="long id"),
        pytest.param(scoring(PATH, KEY + "x", BODY), id="wrong key"),
        pytest.param(scoring(PATH, KEY, BODY, [bearer(KEY)]), id="two keys"),
        pytest.param(scoring(PATH, "", BODY, [bearer(KEY)]), id="a key behind an empty one"),
        pytest.param(scoring(PATH + "?a=1", KEY, BODY), id="query"),
        pytest.param(scoring("/score", KEY, BODY), id="no service"),
        pytest.param(scoring("/api/v1/service/c/score", KEY, BODY), id="unknown service"),
        pytest.param(scoring(PATH, KEY, b"x" * (LIMIT_BYTES + 1)), id="too large"),
        pytest.param(scoring(PATH, KEY, b""), id="empty"),
        pytest.param(request("POST", PATH, [bearer(KEY)]), id="no length"),
        pytest.param(request("PUT", PATH, [bearer(KEY)], BODY), id="PUT"),
        pytest.param(request("GET", PATH, [bearer(KEY)]), id="GET"),
        pytest.param(
            request("POST", PATH, [bearer(KEY), ("Transfer-Encoding", "chunked")]) + b"1\r\n7\r\n0\r\n\r\n",
            id="chunked",
        ),
    ],
)
async def test_other_requests_go_through_the_app(odd: bytes) -> None:
    """The next plain request of the connection is direct again."""
    async with _listening() as connection:
        first = await connection.ask(odd)
        second = await connection.ask(scoring(PATH, KEY, BODY))

    assert (first.status, second.status) == (BY_THE_APP, DIRECTLY)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("script", "status"),
    [
        (ScriptForm(), DIRECTLY),
        (ScriptForm(wants_head=True), BY_THE_APP),
        (ScriptForm(kind="schema"), BY_THE_APP),
        (ScriptForm(kind="raw"), BY_THE_APP),
    ],
)
async def test_scripts_that_see_heads_get_their_requests_from_the_app(
    script: ScriptForm, status: int
) -> None:
    """The fast path has no heads to give."""
    async with _listening(script) as connection:
        statuses = {(await connection.ask(scoring(PATH, KEY, BODY))).status for _ in range(3)}

    assert statuses == {status}


@pytest.mark.anyio
async def test_requests_of_http_1_0_go_through_the_app() -> None:
    """They are not plain; the connection ends with the answer."""
    async with _listening() as connection:
        answer = await connection.ask(scoring(PATH, KEY, BODY, version="1.0"))
        ended = await connection.closes_silently()

    assert (answer.status, ended) == (BY_THE_APP, True)


@pytest.mark.anyio
async def test_a_request_that_expects_a_go_ahead_gets_it_from_the_app() -> None:
    """`Expect: 100-continue` is the app's to honour."""
    head = scoring(PATH, KEY, BODY, [("Expect", "100-continue")]).removesuffix(BODY)
    async with _listening() as connection:
        go_ahead = await connection.ask(head)
        answer = await connection.ask(BODY)

    assert (go_ahead.status, answer.status) == (100, BY_THE_APP)


@pytest.mark.anyio
async def test_requests_behind_an_unanswered_one_go_through_the_app() -> None:
    """Pipelined requests are answered in order: only the first one can be direct."""
    slow = request("GET", "/anything")
    async with _listening() as connection:
        first = await connection.ask(slow + scoring(PATH, KEY, BODY) + slow)
        others = [await connection.answer() for _ in range(2)]
        later = await connection.ask(scoring(PATH, KEY, BODY))

    assert [first.status, *(answer.status for answer in others)] == [BY_THE_APP] * 3
    assert later.status == DIRECTLY


@pytest.mark.anyio
async def test_a_listener_that_ends_lets_a_request_finish() -> None:
    """`finish` closes idle connections and waits for a request that has begun to arrive."""
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    memory = metric_memory()
    service = puppet_service("a", memory, max_body_bytes=LIMIT_BYTES)
    gateway = Gateway(ModelDirectory({"a": service}), memory)
    service.readiness = gateway.readiness
    listener = Listener(_app, gateway, [sock])
    await listener.start()
    async with await AsyncConnection.open(port) as idle, await AsyncConnection.open(port) as begun:
        message = scoring("/score", KEY, BODY)
        assert (await idle.ask(message)).status == DIRECTLY
        assert (await begun.ask(message)).status == DIRECTLY
        begun.tell(message[:-3])
        while not any(connection.receiving for connection in listener.connections):  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0)
        await listener.stop_listening()
        gateway.readiness.start_draining()
        finished = asyncio.ensure_future(listener.finish(5))
        assert await idle.closes_silently()
        last = await begun.ask(message[-3:])
        assert last.closes
        assert await begun.closes_silently()

        assert await finished == 0
    with pytest.raises(ConnectionRefusedError):
        await AsyncConnection.open(port)


SECONDS_UNREAD = 75
SECONDS_ARRIVING = 10
LARGE = 20 << 20


async def _large_answer(_: Scope, __: Receive, send: Send) -> None:
    """Answer with more than the kernel holds for a connection."""
    length = str(LARGE).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # no event tells of what sockets have taken
            await asyncio.sleep(0.001)


@asynccontextmanager
async def _with_unread_answer() -> AsyncIterator[tuple[Listener, asyncio.StreamReader]]:
    """A listener with one connection, whose caller has a large answer to read and reads nothing by itself."""
    async with _listener(app=_large_answer) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        try:
            writer.write(request("GET", "/"))
            await _until(lambda: any(one.transport.get_write_buffer_size() for one in listener.connections))
            yield listener, reader
        finally:
            writer.close()


@pytest.mark.anyio
async def test_a_caller_that_never_reads_is_cut_off() -> None:
    """Its answer and its connection are not kept for ever."""
    async with _with_unread_answer() as (listener, _):
        for _ in range(SECONDS_UNREAD):
            listener.sweep()
        await asyncio.sleep(0)
        assert len(listener.connections) == 1
        listener.sweep()
        listener.sweep()
        await _until(lambda: not listener.connections)


@pytest.mark.anyio
async def test_a_caller_that_reads_slowly_gets_all_of_its_answer() -> None:
    """Only one that reads nothing at all is cut off."""
    async with _with_unread_answer() as (listener, reader):
        (connection,) = listener.connections
        for _ in range(3):
            for _ in range(SECONDS_UNREAD - 1):
                listener.sweep()
            unread_bytes = connection.transport.get_write_buffer_size()
            while connection.transport.get_write_buffer_size() >= unread_bytes:
                await reader.read(1 << 16)
            listener.sweep()
        await asyncio.sleep(0)
        assert len(listener.connections) == 1


@pytest.mark.anyio
async def test_a_shutdown_does_not_wait_for_a_caller_that_never_reads() -> None:
    """It has been given its answer; the others are to be answered meanwhile."""
    async with _with_unread_answer() as (listener, _):
        ending = asyncio.create_task(listener.finish(60))
        await asyncio.sleep(0)
        for _ in range(7):
            listener.sweep()
        async with asyncio.timeout(PATIENCE_S):
            assert await ending == 0


@pytest.mark.anyio
async def test_a_slow_answer_is_not_taken_for_a_slow_request() -> None:
    """A request that begins to arrive behind one that is being answered does not end the connection."""
    answered = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answered.wait()
        await _app(scope, receive, send)

    async with (
        _listener(app=app) as (listener, port),
        await AsyncConnection.open(port) as connection,
    ):
        connection.tell(request("GET", "/") + b"GET / HT")
        await _until(lambda: any(one.busy and one.receiving for one in listener.connections))
        for _ in range(SECONDS_ARRIVING + 2):
            listener.sweep()
        answered.set()
        assert (await connection.answer()).status == BY_THE_APP


async def _sweep_slowly(listener: Listener, connection: AsyncConnection, drip: bytes, sweeps: int) -> int:
    """Let seconds pass, in each of which so much arrives; returns in which of them the connection was ended."""
    for second in range(1, sweeps + 1):
        (one,) = listener.connections
        before = one.arrived_bytes
        connection.tell(drip)
        await _until(lambda: one.arrived_bytes >= before + len(drip) or not listener.connections)  # noqa: B023
        listener.sweep()
        if one.transport.is_closing():
            return second
    return 0


@pytest.mark.anyio
@pytest.mark.parametrize("door", [[], [("Origin", "https://x.example")]], ids=["direct", "app"])
async def test_a_body_that_drips_is_not_waited_for(door: Headers) -> None:
    """Bytes that come one by one, or a few a second, keep no connection, whichever door the request takes."""
    message = scoring(PATH, KEY, b" " * LIMIT_BYTES, door)
    for drip in (b" ", b" " * 20):
        async with _listener() as (listener, port), await AsyncConnection.open(port) as connection:
            connection.tell(message[:-LIMIT_BYTES])
            await _until(lambda: any(one.receiving for one in listener.connections))
            assert await _sweep_slowly(listener, connection, drip, 40) == SECONDS_ARRIVING + 1
            assert (await connection.answer()).status == 408


@pytest.mark.anyio
async def test_a_body_that_arrives_at_the_slowest_rate_is_waited_for() -> None:
    """Up to the longest time that an arrival may take."""
    async with _listener() as (listener, port), await AsyncConnection.open(port) as connection:
        connection.tell(request("POST", "/anything", [("Content-Length", "100000000")]))
        await _until(lambda: any(one.receiving for one in listener.connections))
        (one,) = listener.connections
        for second in range(1, 1000):
            one.arrived_bytes, one.idle_sweeps = 1024 * second, 0
            listener.sweep()
            if one.transport.is_closing():
                break
        assert second == 901


@pytest.mark.anyio
async def test_a_wrong_key_is_answered_without_waiting_for_the_body() -> None:
    """The answer comes at once; then the connection has as long for the body as one with the right key."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with _listener(app=app) as (listener, port), await AsyncConnection.open(port) as connection:
        answer = await connection.ask(scoring(PATH, KEY + "x", BODY * 20)[: -len(BODY) * 20])
        assert answer.status == 401
        assert await _sweep_slowly(listener, connection, b" ", 40) == SECONDS_ARRIVING + 1
        assert await connection.closes_silently()


@pytest.mark.anyio
@pytest.mark.parametrize("trailer", [False, True], ids=["extensions", "trailers"])
async def test_extensions_and_trailers_of_chunks_are_bounded(trailer: bool) -> None:
    """Small chunks are accepted; long extensions and trailers are refused unread."""
    head = request("POST", "/anything", [("Transfer-Encoding", "chunked")])
    async with _listener() as (_, port):
        async with await AsyncConnection.open(port) as connection:
            connection.tell(head)
            answer = await connection.ask(b"00001\r\n7\r\n" * 100_000 + b"0\r\nA: b\r\n\r\n")
            assert answer.status == BY_THE_APP
        async with await AsyncConnection.open(port) as connection:
            connection.tell(head + (b"1\r\n7\r\n0\r\nA: " if trailer else b"1;"))
            answer = await connection.ask(b"a" * (1 << 20))
            assert (answer.status, await connection.closes_silently()) == (400, True)


@pytest.mark.anyio
async def test_trailers_are_no_headers() -> None:
    """Fields behind a body are not added to the headers, which have been checked before."""
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await _app(scope, receive, send)
        seen.extend(name for name, _ in scope["headers"])

    message = request("POST", "/anything", [("Transfer-Encoding", "chunked")])
    async with _listener(app=app) as (_, port), await AsyncConnection.open(port) as connection:
        await connection.ask(message + b"1\r\n7\r\n0\r\nX-User: admin\r\n\r\n")
    assert b"transfer-encoding" in seen
    assert b"x-user" not in seen


@asynccontextmanager
async def _with_budget(total_bytes: int) -> AsyncIterator[tuple[Listener, BodyBudget, int]]:
    """A listener whose services take bodies of 6 MiB on a budget of this size, that, and its port."""
    bodies = BodyBudget(total_bytes)
    async with _listener(bodies=bodies) as (listener, port):
        yield listener, bodies, port


@pytest.mark.anyio
async def test_announced_large_body_takes_no_budget_before_it_arrives() -> None:
    """An announced body counts only against its caller, and its connection's end frees the rest."""
    message, others = scoring(PATH, KEY, b" " * 6 * MIB), scoring(PATH, KEY + "-other", b" " * 6 * MIB)
    async with _with_budget(13 * MIB) as (listener, budget, port):
        async with await AsyncConnection.open(port) as dripping, await AsyncConnection.open(port) as asking:
            dripping.tell(message[: 1 - 6 * MIB])
            await _until(lambda: any(one.arrived_bytes for one in listener.connections))
            assert budget.held_bytes == 0
            dripping.tell(b" " * 2 * MIB)
            await _until(lambda: budget.held_bytes == 3 * MIB)
            assert (await asking.ask(message)).status == BY_THE_APP
            assert (await asking.ask(others)).error_code() == "not_ready"
            assert budget.held_bytes == 3 * MIB
        await _until(lambda: not budget.held_bytes)


@pytest.mark.anyio
async def test_a_large_body_beyond_the_budget_is_refused() -> None:
    """Of two that do not fit together one gets a retry time, and its memory lets the other one arrive."""
    message, others = scoring(PATH, KEY, b" " * 6 * MIB), scoring(PATH, KEY + "-other", b" " * 6 * MIB)
    async with (
        _with_budget(9 * MIB) as (listener, budget, port),
        await AsyncConnection.open(port) as first,
        await AsyncConnection.open(port) as second,
    ):
        first.tell(message[: 1 - 6 * MIB])
        second.tell(others[: 1 - 6 * MIB])
        await _until(lambda: sum(one.arrived_bytes for one in listener.connections) == 2)
        first.tell(b" " * 2 * MIB)
        await _until(lambda: budget.held_bytes == 3 * MIB)
        refused = await second.ask(b" " * 5 * MIB)
        assert (refused.status, refused.error_code(), refused.closes) == (503, "overloaded", True)
        assert refused.header("retry-after") == "1"
        assert await second.closes_silently()
        assert (await first.ask(b" " * (4 * MIB - 1))).error_code() == "not_ready"
        assert budget.held_bytes == 0


@pytest.mark.anyio
async def test_a_large_infer_request_beyond_the_budget_is_refused_in_its_form() -> None:
    """The fast path answers with the text and the code of the error, as the app does, and ends the connection."""
    path = "/v2/models/a/infer"
    message, others = scoring(path, KEY, b" " * 6 * MIB), scoring(path, KEY + "-other", b" " * 6 * MIB)
    async with (
        _with_budget(9 * MIB) as (listener, budget, port),
        await AsyncConnection.open(port) as first,
        await AsyncConnection.open(port) as second,
    ):
        first.tell(message[: 1 - 6 * MIB])
        second.tell(others[: 1 - 6 * MIB])
        await _until(lambda: sum(one.arrived_bytes for one in listener.connections) == 2)
        first.tell(b" " * 2 * MIB)
        await _until(lambda: budget.held_bytes == 3 * MIB)
        refused = await second.ask(b" " * 5 * MIB)
        assert (refused.status, refused.closes) == (503, True)
        assert refused.header("x-stoker-error-code") == "overloaded"
        assert refused.json() == {"error": "Too many large request bodies are being received."}
        assert await second.closes_silently()
