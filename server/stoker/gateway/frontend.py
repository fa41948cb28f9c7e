"""The frontend process: HTTP in, rows out. The supervisor runs this module with `--control-fd N`.

The messages between the two are in `stoker.control.frontend_messages`. The process ends when the control channel
does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Final

import numpy as np
import uvloop

from stoker.control import frontend_messages as messages
from stoker.control.channel import ControlChannel
from stoker.gateway.administration import Administration, admin_access
from stoker.gateway.describing.swagger import Naming
from stoker.gateway.gateway import Gateway
from stoker.gateway.gateway_settings import GatewaySettings
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.http.requests import AllowedHosts, Cors
from stoker.gateway.listeners.app import create_app
from stoker.gateway.listeners.connections import Peers, raise_descriptor_limit
from stoker.gateway.listeners.listener import Listener
from stoker.gateway.listeners.tls import TlsListener
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.regions.regions import Regions
from stoker.gateway.regions.table import RegionTable
from stoker.gateway.rows.urgency import Quotas
from stoker.gateway.scoring.freed_memory import TrimSchedule
from stoker.gateway.scoring.observers import Observer, Observers
from stoker.gateway.service_manager import ServiceManager
from stoker.gateway.traffic import Traffic
from stoker.keys.callers import KnownCallers
from stoker.metrics.history import Past
from stoker.metrics.journal import Journal
from stoker.metrics.memory import MetricMemory, MetricPage
from stoker.system.logs import LogSettings, change_log_settings, configure_logging
from stoker.system.processes import write_stacks_on_signal
from stoker.system.resources import trim_heap
from stoker.takeover.comparison import Comparison

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stoker.control.frontend_messages import FromFrontend, ServerRules, StartFrontend, ToFrontend
    from stoker.gateway.grpc.server import GrpcServer

logger = logging.getLogger(__name__)


_SWEEP_S: Final = 0.025
_CHECK_S: Final = 1.0
"""How often memory left by large bodies, and shared memory that its owner has removed, are looked for."""
_LEAVE_S: Final = 1.0
"""How long a frontend whose supervisor has gone goes on, to answer the requests that it has."""


class Frontend:
    """The state of the process; what has no value in `__init__` is there from the message `StartFrontend` on."""

    services: ServiceManager
    _gateway: Gateway
    _administration: Administration
    _page: MetricPage
    _bodies: BodyBudget
    _peers: Peers | None
    listener: Listener
    _grpc: GrpcServer | None

    def __init__(self, channel: ControlChannel[FromFrontend, ToFrontend]) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self.stopping: asyncio.Task[None] | None = None
        self._started = self._port_left = self._channel_failed = False
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
                if self.stopping is None and not self._port_left:
                    await self._listen()
            case messages.Reply() | messages.Refusal():
                self._administration.accept_reply(message)
            case messages.Sampling():
                assert self._gateway.observers is not None, "sent only where requests are traced"
                self._gateway.observers.set_sampling(message)
            case LogSettings():
                change_log_settings(message)
            case messages.Drain(port_stays):
                self._port_left |= port_stays
                if port_stays:
                    self.listener.leave_port()
                self._gateway.start_draining(port_stays=port_stays)
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
        self._page = page = memory.page(start.page)
        self._bodies = BodyBudget(start.server.large_bodies_bytes)
        self._gateway = gateway = _create_gateway(start, memory, metrics_fd, self._bodies, regions_fd)
        os.close(metrics_fd)
        access = admin_access(start.server.keys_dir, start.admin, memory.key_changes)
        self._administration = gateway.administration = Administration(self._channel.send, access)
        self._peers = _create_peers(start, memory, socket_fds)
        app = create_app(gateway) if start.later is None else _create_app_with_spool(gateway, start.later)
        self.listener = Listener(
            app,
            gateway,
            [socket.socket(fileno=fd) for fd in socket_fds],
            page.count_accept_failure,
            start.server.connection_age_s,
            self._peers,
            None if start.server.tls is None else TlsListener(start.server.tls, "http", page),
        )
        self._grpc, self._grpc_rules = None, start.grpc
        self.services = ServiceManager(
            gateway,
            page,
            start.server,
            self.listener.receives_for,
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
        self._loop.call_later(_SWEEP_S, self._sweep)
        self._loop.call_later(_CHECK_S, self._free_memory, TrimSchedule(self._bodies))
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

    async def _listen(self) -> None:
        await self.listener.start()
        if (rules := self._grpc_rules) is not None:
            # Imported only where it is on: it would cost every frontend its memory.
            from stoker.gateway.grpc.server import GrpcServer

            self._grpc = GrpcServer(
                self._gateway,
                rules.address,
                max_message_bytes=rules.max_message_bytes,
                tls=None if rules.tls is None else TlsListener(rules.tls, "grpc", self._page),
                connection_age_s=rules.connection_age_s,
                count_refused=self._page.count_accept_failure,
                peers=self._peers,
            )
            await self._grpc.start()
        if self._peers is not None:
            self._peers.start()
        if self._gateway.later is not None:
            self._gateway.later.runner.start()
        self._channel.send(messages.Listening())

    def _sweep(self) -> None:
        # Started first, and not to be ended by an error: without it requests never time out and services never
        # retire.
        self._loop.call_later(_SWEEP_S, self._sweep)
        self._page.beat()
        self._page.set_large_bodies(self._bodies.held_bytes, self._bodies.total_bytes)
        self.services.sweep()
        if self._gateway.quotas is not None:
            self._gateway.quotas.refresh()

    def _free_memory(self, schedule: TrimSchedule) -> None:
        self._loop.call_later(_CHECK_S, self._free_memory, schedule)
        if (regions := self._gateway.regions) is not None:
            regions.remove_gone()
            if cold := regions.cold_devices():
                self._loop.run_in_executor(None, regions.cuda.prepare, cold)
        # Out of descriptors: it cannot look now, and tries again later.
        with contextlib.suppress(OSError):
            if schedule.due():
                # In a thread: it takes milliseconds for each gigabyte.
                self._loop.run_in_executor(None, trim_heap)

    async def _leave(self) -> None:
        """Close the listening sockets first if the supervisor has gone: connections accepted later would be reset."""
        # After a failure of the channel a successor listens on the same sockets, so they stay as they are.
        if self._started and not self._channel_failed:
            self._gateway.start_draining()
            await self._finish(_LEAVE_S)

    async def _stop(self, timeout_s: float) -> None:
        self._administration.close()
        cut_off = await self._finish(timeout_s)
        self.services.flush()
        self._channel.send(messages.Stopped(cut_off))

    async def _finish(self, timeout_s: float) -> int:
        """Accept nothing new and answer what has come; return how many requests were cut off after `timeout_s`."""
        calls = None if self._grpc is None else self._loop.create_task(self._grpc.stop(timeout_s))
        later = self._gateway.later
        runs = None if later is None else self._loop.create_task(later.runner.stop(timeout_s))
        await self.listener.stop_listening()
        cut_off = await self.listener.finish(timeout_s)
        if runs is not None:
            await runs
        return cut_off if calls is None else cut_off + await calls


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


def _create_gateway(
    start: StartFrontend, memory: MetricMemory, metrics_fd: int, bodies: BodyBudget, regions_fd: int | None
) -> Gateway:
    """Make the gateway, without models; it owns `regions_fd`, the table of callers' shared memory, if any."""
    server = start.server
    traffic = None if server.endpoint is None else Traffic(server.endpoint)
    gateway = Gateway(
        ModelDirectory({}, traffic, hides_names=start.metadata_need_key),
        memory,
        GatewaySettings(
            keyless=not (server.auth or server.token_auth),
            metrics_need_key=start.metrics_need_key,
            metadata_need_key=start.metadata_need_key,
            cors=Cors(start.cors_origins) if start.cors_origins else None,
            naming=Naming(start.title, start.service_version, start.path_prefix),
            tells_version=start.tells_version,
            trusts_proxy=server.trusts_proxy,
            hosts=None if server.hosts is None else AllowedHosts(server.hosts),
            management_port=server.management_port,
        ),
        past=Past(metrics_fd) if start.console else None,
        journal=Journal(metrics_fd, start.page) if start.console else None,
        bodies=bodies,
    )
    gateway.directory.only = start.only
    gateway.observers = _create_observers(start.server, metrics_fd, start.page)
    gateway.quotas = _create_quotas(start.server, memory, start.page)
    if start.shared_memory is not None and regions_fd is not None:
        rules = start.shared_memory
        gateway.regions = Regions(
            RegionTable(regions_fd), needs_admin=rules.needs_admin, anywhere=rules.anywhere
        )
    return gateway


