"""A gateway with both paths on a real port and its models on threads beside it: one process, no start-up time.

What runs is what `stoker serve` runs in its processes: listener, app, fast path, exchange, arena, worker and the
calls of entry scripts. A test makes one with the `run` functions that it wants to see served.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
import uvloop
from msgspec.structs import replace
from tests.http.raw_http import Answer, Connection, Headers, bearer, request
from tests.patience import PATIENCE_S
from tests.puppets import metric_memory, puppet_pipeline, puppet_service

from stoker.arena import Arena
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.device_turns import ModelTurn
from stoker.device.instance import Instance
from stoker.device.lanes import Lane
from stoker.device.sequence_worker import SequenceWorker
from stoker.device.worker import Worker
from stoker.gateway.describing.swagger import Naming
from stoker.gateway.gateway import Gateway
from stoker.gateway.gateway_settings import GatewaySettings
from stoker.gateway.grpc.server import GrpcServer
from stoker.gateway.http.requests import Cors
from stoker.gateway.listeners.app import create_app
from stoker.gateway.listeners.listener import Listener
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.rows.sequences import SequenceExchange, SequenceReplicas
from stoker.gateway.rows.urgency import Urgency
from stoker.gateway.scoring.service import Service
from stoker.gateway.traffic import Traffic
from stoker.keys.access import Access
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier
from stoker.runtimes.base import ForkingRuntime, Runtime
from stoker.runtimes.script import BodyScript, StreamingScript
from stoker.scripts import coroutines
from stoker.scripts.batching_choice import BatchedCalls
from stoker.scripts.invocation import ScriptCalls
from stoker.settings.choices import WORDS, NonFinite
from stoker.settings.pipelines import Pipeline
from stoker.settings.traffic import Endpoint

__all__ = ["APP", "DIRECT", "DOORS", "KEY", "InProcessServer", "go_on_until", "script"]

KEY: Final = "a-key-of-the-contract-tests-01"
MAX_BODY_BYTES: Final = 1 << 20

DIRECT: Headers = []
APP: Headers = [("Upgrade", "nothing"), ("Connection", "keep-alive")]
"""Headers that change nothing but the door: the direct one leaves offers to upgrade to the app."""
DOORS: Final = {"direct": DIRECT, "app": APP}


def script(run: Callable[..., Any], *, raw: bool = False, forks: bool = False) -> Runtime:
    """An entry script with this `run`, one request at a time; `raw` as if `rawhttp` had decorated it.

    One that `forks` may have several instances.
    """
    calls = ScriptCalls(run, raw=raw)
    one_by_one = BatchedCalls(lambda requests: [calls.answer(request) for request in requests], calls.form)
    return (StreamingScript if forks else BodyScript)(one_by_one, MAX_BODY_BYTES)


def go_on_until(ended: threading.Event, go: threading.Semaphore) -> None:
    """Let a script that waits for `go` before each piece make them until it has ended; no step is left over."""
    while not ended.is_set():
        go.release()
        ended.wait(0.01)
    while go.acquire(blocking=False):
        pass


class InProcessServer:
    """One running gateway; everything of it ends with its context.

    Attributes:
        port: Where it listens.
        gateway: What its frontend knows.
    """

    def __init__(
        self,
        runtimes: Mapping[str, Runtime] | Runtime,
        *,
        key: str | None = None,
        timeout_ms: int = 120_000,
        cors: Sequence[str] = (),
        naming: Naming | None = None,
        tells_version: bool = True,
        docs: bool = True,
        endpoint: Endpoint | None = None,
        non_finite: NonFinite = WORDS,
        target_ms: float | None = None,
        turns: Sequence[ModelTurn] = (),
        pipelines: Sequence[Pipeline] = (),
        instances: int = 1,
    ) -> None:
        """Make it; it starts with its context.

        Args:
            runtimes: The models by service name; one alone is called `model`.
            key: What requests need; None lets all in.
            timeout_ms: How long a request may take.
            cors: Origins that may read answers.
            naming: What descriptions call the services.
            tells_version: Whether answers name the version.
            docs: Whether the API is described.
            endpoint: The endpoint whose deployments the models are.
            non_finite: What becomes of NaN and infinities in the JSON of answers.
            target_ms: By what the boards of its arenas say requests are refused that would take longer; the devices
                write none.
            turns: The part of each model in the turns of its device; empty where none are taken.
            pipelines: Pipelines of the models.
            instances: How many threads each model has; more than one needs runtimes that can be forked.
        """
        self._pipelines, self._instances = pipelines, instances
        self._runtimes = runtimes if isinstance(runtimes, Mapping) else {"model": runtimes}
        self._turns = dict(zip(self._runtimes, turns, strict=bool(turns)))
        self.memory = metric_memory()
        services = {
            name: puppet_service(
                name,
                self.memory,
                slot=slot,
                access=Access(None if key is None else KeyVerifier(Path("no-keys"), name, Keys(key, key))),
                timeout_ms=timeout_ms,
                max_body_bytes=MAX_BODY_BYTES,
                non_finite=non_finite,
                urgency=None if target_ms is None else Urgency(lasts_ns=round(target_ms * 1e6)),
                by_target=target_ms is not None,
            )
            for slot, name in enumerate(self._runtimes)
        }
        self.gateway = Gateway(
            ModelDirectory(services, None if endpoint is None else Traffic(endpoint)),
            self.memory,
            GatewaySettings(
                cors=Cors(tuple(cors)) if cors else None,
                naming=naming or Naming(),
                tells_version=tells_version,
                docs=docs,
            ),
        )
        for service in services.values():
            service.readiness = self.gateway.readiness
        self.key = key
        self.port = 0
        self._loop = uvloop.new_event_loop()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._exchanges: list[ArenaExchange] = []

    def set(self, **settings: Any) -> None:
        """Change settings of the gateway."""
        self.gateway.settings = replace(self.gateway.settings, **settings)

    def __enter__(self) -> Self:
        self._spawn(self._loop.run_forever)
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._ended.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self._loop.close()

    @property
    def service(self) -> Service:
        """The only service."""
        (service,) = self.gateway.directory.services.values()
        return service

    def connect(self) -> Connection:
        """A new connection."""
        return Connection(self.port)

    def ask(
        self,
        method: str = "POST",
        path: str = "/score",
        headers: Headers = (),
        body: bytes | None = None,
        *,
        bodiless: bool = False,
    ) -> Answer:
        """Ask on a connection of its own, with the key if there is one."""
        keys = [] if self.key is None else [bearer(self.key)]
        with self.connect() as connection:
            connection.send(request(method, path, [*keys, *headers], body))
            return connection.answer(bodiless=bodiless or method == "HEAD")

    def by_both_doors(self, body: bytes, headers: Headers = ()) -> Answer:
        """POST to the only service through each door, make sure that both give the same, and return that."""
        direct, app = (self.ask("POST", "/score", [*headers, *door], body) for door in DOORS.values())
        assert _with_lower_names(app) == _with_lower_names(direct)
        return direct

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _start(self) -> None:
        # As the frontend's `main` does; what is started here inherits it.
        np.seterr(over="raise")
        for name, runtime in self._runtimes.items():
            self._attach(self.gateway.directory.services[name], runtime)
        for slot, pipeline in enumerate(self._pipelines, len(self._runtimes)):
            self._add_pipeline(pipeline, slot)
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self._listener = Listener(create_app(self.gateway), self.gateway, [sock])
        await self._listener.start()
        self._sweeper = self._loop.create_task(self._sweep())

    def _add_pipeline(self, pipeline: Pipeline, slot: int) -> None:
        service = puppet_pipeline(pipeline, self.gateway.directory.models, self.memory, slot)
        longest_ns = max(one.limits.timeout_ns for one in self.gateway.directory.services.values())
        service.limits = msgspec.structs.replace(
            service.limits, timeout_ns=longest_ns, max_body_bytes=MAX_BODY_BYTES
        )
        service.refresh()
        self.gateway.route(pipeline.name, service.served_model(slot))

    def _attach(self, service: Service, runtime: Runtime) -> None:
        fd = Arena.create(runtime.signature, 64)
        near, far = socket.socketpair()
        sequences = runtime.signature.sequences
        kind: Callable[..., ArenaExchange] = ArenaExchange
        if sequences:
            kind = partial(SequenceExchange, replicas=SequenceReplicas(1), place=0)
        exchange = kind(
            Arena(fd, runtime.signature, 64),
            near,
            clock_ns=time.monotonic_ns,
            on_lost=service.detach,
            loop=self._loop,
            by_target=service.limits.by_target,
        )
        rows = 1 if runtime.signature.takes == "body" else 16
        policy, metrics = BatchPolicy(max_batch_rows=rows), self.memory.page(64).model(0)
        working: Callable[..., Worker] = SequenceWorker if sequences else Worker
        worker = working(runtime, policy, metrics, turn=self._turns.get(service.name))
        worker.add_lane(Lane(Arena(fd, runtime.signature, 64), far))
        os.close(fd)
        service.attach(exchange)
        self._exchanges.append(exchange)

        last = threading.Barrier(self._instances)

        def serve(instance: Instance) -> None:
            while not self._ended.is_set():
                worker.turn(0.02, instance)
            # The last one to leave closes it.
            worker.stop()
            worker.serve(instance)
            if last.wait() == 0:
                far.close()
            # A device process ends with its threads, and so do the loops of their coroutines.
            if hasattr(coroutines.OF_THREAD, "loop"):
                coroutines.OF_THREAD.loop.close()

        for _ in range(1, self._instances):
            assert isinstance(runtime, ForkingRuntime), "its test knows"
            worker.add_instance(runtime.fork())
        for instance in worker.instances:
            self._spawn(partial(serve, instance))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            for exchange in self._exchanges:
                exchange.sweep(time.monotonic_ns())

    async def _stop(self) -> None:
        self._sweeper.cancel()
        await self._listener.stop_listening()
        await self._listener.finish(2)
        for exchange in self._exchanges:
            exchange.close()
        self.gateway.close()
        # uvloop closes what it has been told to close in its next turns.
        for _ in range(3):
            await asyncio.sleep(0)


class InProcessGrpcServer(InProcessServer):
    """The same with a gRPC port.

    Attributes:
        address: Of that port.
    """

    address = ""

    async def _start(self) -> None:
        await super()._start()
        self.grpc = GrpcServer(self.gateway, "127.0.0.1:0", max_message_bytes=MAX_BODY_BYTES)
        await self.grpc.start()
        self.address = f"127.0.0.1:{self.grpc.port}"

    async def _stop(self) -> None:
        await self.grpc.stop(2)
        await super()._stop()


def _with_lower_names(answer: Answer) -> bytes:
    """An answer's bytes as they can be compared; the app writes the names of a script's headers in lower case."""
    head, _, body = answer.comparable().partition(b"\r\n\r\n")
    lines = [line.partition(b": ") for line in head.split(b"\r\n")]
    return b"\r\n".join([*(name.lower() + colon + value for name, colon, value in lines), b"", body])
