"""Builds the parts of a frontend from what the supervisor tells it at its start."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from stoker.gateway.describing.swagger import Naming
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.requests import AllowedHosts, Cors
from stoker.gateway.listeners.connections import Peers
from stoker.gateway.regions.regions import Regions
from stoker.gateway.regions.table import RegionTable
from stoker.gateway.rows.quotas import Quotas
from stoker.gateway.scoring.watching import watch_of
from stoker.gateway.traffic import Traffic
from stoker.keys.callers import KnownCallers
from stoker.metrics.history import Past
from stoker.metrics.journal import Journal

if TYPE_CHECKING:
    from stoker.control.frontend_messages import StartFrontend
    from stoker.control.frontend_rules import ServerRules
    from stoker.gateway.http.body_budget import BodyBudget
    from stoker.metrics.memory import MetricMemory

__all__ = ["gateway_of", "siblings_of"]


def gateway_of(
    start: StartFrontend, memory: MetricMemory, metrics_fd: int, bodies: BodyBudget, regions_fd: int | None
) -> Gateway:
    """Make the gateway, without models.

    Args:
        start: What the frontend is told.
        memory: The counters of all processes.
        metrics_fd: Their file; it may be closed afterwards.
        bodies: The memory budget of large bodies.
        regions_fd: The file with the table of callers' shared memory, which the gateway takes over; None where that
            is off.
    """
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
    gateway.watch = watch_of(start.server, metrics_fd, start.page)
    gateway.quotas = _quotas(start.server, memory, start.page)
    if start.shared_memory is not None and regions_fd is not None:
        rules = start.shared_memory
        gateway.regions = Regions(
            RegionTable(regions_fd), needs_admin=rules.needs_admin, anywhere=rules.anywhere
        )
    return gateway


def siblings_of(start: StartFrontend, memory: MetricMemory, fds: list[int]) -> Peers | None:
    """All frontends of the server; their descriptors are taken off the list. None if there is only one."""
    count = start.server.frontends
    if count == 1:
        return None
    mailbox, *doors = (socket.socket(fileno=fds.pop(0)) for _ in range(1 + count))
    return Peers(start.page, [memory.page(number) for number in range(count)], mailbox, doors)


def _quotas(server: ServerRules, memory: MetricMemory, page: int) -> Quotas | None:
    """The quotas of callers with limits; None where callers are not told apart."""
    if not server.auth and not server.token_auth:
        return None
    known = KnownCallers(server.keys_dir, memory.key_changes)
    return Quotas(memory.caller_usage(), memory.page(page).callers, known, several=server.frontends > 1)
