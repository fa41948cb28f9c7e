"""The frontend process: HTTP in, rows out. The supervisor starts it with `--control-fd N`.

The messages between the two are in `stoker.control.frontend_messages`. The process ends when the control channel
does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
from typing import TYPE_CHECKING, Final

import numpy as np
import uvloop

from stoker.control import frontend_messages as messages
from stoker.control.channel import ControlChannel
from stoker.gateway.administration import Administration, admin_access
from stoker.gateway.frontend_parts import create_gateway, create_listener, create_peers
from stoker.gateway.gateway import Gateway
from stoker.gateway.listeners.descriptors import raise_descriptor_limit
from stoker.gateway.ports import Ports
from stoker.gateway.service_manager import ServiceManager
from stoker.gateway.upkeep import Upkeep
from stoker.metrics.memory import MetricMemory
from stoker.system.logs import LogSettings, change_log_settings, configure_logging
from stoker.system.processes import write_stacks_on_signal
from stoker.takeover.comparison import Comparison

if TYPE_CHECKING:
    from stoker.control.frontend_messages import FromFrontend, StartFrontend, ToFrontend

logger = logging.getLogger(__name__)

_LEAVE_S: Final = 1.0
"""How long a frontend whose supervisor has gone goes on, to answer the requests that it has."""


class Frontend:
    """The state of the process; what has no value in `__init__` is there from the message `StartFrontend` on."""

    services: ServiceManager
    ports: Ports
    _gateway: Gateway
    _administration: Administration

    def __init__(self, channel: ControlChannel[FromFrontend, ToFrontend]) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self.stopping: asyncio.Task[None] | None = None
        self._started = self._channel_failed = False
        self._comparing: set[asyncio.Task[None]] = set()
        self._inbox: asyncio.Queue[tuple[ToFrontend, list[int]] | None] = asyncio.Queue()
        self._loop.add_reader(channel.fileno(), self._on_message)

    async def run(self) -> None:
        """Handle the supervisor's messages one after the other, until one says to stop or the supervisor has gone."""
        try:
            while (received := await self._inbox.get()) is not None:
                await self._handle(*received)
            if self.stopping is None:
                await self._leave()
            elif self.stopping.done():
                self.stopping.result()
        finally:
            if self._started:
                self.services.close_collectors()
                self._gateway.close()

    def _on_message(self) -> None:
        try:
            received = self._channel.receive()
        except OSError as error:
            logger.error("ending: %s", error)  # noqa: TRY400  # the supervisor starts a successor
            self._channel_failed = True
            received = None
        if received is None:
            self._loop.remove_reader(self._channel.fileno())
        self._inbox.put_nowait(received)

    async def _handle(self, message: ToFrontend, fds: list[int]) -> None:
        match message:
            case messages.StartFrontend():
                self._start(message, fds)
            case messages.AttachReplica():
                self._attach(message, fds)
            case messages.Compare():
                # In a task of its own: it takes as long as the last requests do.
                task = self._loop.create_task(self._compare(message))
                self._comparing.add(task)
                task.add_done_callback(self._comparing.discard)
            case messages.Listen():
                # Another server may have taken over since this process was started.
                if self.stopping is None and await self.ports.open():
                    self._channel.send(messages.Listening())
            case messages.Reply() | messages.Refusal():
                self._administration.accept_reply(message)
            case messages.Sampling():
                assert self._gateway.observers is not None, "sent only where requests are traced"
                self._gateway.observers.set_sampling(message)
            case LogSettings():
                change_log_settings(message)
            case messages.Drain(port_stays):
                if port_stays:
                    self.ports.leave()
                self._gateway.readiness.start_draining(port_stays=port_stays)
                if self._gateway.later is not None:
                    self._gateway.later.runner.pause()
            case messages.Stop(timeout_s):
                # In a task of its own: what it waits for may need one of the next messages.
                self.stopping = self._loop.create_task(self._stop(timeout_s))
                self.stopping.add_done_callback(lambda _: self._inbox.put_nowait(None))
            case _:
                _change_services(self.services, message)

    async def _compare(self, question: messages.Compare) -> None:
        try:
            comparison = await self.services.compared.compare(question)
        except Exception:
            logger.exception("comparing two versions failed")
            comparison = Comparison()
        self._channel.send(messages.Compared(question.ticket, comparison))

    def _start(self, start: StartFrontend, fds: list[int]) -> None:
        change_log_settings(start.log)
        metrics_fd, *socket_fds = fds
        regions_fd = None if start.shared_memory is None else socket_fds.pop(0)
        memory = MetricMemory(metrics_fd)
        page = memory.page(start.page)
        self._gateway = gateway = create_gateway(start, memory, metrics_fd, regions_fd)
        os.close(metrics_fd)
        access = admin_access(start.server.keys_dir, start.admin, memory.key_changes)
        self._administration = gateway.administration = Administration(self._channel.send, access)
        peers = create_peers(start, memory, socket_fds)
        listener = create_listener(gateway, start, page, peers, socket_fds)
        self.ports = Ports(gateway, page, listener, start.grpc, peers)
        self.services = ServiceManager(
            gateway,
            page,
            start.server,
            listener.receives_for,
            lambda number: self._channel.send(messages.Retired(number)),
            lambda *outgrown: self._channel.send(messages.Outgrown(*outgrown)),
            lambda number: self._channel.send(messages.Slept(number)),
        )
        for deployment in start.services:
            self.services.serve(deployment)
        for model in start.models:
            self.services.route(model)
        for pipeline in start.pipelines:
            self.services.join(pipeline)
        self._started = True
        Upkeep(gateway, self.services, page).start()
        # Objects of the start-up live for ever: scanning them in every garbage collection would only cost pauses.
        gc.collect()
        gc.freeze()
        self._channel.send(messages.Started())

    def _attach(self, replica: messages.AttachReplica, fds: list[int]) -> None:
        try:
            attached = self.services.attach(replica, fds)
        except OSError as error:
            logger.error("a replica cannot be attached: %s", error)  # noqa: TRY400  # the system's, not a fault here
            self._channel.send(messages.AttachFailed(replica.generation))
        else:
            if attached:
                self._channel.send(messages.Attached(replica.generation))

    async def _leave(self) -> None:
        """Close the listening sockets first if the supervisor has gone: connections accepted later would be reset."""
        # After a failure of the channel a successor listens on the same sockets, so they stay as they are.
        if self._started and not self._channel_failed:
            self._gateway.readiness.start_draining()
            await self.ports.close(_LEAVE_S)

    async def _stop(self, timeout_s: float) -> None:
        self._administration.close()
        cut_off = await self.ports.close(timeout_s)
        self.services.flush()
        self._channel.send(messages.Stopped(cut_off))


