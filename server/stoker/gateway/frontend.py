"""The frontend process: HTTP in, rows out. The supervisor runs this module with `--control-fd N`.

Messages it gets: `start` (settings, services, listening sockets), `attach` (a model's arena and doorbell),
`listen`, `detach` (a model's device process has ended), `drain`, `stop`. Messages it sends: `started`, `attached`,
`stopped`. It ends when the control channel does.
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
from typing import Any, Final

import numpy as np
import uvloop

from stoker.arena import Arena
from stoker.control import ControlChannel, Message
from stoker.exchange import Exchange
from stoker.gateway.app import create_app
from stoker.gateway.gateway import Gateway
from stoker.gateway.listener import Listener
from stoker.gateway.service import Service
from stoker.keyring import Keys, KeyVerifier
from stoker.logs import configure_logging
from stoker.metrics import MetricMemory, MetricPage
from stoker.tensors import Signature

__all__ = ["main"]

logger = logging.getLogger(__name__)

_SWEEP_S: Final = 0.025


class _Frontend:
    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._gateway: Gateway | None = None
        self._listener: Listener | None = None
        self._generations: dict[str, int] = {}
        self._stopped = False
        self._inbox: asyncio.Queue[tuple[Message, list[int]] | None] = asyncio.Queue()
        self._loop.add_reader(channel.fileno(), self._on_message)

    async def run(self) -> None:
        """Handle messages one after the other, until there are no more to come."""
        while not self._stopped and (received := await self._inbox.get()) is not None:
            await self._handle(*received)

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
                assert self._listener is not None, "listen comes after start"
                await self._listener.start()
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
        self._gateway = Gateway(
            {service.name: service for service in services},
            memory,
            metrics_need_key=message["metrics_need_key"],
            large_body_budget_bytes=max(1 << 30, 4 * message["max_body_bytes"]),
        )
        sockets = [socket.socket(fileno=fd) for fd in socket_fds]
        self._listener = Listener(create_app(self._gateway), self._gateway, sockets)
        self._loop.call_later(_SWEEP_S, self._sweep)
        # What start-up made stays: collecting it again and again would only cost pauses.
        gc.collect()
        gc.freeze()
        self._channel.send("started")

    def _attach(self, message: Message, fds: list[int]) -> None:
        arena_fd, doorbell_fd = fds
        arena = Arena(arena_fd, Signature.from_json(message["signature"]), message["capacity"])
        os.close(arena_fd)
        assert self._gateway is not None, "attach comes after start"
        service = self._gateway.services[message["model"]]

        def on_lost(exchange: Exchange) -> None:
            service.detach(exchange)
            logger.warning("the device process of %s has ended; its requests were told", service.name)

        exchange = Exchange(
            arena,
            socket.socket(fileno=doorbell_fd),
            clock_ns=time.monotonic_ns,
            on_lost=on_lost,
            loop=self._loop,
        )
        service.attach(exchange)
        self._generations[service.name] = message["generation"]
        self._channel.send("attached", model=service.name, generation=message["generation"])

    def _detach(self, message: Message) -> None:
        assert self._gateway is not None, "detach comes after start"
        exchange = self._gateway.services[message["model"]].exchange
        if exchange is not None and self._generations[message["model"]] == message["generation"]:
            exchange.lose()

    def _sweep(self) -> None:
        assert self._gateway is not None, "started with the gateway"
        now_ns = time.monotonic_ns()
        for service in self._gateway.services.values():
            service.metrics.flush()
            exchange = service.exchange
            if exchange is not None:
                exchange.sweep(now_ns)
            service.metrics.set_in_flight_rows(0 if exchange is None else exchange.leased_rows)
        self._loop.call_later(_SWEEP_S, self._sweep)

    async def _stop(self, timeout_s: float) -> None:
        assert self._listener is not None, "stop comes after start"
        await self._listener.stop_listening()
        cut_off = await self._listener.finish(timeout_s)
        for service in self._gateway.services.values() if self._gateway else ():
            service.metrics.flush()
        self._channel.send("stopped", cut_off=cut_off)
        self._stopped = True


def _service(content: dict[str, Any], page: MetricPage, message: Message) -> Service:
    verifier = None
    if message["auth"]:
        keys = content.get("keys")
        override = Keys(**keys) if keys else None
        verifier = KeyVerifier(Path(message["keys_dir"]), content["name"], override)
    metrics = page.model(content["slot"])
    metrics.clear_gauges()
    return Service(
        content["name"],
        verifier=verifier,
        metrics=metrics,
        timeout_ms=content["timeout_ms"],
        max_body_bytes=message["max_body_bytes"],
    )


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