def _create_app_with_spool(gateway: Gateway, rules: messages.LaterRules) -> ASGIApp:
    """Make the app of a frontend that also answers later, and give the gateway what keeps such requests."""
    # Imported only where it is on.
    from stoker.gateway.later.keeping import Later
    from stoker.gateway.later.runner import SpoolRunner
    from stoker.gateway.later.spool import Spool
    from stoker.gateway.protocols.later import later_routes

    app = create_app(gateway, later_routes(gateway))
    runner = SpoolRunner(Spool(rules), app)
    gateway.later = Later(
        runner, keeps_address=gateway.regions is None, prefix=gateway.settings.naming.path_prefix
    )
    return app


def _create_observers(rules: ServerRules, metrics_fd: int, page: int) -> Observers | None:
    """Return the observers of a frontend; None if there are none."""
    # Not even imported where it is off: that would cost every frontend its memory.
    observers: list[Observer] = []
    if rules.access_log_sample:
        from stoker.gateway.scoring.access_log import AccessLog

        access_log = AccessLog(rules.access_log_sample)
        access_log.start()
        observers.append(access_log)
    if rules.sampling is not None:
        from stoker.gateway.scoring.tracing import Tracing
        from stoker.metrics.journal import TraceWriter

        observers.append(Tracing(TraceWriter(metrics_fd, page), rules.sampling))
    return Observers(observers) if observers else None


def _create_peers(start: StartFrontend, memory: MetricMemory, fds: list[int]) -> Peers | None:
    """All frontends of the server; their descriptors are taken off the list. None if there is only one."""
    count = start.server.frontends
    if count == 1:
        return None
    mailbox, *doors = (socket.socket(fileno=fds.pop(0)) for _ in range(1 + count))
    return Peers(start.page, [memory.page(number) for number in range(count)], mailbox, doors)


def _create_quotas(server: ServerRules, memory: MetricMemory, page: int) -> Quotas | None:
    """The quotas of callers and models with limits; None where no caller has a key and no model a limit."""
    if not server.auth and not server.token_auth and not server.limits_models:
        return None
    known = KnownCallers(server.keys_dir, memory.key_changes)
    return Quotas(memory.caller_usage(), memory.page(page).callers, known, several=server.frontends > 1)


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


if __name__ == "__main__":
    main()