def _change_services(
    services: ServiceManager,
    message: messages.Serve
    | messages.Route
    | messages.IsolationChanged
    | messages.Retire
    | messages.Sleep
    | messages.DetachReplica,
) -> None:
    match message:
        case messages.Serve(deployment):
            services.serve(deployment)
        case messages.Route():
            services.route(message)
        case messages.IsolationChanged(number, isolation):
            services.change_isolation(number, isolation)
        case messages.Retire(number):
            services.retire(number)
        case messages.Sleep(number):
            services.sleeping.sleep(number)
        case messages.DetachReplica(generation):
            # Usually the doorbell has ended already, but a process that the device process had forked
            # can hold it open.
            services.replicas.detach(generation)


async def _serve(control_fd: int) -> None:
    await Frontend(ControlChannel.inherited(control_fd, messages.FRONTEND_END)).run()


def main() -> None:
    """Entry point of the frontend process."""
    parser = argparse.ArgumentParser(prog="stoker.gateway.frontend", description="Started by `stoker serve`.")
    parser.add_argument("--control-fd", type=int, required=True)
    args = parser.parse_args()
    # A signal to the whole process group is for the supervisor to answer, which drains first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The supervisor asks for the stacks before it kills a frontend that hangs.
    write_stacks_on_signal()
    raise_descriptor_limit()
    configure_logging("frontend")
    # Casting a request's numbers to the model's dtype must raise on overflow and not give infinities: `Exchange`
    # checks this.
    np.seterr(over="raise")
    uvloop.run(_serve(args.control_fd))
