"""What a frontend knows: its services, and whether it is ready or draining."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from stoker.errors import NotReady, UnknownService
from stoker.gateway.service import Service
from stoker.metrics import MetricMemory

__all__ = ["SERVICE_PATH", "Gateway", "PlainHead"]

SERVICE_PATH = "/api/v1/service/"
_MAX_HEADS = 4096


class PlainHead(NamedTuple):
    """What a head (request line and headers) of a plain scoring request says."""

    service: Service
    authorization: bytes
    body_bytes: int


@dataclass
class Gateway:
    """The services of one frontend.

    Attributes:
        services: By name, in the order of their metric slots.
        metrics: The counters of all processes.
        metrics_need_key: Whether `/metrics` needs a key of any service.
        draining: Set once, when the server shuts down: answers then close their connections.
        large_body_budget_bytes: What bodies above 1 MiB that are being received may add up to.
    """

    services: Mapping[str, Service]
    metrics: MetricMemory
    metrics_need_key: bool = False
    draining: bool = False
    large_body_budget_bytes: int = 1 << 30
    default_lines: bytes = b""
    """Header lines of every answer, with the date; what the direct door writes and uvicorn adds."""
    heads: dict[bytes, PlainHead] = field(default_factory=dict)
    """Heads of plain scoring requests that have been parsed before, byte for byte; see `remember`."""
    routes: dict[bytes, Service] = field(init=False)
    """The exact request targets of scoring, for the direct door."""

    def __post_init__(self) -> None:
        self.routes = {f"{SERVICE_PATH}{quote(name)}/score".encode(): s for name, s in self.services.items()}
        if len(self.services) == 1:
            self.routes[b"/score"] = next(iter(self.services.values()))

    def service(self, name: str | None) -> Service:
        """Find a service by name; None means the only one.

        Raises:
            UnknownService: No model is served under this name, or several are and none was named.
        """
        names = ", ".join(self.services)
        if name is None:
            if len(self.services) == 1:
                return next(iter(self.services.values()))
            raise UnknownService(
                f"Several services are here, use {SERVICE_PATH}<name>/score with one of: {names}."
            )
        if name not in self.services:
            raise UnknownService(f"There is no service {name!r}; served here: {names}.")
        return self.services[name]

    def check_ready(self) -> None:
        """Raise NotReady, with the reason, unless every service can score."""
        if self.draining:
            raise NotReady("The server is shutting down.")
        waiting = [service.name for service in self.services.values() if not service.ready]
        if waiting:
            raise NotReady(f"Not ready yet: {', '.join(waiting)}.", retry_after_s=1)

    def remember(self, head: bytes, meaning: PlainHead) -> None:
        """Keep what a head says: callers repeat theirs with every request."""
        if len(self.heads) >= _MAX_HEADS:
            self.heads.clear()
        self.heads[head] = meaning

    def start_draining(self) -> None:
        """Turn readiness off and let every answer close its connection."""
        self.draining = True
        for service in self.services.values():
            service.draining = True

    def reserve_body(self, size_bytes: int) -> bool:
        """Take a large body's memory from the budget before it is received; False if too many are under way."""
        if size_bytes > self.large_body_budget_bytes:
            return False
        self.large_body_budget_bytes -= size_bytes
        return True

    def release_body(self, size_bytes: int) -> None:
        """Give a large body's memory back to the budget."""
        self.large_body_budget_bytes += size_bytes
