"""The parts of a frontend, made from the supervisor's message `StartFrontend`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from stoker.gateway.describing.swagger import Naming
from stoker.gateway.gateway import Gateway
from stoker.gateway.gateway_settings import GatewaySettings
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.http.requests import AllowedHosts, Cors
from stoker.gateway.listeners.acceptor import Peers
from stoker.gateway.listeners.app import create_app
from stoker.gateway.listeners.listener import Listener
from stoker.gateway.listeners.tls import TlsListener
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.regions.regions import Regions
from stoker.gateway.regions.table import RegionTable
from stoker.gateway.rows.urgency import Quotas
from stoker.gateway.scoring.observers import Observer, Observers
from stoker.gateway.traffic import Traffic
from stoker.keys.callers import KnownCallers
from stoker.metrics.history import Past
from stoker.metrics.journal import Journal

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stoker.control.frontend_messages import LaterRules, ServerRules, StartFrontend
    from stoker.metrics.memory import MetricMemory, MetricPage


def create_gateway(
    start: StartFrontend, memory: MetricMemory, metrics_fd: int, regions_fd: int | None
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
            docs=start.docs,
            management_port=server.management_port,
        ),
        past=Past(metrics_fd) if start.console else None,
        journal=Journal(metrics_fd, start.page) if start.console else None,
        bodies=BodyBudget(server.large_bodies_bytes),
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


def create_listener(
    gateway: Gateway, start: StartFrontend, page: MetricPage, peers: Peers | None, fds: list[int]
) -> Listener:
    """Make the listener for HTTP on the sockets with these descriptors, which it owns."""
    return Listener(
        create_app(gateway) if start.later is None else _create_app_with_spool(gateway, start.later),
        gateway,
        [socket.socket(fileno=fd) for fd in fds],
        page.count_accept_failure,
        start.server.connection_age_s,
        peers,
        None if start.server.tls is None else TlsListener(start.server.tls, "http", page),
    )


def _create_app_with_spool(gateway: Gateway, rules: LaterRules) -> ASGIApp:
    """Make the app of a frontend that also answers later, and give the gateway the spool of such requests."""
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


def create_peers(start: StartFrontend, memory: MetricMemory, fds: list[int]) -> Peers | None:
    """Return all frontends of the server, with descriptors taken off the list; None if there is only one."""
    count = start.server.frontends
    if count == 1:
        return None
    mailbox, *doors = (socket.socket(fileno=fds.pop(0)) for _ in range(1 + count))
    return Peers(start.page, [memory.page(number) for number in range(count)], mailbox, doors)


def _create_quotas(server: ServerRules, memory: MetricMemory, page: int) -> Quotas | None:
    """Return the quotas of callers and models with limits; None where no caller has a key and no model a limit."""
    if not server.auth and not server.token_auth and not server.limits_models:
        return None
    known = KnownCallers(server.keys_dir, memory.key_changes)
    return Quotas(memory.caller_usage(), memory.page(page).callers, known, several=server.frontends > 1)
