"""The gRPC server of a frontend: its port, its connections, and how they end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.patience import PATIENCE_S
from tests.puppets import metric_memory
from tests.unit.gateway.grpc.stage import (
    ACKNOWLEDGED,
    BEARER,
    SETTINGS,
    TLS,
    TLS_FILES,
    numbers_of,
    refused,
    refuses,
    rows,
    staged,
    until,
)

from stoker.gateway.grpc import open_connections
from stoker.gateway.grpc.messages import ModelInferRequest
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.listeners.tls import TlsListener

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("late_grpc_events")]


async def test_an_old_connection_answers_its_calls_and_gets_no_more() -> None:
    """Later calls of the same caller come on another connection."""
    async with staged(connection_age_s=30) as stage:
        stage.infer.gate = asyncio.Event()
        running = asyncio.ensure_future(stage.infers(1, 2))
        await stage.infer.has_begun()
        (first,) = stage.server.connections
        stage.server.connections.check(asyncio.get_running_loop().time() + 50)
        await until(lambda: first.http.settled, "its caller has got a GOAWAY")
        stage.infer.gate.set()
        assert numbers_of(await running) == [2, 4]
        assert numbers_of(await stage.infers(3, 4)) == [6, 8]
        await until(lambda: first not in stage.server.connections, "the old one is closed")


async def test_large_messages_count_against_the_budget_of_large_bodies() -> None:
    """Those beyond it are refused with a retry time; small and answered messages do not count."""
    mib = 1 << 20
    large = ModelInferRequest(model_name="digits", raw_input_contents=[bytes(2 * mib)])
    large.inputs.add(name="x", datatype="FP32", shape=[mib // 4, 2])
    async with staged(max_message_bytes=4 * mib) as stage:
        stage.gateway.bodies = BodyBudget(6 * mib)
        stage.infer.gate = asyncio.Event()
        method = stage.method("ModelInfer")
        running = asyncio.ensure_future(method(large, metadata=BEARER, timeout=PATIENCE_S))
        await stage.infer.has_begun()
        assert stage.gateway.bodies.left_bytes == 3 * mib
        error = await refused(method(large, metadata=BEARER, timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["retry-after"] == "1"
        stream = stage.method("ModelStreamInfer")(metadata=BEARER)
        await stream.write(large)
        assert "Too many large" in (await stream.read()).error_message
        await stream.done_writing()
        stage.infer.gate.set()
        assert numbers_of(await stage.infers(1, 2)) == [2, 4]
        await running
        assert stage.gateway.bodies.left_bytes == 6 * mib


@pytest.mark.parametrize(
    ("limit", "sent", "reason"),
    [
        ("_HANDSHAKE_MS", b"", b"handshake timeout"),
        ("_IDLE_MS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS + ACKNOWLEDGED, b"connection idle"),
        ("_SILENT_PEER_MS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS + ACKNOWLEDGED, b"ping_timeout"),
    ],
)
async def test_silent_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch, limit: str, sent: bytes, reason: bytes
) -> None:
    """Without HTTP/2, without calls, or without an answer to a PING."""
    monkeypatch.setattr(open_connections, limit, 200)
    monkeypatch.setattr(open_connections, "_LOOK_FOR_PEER_MS", 200)
    async with staged() as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            assert reason in await reader.read()
        writer.close()


async def test_servers_of_two_frontends_share_a_port() -> None:
    """One in each frontend; the kernel spreads connections."""
    async with staged() as first, staged(address=f"127.0.0.1:{first.server.port}") as second:
        assert second.server.port == first.server.port
        assert (await second.ask("ServerLive")).live


async def test_every_connection_is_served_by_each_copy_of_the_socket() -> None:
    """The kernel spreads connections over the copies; none is left after the stop."""
    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    async with staged() as stage, AsyncExitStack() as stack:
        for number in range(48):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{stage.server.port}", own_connection)
            await stack.enter_async_context(channel)
            other = replace(stage, channel=channel)
            assert numbers_of(await other.infers(number, 1)) == [2 * number, 2]
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest(service="digits"))).status == 1
        await stage.server.stop(0)
        await until(lambda: refuses(stage.server.port), "the port is closed")


async def test_stop_answers_the_calls_under_way() -> None:
    """Calls and streams; then it is gone, without waiting for those who only watch."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        watch = health_pb2_grpc.HealthStub(stage.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        call = asyncio.ensure_future(stage.infers(1, 2))
        stream = stage.method("ModelStreamInfer")(metadata=BEARER)
        await stream.write(rows(3, 4))
        await stage.infer.has_begun(2)
        stopping = asyncio.ensure_future(stage.server.stop(PATIENCE_S))
        await until(lambda: refuses(stage.server.port), "the port is closed")
        assert not stopping.done()
        stage.infer.gate.set()
        assert numbers_of(await call) == [2, 4]
        assert numbers_of((await stream.read()).infer_response) == [6, 8]
        ended = await refused(stream.read())
        assert ended.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(ended.trailing_metadata())["retry-after"] == "1"
        assert await asyncio.wait_for(stopping, PATIENCE_S) == 0


async def test_stop_answers_connections_that_the_kernel_accepted() -> None:
    """Also the calls that the library has not handed over yet; their callers then open connections elsewhere."""
    async with staged() as stage:
        calls = [asyncio.ensure_future(stage.infers(number, 1)) for number in range(200)]
        await stage.infer.has_begun()
        assert await stage.server.stop(PATIENCE_S) == 0
        answers = await asyncio.gather(*calls)
        assert [numbers_of(answer)[0] for answer in answers] == [2 * number for number in range(200)]


async def test_stop_over_tls_answers_the_calls_under_way() -> None:
    """Calls that have arrived are answered, and callers get the same GOAWAY."""
    credentials = grpc.ssl_channel_credentials((TLS / "localhost.crt").read_bytes())
    async with (
        staged(tls=TlsListener(TLS_FILES, "grpc", metric_memory().page(0))) as stage,
        grpc.aio.secure_channel(f"localhost:{stage.server.port}", credentials) as channel,
    ):
        secure = replace(stage, channel=channel)
        calls = [asyncio.ensure_future(secure.infers(number, 1)) for number in range(200)]
        await stage.infer.has_begun()
        assert await stage.server.stop(PATIENCE_S) == 0
        answers = await asyncio.gather(*calls)
        assert [numbers_of(answer)[0] for answer in answers] == [2 * number for number in range(200)]


async def test_stop_cuts_calls_off_after_its_timeout() -> None:
    """And says how many calls that were."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        call = stage.infers(1, 2)
        await stage.infer.has_begun()
        assert await stage.server.stop(0.01) == 1
        assert (await refused(call)).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
