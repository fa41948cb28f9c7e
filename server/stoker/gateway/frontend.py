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
from typing import TYPE_CHECKING, Final, assert_never

import numpy as np
import uvloop

from stoker.control.channel import ControlChannel
from stoker.control.frontend_messages import (
    FRONTEND_END,
    Attached,
    AttachFailed,
    AttachReplica,
    Compare,
    Compared,
    DetachReplica,
    Drain,
    FromFrontend,
    IsolationChanged,
    Listen,
    Listening,
    Outgrown,
    Refusal,
    Reply,
    Retire,
    Retired,
    Route,
    Sampling,
    Serve,
    Started,
    StartFrontend,
    Stop,
    Stopped,
    ToFrontend,
)
from stoker.gateway.administration import Administration, admin_access
from stoker.gateway.describing.swagger import Naming
from stoker.gateway.gateway import Gateway, Traffic
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.http.requests import AllowedHosts, Cors
from stoker.gateway.listeners.app import create_app
from stoker.gateway.listeners.connections import Peers, raise_descriptor_limit
from stoker.gateway.listeners.listener import Listener
from stoker.gateway.listeners.tls import TlsListener
from stoker.gateway.regions.regions import Regions
from stoker.gateway.regions.table import RegionTable
from stoker.gateway.rows.urgency import Quotas
from stoker.gateway.scoring.freed_memory import TrimSchedule, trim_heap
from stoker.gateway.scoring.observers import Observer, Observers
from stoker.gateway.service_manager import ServiceManager
from stoker.keys.callers import KnownCallers
from stoker.metrics.history import Past
from stoker.metrics.journal import Journal
from stoker.metrics.memory import MetricMemory, MetricPage
from stoker.system.logs import LogSettings, change_log_settings, configure_logging
from stoker.system.processes import write_stacks_on_signal
from stoker.takeover.comparison import Comparison

if TYPE_CHECKING:
    from stoker.control.frontend_messages import GrpcRules, ServerRules
    from stoker.gateway.grpc.server import GrpcServer

logger = logging.getLogger(__name__)


_SWEEP_S: Final = 0.025
_LOOK_S: Final = 1.0
"""How often memory left by large bodies, and shared memory that its owner has removed, are looked for."""
_LEAVE_S: Final = 1.0
"""How long a frontend whose supervisor has gone goes on, to answer the requests that it has."""


