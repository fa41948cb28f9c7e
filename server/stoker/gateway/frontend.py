"""The frontend process: HTTP in, rows out. The supervisor runs this module with `--control-fd N`.

Messages it gets: `start` (settings, services, listening sockets), `serve` (a further version of a model), `attach`
(arena and doorbell of a replica), `route` (what a model's names mean), `retire` (a version is served no more), `listen`,
`detach` (a replica's device process has ended), `reply` (to a request), `drain`, `stop`. Messages it sends: `started`,
`listening`, `attached`, `retired`, `request`, `stopped`. It ends when the control channel does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import uvloop

from stoker.arena import Arena
from stoker.collection import read_collection
from stoker.control import ControlChannel, Message
from stoker.errors import LoadFailed
from stoker.exchange import Exchange
from stoker.gateway.admission import LimitedService
from stoker.gateway.app import create_app
from stoker.gateway.cors import Cors
from stoker.gateway.gateway import Gateway
from stoker.gateway.image_scoring import ImageScoring
from stoker.gateway.listener import Listener
from stoker.gateway.service import Service
from stoker.gateway.swagger import Naming
from stoker.image_input import read_image_input
from stoker.keyring import Keys, KeyVerifier
from stoker.logs import configure_logging
from stoker.metrics import MetricMemory, MetricPage, ModelMetrics
from stoker.swagger_files import read_swagger_file
from stoker.tensors import Signature

if TYPE_CHECKING:
    from stoker.gateway.collector import Collector
    from stoker.gateway.grpc.server import GrpcServer

__all__ = ["main"]

logger = logging.getLogger(__name__)

_SWEEP_S: Final = 0.025
_FLUSH_S: Final = 4.0


class _Frontend:
    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._gateway: Gateway | None = None
        self._listener: Listener | None = None
        self._grpc: GrpcServer | None = None
        self._grpc_arguments: dict[str, Any] | None = None
        self._exchanges: dict[int, Exchange] = {}
        """By generation: each load of a replica has its own."""
        self._stopped = False
        self._inbox: asyncio.Queue[tuple[Message, list[int]] | None] = asyncio.Queue()
        self._loop.add_reader(channel.fileno(), self._on_message)

    async def run(self) -> None:
        """Handle messages one after the other, until there are no more to come."""
        try:
            while not self._stopped and (received := await self._inbox.get()) is not None:
                await self._handle(*received)
        finally:
            self._flush_collected()

    def _flush_collected(self) -> None:
        for service in self._gateway.services.values() if self._gateway else ():
            if service.collector is not None:
                service.collector.close(_FLUSH_S)

    def _on_message(self) -> None:
        received = self._channel.receive()
        if received is None:
            self._loop.remove_reader(self._channel.fileno())
        self._inbox.put_nowait(received)

    async def _handle(self, message: Message, fds: list[int]) -> None:
        match message["kind"]:
            case "start":
                await self._start(message, fds)
            case "attach":
                self._attach(message, fds)
            case "listen":
                await self._listen()
            case "detach":
                # Usually the doorbell has said so already; a process that the device had forked can hold it open.
                self._detach(message)
            case "drain":
                assert self._gateway is not None, "drain comes after start"
                self._gateway.start_draining()
            case "stop":
                await self._stop(message["timeout_s"])

    async def _start(self, message: Message, fds: list[int]) -> None:
        metrics_fd, *socket_fds = fds
        memory = MetricMemory(metrics_fd)
        os.close(metrics_fd)
        page = memory.page(message["page"])
        services = [_service(content, page, message) for content in message["services"]]
        for service, content in zip(services, message["services"], strict=True):
            service.own_swagger = _own_swagger(content["swagger_files"])
        self._gateway = Gateway(
            {service.name: service for service in services},
            memory,
            metrics_need_key=message["metrics_need_key"],
            large_body_budget_bytes=max(1 << 30, 4 * message["max_body_bytes"]),
            cors=Cors(tuple(message["cors_origins"])) if message["cors_origins"] else None,
            naming=Naming(**message["naming"]),
            tells_version=message["tells_version"],
        )
        sockets = [socket.socket(fileno=fd) for fd in socket_fds]
        self._listener = Listener(create_app(self._gateway), self._gateway, sockets)
        self._grpc_arguments = message["grpc"]
        self._loop.call_later(_SWEEP_S, self._sweep)
        # What start-up made stays: collecting it again and again would only cost pauses.
        gc.collect()
        gc.freeze()
        self._channel.send("started")

    async def _listen(self) -> None:
        assert self._listener is not None, "listen comes after start"
        assert self._gateway is not None, "made with the listener"
        await self._listener.start()
        if self._grpc_arguments is not None:
            # Not where it is off: it would cost every frontend its memory.
            from stoker.gateway.grpc.server import GrpcServer

            self._grpc = GrpcServer(self._gateway, **self._grpc_arguments)
            await self._grpc.start()
        self._channel.send("listening")

    def _attach(self, message: Message, fds: list[int]) -> None:
        arena_fd, doorbell_fd = fds
        arena = Arena(arena_fd, Signature.from_json(message["signature"]), message["capacity"])
        os.close(arena_fd)
        assert self._gateway is not None, "attach comes after start"
        service = self._gateway.services[message["model"]]
        generation = message["generation"]

        def on_lost(exchange: Exchange) -> None:
            service.detach(exchange)
            self._exchanges.pop(generation, None)
            logger.warning("a device process of %s has ended; its requests were told", service.name)

        exchange = Exchange(
            arena,
            socket.socket(fileno=doorbell_fd),
            clock_ns=time.monotonic_ns,
            on_lost=on_lost,
            loop=self._loop,
        )
        service.attach(exchange)
        # While nobody knew that the model wants to see heads, its requests went past them.
        self._gateway.heads.clear()
        self._exchanges[generation] = exchange
        self._channel.send("attached", generation=generation)

    def _detach(self, message: Message) -> None:
        exchange = self._exchanges.get(message["generation"])
        if exchange is not None:
            exchange.lose()

    def _sweep(self) -> None:
        assert self._gateway is not None, "started with the gateway"
        now_ns = time.monotonic_ns()
        for service in self._gateway.services.values():
            service.metrics.flush()
            for exchange in tuple(service.exchanges):
                exchange.sweep(now_ns)
            service.metrics.set_in_flight_rows(service.leased_rows)
        self._loop.call_later(_SWEEP_S, self._sweep)

    async def _stop(self, timeout_s: float) -> None:
        assert self._listener is not None, "stop comes after start"
        calls = self._loop.create_task(self._grpc.stop(timeout_s)) if self._grpc is not None else None
        await self._listener.stop_listening()
        cut_off = await self._listener.finish(timeout_s)
        if calls is not None:
            cut_off += await calls
        for service in self._gateway.services.values() if self._gateway else ():
            service.metrics.flush()
        self._channel.send("stopped", cut_off=cut_off)
        self._stopped = True


def _service(content: dict[str, Any], page: MetricPage, message: Message) -> Service:
    keys_dir, name = Path(message["keys_dir"]), content["name"]
    keys = tokens = None
    if message["auth"] or message["token_auth"]:
        given = content.get("keys")
        keys = KeyVerifier(keys_dir, name, Keys(**given) if given else None)
    if message["token_auth"]:
        from stoker.tokens import TokenVerifier

        assert keys is not None, "made above: tokens are handed out for keys"
        tokens = TokenVerifier(keys_dir, name, keys)
    metrics = page.model(content["slot"])
    metrics.clear_gauges()
    core: dict[str, Any] = {
        "verifier": keys if message["auth"] else None,
        "tokens": tokens,
        "metrics": metrics,
        "timeout_ms": content["timeout_ms"],
        "max_body_bytes": message["max_body_bytes"],
        "description": content["description"],
        "images": _images(content, message),
        "collector": _collector(content, message, metrics),
    }
    limit = content["max_concurrent_requests"]
    if limit is None:
        return Service(name, **core)
    return LimitedService(name, limit=limit, max_wait_ms=content["max_queue_wait_ms"], **core)


def _own_swagger(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What the user's files say; what has become unreadable since the start is left to be made."""
    descriptions = {}
    for version, file in files.items():
        try:
            descriptions[version] = read_swagger_file(Path(file))
        except LoadFailed as error:
            logger.warning("%s", error)
    return descriptions


