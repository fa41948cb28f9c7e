"""A gRPC server in this process with a puppet instead of the device, and the callers of its tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tests.patience import PATIENCE_S
from tests.puppets import metric_memory, puppet_service

from stoker.errors import DeadlineExceeded, ModelFailed
from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.messages import METHODS, SERVICE, ModelInferRequest, message
from stoker.gateway.grpc.server import GrpcServer
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.scoring.service import Service
from stoker.keys.access import Access
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier
from stoker.script_form import ScriptForm
from stoker.system.certificates import TlsFiles
from stoker.tensors import Signature, TensorSpec

KEY, OTHER_KEY = "a-key-of-the-tests-00000001", "a-key-of-the-tests-00000002"
BEARER = (("authorization", f"Bearer {KEY}"),)
ADMIN_KEY = "the-admin-key-of-the-tests"
ADMIN = (("authorization", f"Bearer {ADMIN_KEY}"),)
ROWS = Signature((TensorSpec("x", "float32", (2,)),), (TensorSpec("y", "float32", (2,)),))
BODIES = Signature(
    (TensorSpec("raw_data", "uint8", (64,), variable=True),),
    (TensorSpec("result", "uint8", (64,), variable=True),),
    takes="body",
    script=ScriptForm(),
)
TLS = Path(__file__).parents[3] / "tls"
TLS_FILES = TlsFiles(TLS / "localhost.crt", TLS / "localhost.key")
SETTINGS, ACKNOWLEDGED = b"\0\0\0\4\0\0\0\0\0", b"\0\0\0\4\1\0\0\0\0"
"""Frames of HTTP/2."""
"""How long a test waits for what must come."""


@dataclass
class PuppetInfer:
    """An exchange that doubles numbers; fails or waits if a test says so.

    Attributes:
        error: What requests fail with, if anything: an error of the device, or a fault of the server.
        gate: What it waits for, if anything.
        calls: What it was asked: service, ids, and how long the caller waits if that is not the service's timeout.
        begun: How many requests have begun, for the test to wait for.
        given_up: How many were cancelled.
        watch: Called with the rows of each request.
    """

    error: Exception | None = None
    gate: asyncio.Event | None = None
    calls: list[tuple[str, bytes, int | None]] = field(default_factory=list)
    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    under_way: int = 0
    most_under_way: int = 0
    given_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    watch: Callable[[Any], object] = lambda _: None
    signature: Signature = ROWS
    lost: bool = False
    idle: bool = True
    leased_rows: int = 0
    admission: None = None
    tasks: set[asyncio.Future[None]] = field(default_factory=set)

    def ring(self) -> None:
        """Do nothing: there is no device."""

    def refusal(self, _: Any) -> None:
        """Refuse nobody before their request is read."""

    def missed(self, *_: int) -> DeadlineExceeded:
        """Nothing is known of when to come back."""
        return DeadlineExceeded()

    def submit(self, ticket: Any, rows: list[np.ndarray]) -> None:
        """Take a request."""
        service, wait_ns = ticket.service, ticket.deadline_ns - ticket.received_ns
        deadline_ns = None if wait_ns == service.limits.timeout_ns else wait_ns
        self.calls.append((f"{service.name}:{service.version}", ticket.ids.request_id, deadline_ns))
        self.watch(rows)
        ticket.claim(len(rows[0]))
        if self.error is not None and not isinstance(self.error, ModelFailed):
            # A copy: what an error was raised with lives as long as it does.
            raise copy(self.error)
        ticket.exchange, ticket.rows = self, len(rows[0])
        ticket.enqueued_ns = ticket.started_ns = ticket.finished_ns = ticket.received_ns
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.begun.release()
        task = asyncio.ensure_future(self._finish(ticket, [rows[0] * 2]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def submit_decoded(self, ticket: Any, body: Any, decode: Any) -> None:
        """Take a request whose row could be written in place."""
        self.submit(ticket, decode(body, None))

    async def _finish(self, ticket: Any, outputs: list[np.ndarray]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if ticket.is_open:
            self.under_way -= 1
            ticket.error, ticket.sliced = self.error, SimpleNamespace(arrays=outputs)
            ticket.settle()

    def cancel(self, _: Any) -> None:
        """The caller has gone."""
        self.under_way -= 1
        self.given_up.release()

    async def has_begun(self, requests: int = 1) -> None:
        """Wait until so many more requests have begun."""
        for _ in range(requests):
            await asyncio.wait_for(self.begun.acquire(), PATIENCE_S)


@dataclass
class Stage:
    """A server and a channel to it."""

    gateway: Gateway
    infer: PuppetInfer
    server: GrpcServer
    channel: Any

    def method(self, name: str) -> Any:
        """The client's side of a method."""
        descriptor = METHODS[name]
        kind = (
            self.channel.stream_stream
            if descriptor.client_streaming and descriptor.server_streaming
            else self.channel.unary_unary
        )
        return kind(
            f"/{SERVICE}/{name}",
            message(descriptor.input_type.name).SerializeToString,
            message(descriptor.output_type.name).FromString,
        )

    async def ask(self, method: str, /, *, metadata: Any = (), **fields: Any) -> Any:
        """Call a unary method."""
        request = message(METHODS[method].input_type.name)(**fields)
        return await self.method(method)(request, metadata=metadata, timeout=PATIENCE_S)

    def infers(
        self, *numbers: float, metadata: Any = BEARER, timeout: float = PATIENCE_S, **fields: Any
    ) -> Any:
        """Begin to infer one row of two numbers."""
        return self.method("ModelInfer")(rows(*numbers, **fields), metadata=metadata, timeout=timeout)

    @property
    def digits(self) -> Service:
        return self.gateway.directory.services["digits"]


def rows(*numbers: float, **fields: Any) -> Any:
    """A raw request of one row."""
    request = ModelInferRequest(**{"model_name": "digits", **fields})
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(np.array(numbers or (1, 2), "<f4").tobytes())
    return request


def numbers_of(answer: Any) -> list[float]:
    return np.frombuffer(answer.raw_output_contents[0], "<f4").tolist()


@asynccontextmanager
async def staged(**arguments: Any) -> AsyncIterator[Stage]:
    """A server of three models, two of which are ready, all with keys."""
    memory = metric_memory()
    keys = {"digits": KEY, "letters": OTHER_KEY, "script": KEY}
    services = {
        name: puppet_service(
            name,
            memory,
            slot=slot,
            version="3",
            access=Access(KeyVerifier(Path("never-read"), name, Keys(key, key))),
            timeout_ms=60_000,
            max_body_bytes=1 << 20,
        )
        for slot, (name, key) in enumerate(keys.items())
    }
    infer = PuppetInfer()
    for name, signature in (("digits", ROWS), ("script", BODIES)):
        services[name].signature = signature
        services[name].replicas.exchanges = [infer]  # type: ignore[list-item]
    gateway = Gateway(ModelDirectory(services), memory)
    for service in services.values():
        service.readiness = gateway.readiness
    server = GrpcServer(
        gateway,
        arguments.pop("address", "127.0.0.1:0"),
        max_message_bytes=arguments.pop("max_message_bytes", 1 << 16),
        **arguments,
    )
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stage(gateway, infer, server, channel)
    await server.stop(0)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


def refuses(port: int) -> bool:
    with socket.socket() as sock:
        # At first nothing answers at all: this must not wait for it in the server's own loop.
        sock.settimeout(0.01)
        return sock.connect_ex(("127.0.0.1", port)) != 0


async def until(look: Callable[[], bool], condition: str) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not look():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {condition}"
        await asyncio.sleep(0.01)