class _Frontend:
    def __init__(self, channel: ControlChannel[FromFrontend, ToFrontend]) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._gateway: Gateway | None = None
        self.roster: ServiceManager | None = None
        self._page: MetricPage | None = None
        self._bodies = BodyBudget()
        self._siblings: Peers | None = None
        self._listener: Listener | None = None
        self._grpc: GrpcServer | None = None
        self._grpc_rules: GrpcRules | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._port_left = False
        self._channel_failed = False
        self._comparing: set[asyncio.Task[None]] = set()
        self._inbox: asyncio.Queue[tuple[ToFrontend, list[int]] | None] = asyncio.Queue()
        self._loop.add_reader(channel.fileno(), self._on_message)

    async def run(self) -> None:
        """Handle the supervisor's messages one after the other, until one says to stop or the supervisor has gone."""
        try:
            while (received := await self._inbox.get()) is not None:
                await self._handle(*received)
            if self._stopping is None:
                await self._leave()
            elif self._stopping.done():
                self._stopping.result()
        finally:
            if self.roster is not None:
                self.roster.close_collectors()
            if self._gateway is not None:
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
        if isinstance(message, StartFrontend):
            self._start(message, fds)
            return
        gateway, roster = self._gateway, self.roster
        assert gateway is not None, "start comes first"
        assert roster is not None, "made with the gateway"
        match message:
            case Serve() | Route() | IsolationChanged() | Retire() | DetachReplica():
                _tell(roster, message)
            case AttachReplica():
                self._attach(roster, message, fds)
            case Compare():
                # In a task of its own: it takes as long as the last requests do.
                task = self._loop.create_task(self._compare(roster, message))
                self._comparing.add(task)
                task.add_done_callback(self._comparing.discard)
            case Listen():
                # Another server may have taken over since this process was started.
                if self._stopping is None and not self._port_left:
                    await self._listen(gateway)
            case Reply() | Refusal():
                assert gateway.administration is not None, "made with the gateway"
                gateway.administration.accept_reply(message)
            case Sampling():
                assert gateway.observers is not None, "sent only where requests are traced"
                gateway.observers.set_sampling(message)
            case LogSettings():
                change_log_settings(message)
            case Drain(port_stays):
                self._drain(gateway, port_stays)
            case Stop(timeout_s):
                # In a task of its own: what it waits for may need one of the next messages.
                self._stopping = self._loop.create_task(self._stop(gateway, roster, timeout_s))
                self._stopping.add_done_callback(lambda _: self._inbox.put_nowait(None))
            case _:
                assert_never(message)

    async def _compare(self, roster: ServiceManager, question: Compare) -> None:
        try:
            comparison = await roster.compare(question)
        except Exception:
            logger.exception("comparing two versions failed")
            comparison = Comparison()
        self._channel.send(Compared(question.ticket, comparison))

    def _drain(self, gateway: Gateway, port_stays: bool) -> None:
        if port_stays and self._listener is not None:
            self._port_left = True
            self._listener.leave_port()
        gateway.start_draining(port_stays=port_stays)

    def _start(self, start: StartFrontend, fds: list[int]) -> None:
        change_log_settings(start.log)
        metrics_fd, *socket_fds = fds
        regions_fd = None if start.shared_memory is None else socket_fds.pop(0)
        memory = MetricMemory(metrics_fd)
        self._bodies = BodyBudget(start.server.large_bodies_bytes)
        self._gateway = gateway = _create_gateway(start, memory, metrics_fd, self._bodies, regions_fd)
        os.close(metrics_fd)
        gateway.administration = Administration(
            self._channel.send, admin_access(start.server.keys_dir, start.admin, memory.key_changes)
        )
        self._siblings = peers = _create_peers(start, memory, socket_fds)
        sockets = [socket.socket(fileno=fd) for fd in socket_fds]
        self._page = memory.page(start.page)
        self._listener = listener = Listener(
            create_app(gateway),
            gateway,
            sockets,
            self._page.count_accept_failure,
            start.server.connection_age_s,
            peers,
            None if start.server.tls is None else TlsListener(start.server.tls, "http", self._page),
        )
        self.roster = roster = ServiceManager(
            gateway, self._page, start.server, listener.receives_for, self._tell_retired, self._tell_outgrown
        )
        for deployment in start.services:
            roster.serve(deployment)
        for model in start.models:
            roster.route(model)
        for pipeline in start.pipelines:
            roster.join(pipeline)
        self._grpc_rules = start.grpc
        self._loop.call_later(_SWEEP_S, self._sweep)
        self._loop.call_later(_LOOK_S, self._give_back, TrimSchedule(self._bodies))
        # Objects of the start-up live for ever: scanning them in every garbage collection would only cost pauses.
        gc.collect()
        gc.freeze()
        self._channel.send(Started())

    def _attach(self, roster: ServiceManager, replica: AttachReplica, fds: list[int]) -> None:
        try:
            attached = roster.attach(replica, fds)
        except OSError as error:
            logger.error("a replica cannot be attached: %s", error)  # noqa: TRY400  # the system's, not a fault here
            self._channel.send(AttachFailed(replica.generation))
        else:
            if attached:
                self._channel.send(Attached(replica.generation))

    async def _listen(self, gateway: Gateway) -> None:
        assert self._listener is not None, "listen comes after start"
        await self._listener.start()
        if self._grpc_rules is not None:
            # Imported only where it is on: it would cost every frontend its memory.
            from stoker.gateway.grpc.server import GrpcServer

            assert self._page is not None, "started with it"
            tls = self._grpc_rules.tls
            self._grpc = GrpcServer(
                gateway,
                self._grpc_rules.address,
                max_message_bytes=self._grpc_rules.max_message_bytes,
                tls=None if tls is None else TlsListener(tls, "grpc", self._page),
                connection_age_s=self._grpc_rules.connection_age_s,
                count_refused=self._page.count_accept_failure,
                peers=self._siblings,
            )
            await self._grpc.start()
        if self._siblings is not None:
            self._siblings.start()
        self._channel.send(Listening())

    def _tell_retired(self, number: int) -> None:
        self._channel.send(Retired(number))

    def _tell_outgrown(self, generation: int, answer_bytes: int) -> None:
        self._channel.send(Outgrown(generation, answer_bytes))

    def _sweep(self) -> None:
        assert self.roster is not None, "started with it"
        assert self._page is not None, "started with it"
        # Started first, and not to be ended by an error: without it requests never time out and services never
        # retire.
        self._loop.call_later(_SWEEP_S, self._sweep)
        self._page.beat()
        self._page.set_large_bodies(self._bodies.held_bytes, self._bodies.total_bytes)
        self.roster.sweep()
        if self._gateway is not None and self._gateway.quotas is not None:
            self._gateway.quotas.refresh()

    def _give_back(self, leftovers: TrimSchedule) -> None:
        self._loop.call_later(_LOOK_S, self._give_back, leftovers)
        if self._gateway is not None and self._gateway.regions is not None:
            regions = self._gateway.regions
            regions.remove_gone()
            if cold := regions.cold_devices():
                self._loop.run_in_executor(None, regions.cuda.prepare, cold)
        # Out of descriptors: it cannot look now, and tries again later.
        due = False
        with contextlib.suppress(OSError):
            due = leftovers.due()
        if due:
            # In a thread: it takes milliseconds for each gigabyte.
            self._loop.run_in_executor(None, trim_heap)

    async def _leave(self) -> None:
        """Close the listening sockets first if the supervisor has gone: connections accepted later would be reset."""
        if self._gateway is None or self._listener is None or self._channel_failed:
            # The successor listens on the same sockets, so they stay as they are.
            return
        self._gateway.start_draining()
        calls = self._loop.create_task(self._grpc.stop(_LEAVE_S)) if self._grpc is not None else None
        await self._listener.stop_listening()
        await self._listener.finish(_LEAVE_S)
        if calls is not None:
            await calls

    async def _stop(self, gateway: Gateway, roster: ServiceManager, timeout_s: float) -> None:
        assert self._listener is not None, "stop comes after start"
        assert gateway.administration is not None, "made with the gateway"
        gateway.administration.close()
        calls = self._loop.create_task(self._grpc.stop(timeout_s)) if self._grpc is not None else None
        await self._listener.stop_listening()
        cut_off = await self._listener.finish(timeout_s)
        if calls is not None:
            cut_off += await calls
        roster.flush()
        self._channel.send(Stopped(cut_off))