def _images(content: dict[str, Any], message: Message) -> ImageScoring | None:
    if content["image"] is None:
        return None
    return ImageScoring(
        read_image_input(content["image"]),
        max_pixels=message["max_image_pixels"],
        max_rows_bytes=message["max_body_bytes"],
    )


def _collector(content: dict[str, Any], message: Message, metrics: ModelMetrics) -> Collector | None:
    settings = read_collection(content["collection"] or False)
    if not settings:
        return None
    from stoker.gateway.collector import Collector
    from stoker.record_files import RecordFiles

    version = content["version"]
    files = RecordFiles(
        Path(content["data_dir"]),
        version,
        settings.format,
        max_bytes=settings.max_mb << 20,
        writers=message["frontends"],
    )
    collector = Collector(content["name"], version, settings, files, metrics)
    collector.start()
    return collector


async def _serve(control_fd: int) -> None:
    await _Frontend(ControlChannel.inherited(control_fd)).run()


def main() -> None:
    """Entry point of the frontend process."""
    parser = argparse.ArgumentParser(prog="stoker.gateway.frontend", description="Started by `stoker serve`.")
    parser.add_argument("--control-fd", type=int, required=True)
    args = parser.parse_args()
    # A signal to the whole process group is the supervisor's to answer: it drains first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_logging("frontend")
    # Casting a request's numbers to the model's type must not yield infinities unnoticed.
    np.seterr(over="raise")
    uvloop.run(_serve(args.control_fd))


if __name__ == "__main__":
    main()