def _tell(roster: ServiceManager, message: Serve | Route | IsolationChanged | Retire | DetachReplica) -> None:
    match message:
        case Serve(deployment):
            roster.serve(deployment)
        case Route():
            roster.route(message)
        case IsolationChanged(number, isolation):
            roster.change_isolation(number, isolation)
        case Retire(number):
            roster.retire(number)
        case DetachReplica(generation):
            # Usually the doorbell has ended already, but a process that the device process had forked
            # can hold it open.
            roster.detach(generation)


def _create_gateway(
    start: StartFrontend, memory: MetricMemory, metrics_fd: int, bodies: BodyBudget, regions_fd: int | None
) -> Gateway:
    """Make the gateway, without models; it owns `regions_fd`, the table of callers' shared memory, if any."""
    gateway = Gateway(
        {},
        memory,
        past=Past(metrics_fd) if start.console else None,
        journal=Journal(metrics_fd, start.page) if start.console else None,
        keyless=not (start.server.auth or start.server.token_auth),
        metrics_need_key=start.metrics_need_key,
        metadata_need_key=start.metadata_need_key,
        bodies=bodies,
        cors=Cors(start.cors_origins) if start.cors_origins else None,
        naming=Naming(start.title, start.service_version, start.path_prefix),
        tells_version=start.tells_version,
        trusts_proxy=start.server.trusts_proxy,
        traffic=None if start.server.endpoint is None else Traffic(start.server.endpoint),
        hosts=None if start.server.hosts is None else AllowedHosts(start.server.hosts),
    )
    gateway.only = start.only
    gateway.observers = _create_observers(start.server, metrics_fd, start.page)
    gateway.quotas = _create_quotas(start.server, memory, start.page)
    if start.shared_memory is not None and regions_fd is not None:
        rules = start.shared_memory
        gateway.regions = Regions(
            RegionTable(regions_fd), needs_admin=rules.needs_admin, anywhere=rules.anywhere
        )
    return gateway


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
    """The quotas of callers with limits; None where no caller has a key."""
    if not server.auth and not server.token_auth:
        return None
    known = KnownCallers(server.keys_dir, memory.key_changes)
    return Quotas(memory.caller_usage(), memory.page(page).callers, known, several=server.frontends > 1)


async def _serve(control_fd: int) -> None:
    await _Frontend(ControlChannel.inherited(control_fd, FRONTEND_END)).run()


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
