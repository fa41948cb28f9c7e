"""Services that get no new requests and leave a frontend after their last answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from stoker.gateway.attached_replicas import AttachedReplicas
    from stoker.gateway.scoring.service import Service

FLUSH_S: Final = 4.0
"""How long a collector may take to write what it has."""
_PATIENCE_NS: Final = 30_000_000_000


class LeavingService(Struct):
    """A service that gets no new requests; `until_ns` is when its last requests are failed."""

    number: int
    service: Service
    until_ns: int

    @classmethod
    def from_now(cls, number: int, service: Service) -> LeavingService:
        """A service whose last request has just begun."""
        return cls(number, service, time.monotonic_ns() + service.limits.timeout_ns + _PATIENCE_NS)

    def close_exchanges(self) -> None:
        """Leave the device processes, and count no rows in flight any more."""
        self.service.leave_exchanges()
        self.service.metrics.flush()
        self.service.metrics.set_in_flight_rows(0)


class RetiringServices:
    """Services that no route names any more."""

    def __init__(
        self,
        replicas: AttachedReplicas,
        arriving: Callable[[Service], bool],
        on_retired: Callable[[int], object],
    ) -> None:
        """Begin without services.

        Args:
            arriving: Whether the body of a request for a service is being received, including bodies that the
                service does not count itself.
            on_retired: Called with the number of a service that has been retired completely.
        """
        self._replicas = replicas
        self._arriving = arriving
        self._on_retired = on_retired
        self._retiring: list[LeavingService] = []

    def __iter__(self) -> Iterator[Service]:
        return (one.service for one in self._retiring)

    def find(self, number: int) -> Service | None:
        """Return a service that retires; None if there is none with this number."""
        return next((one.service for one in self._retiring if one.number == number), None)

    def add(self, number: int, service: Service | None) -> None:
        """Retire a service, if there is one; `on_retired` is called when its last request is answered."""
        if service is None:
            self._on_retired(number)
        else:
            self._retiring.append(LeavingService.from_now(number, service))

    def sweep(self, now_ns: int) -> None:
        """Remove the services that are idle, or whose last requests take too long."""
        for retiring in list(self._retiring):
            service = retiring.service
            if (service.idle and not self._arriving(service)) or now_ns >= retiring.until_ns:
                self._retiring.remove(retiring)
                self._dismiss(retiring)

    def _dismiss(self, retiring: LeavingService) -> None:
        service = retiring.service
        self._replicas.forget(service.exchanges)
        retiring.close_exchanges()
        if service.collector is None:
            self._on_retired(retiring.number)
            return
        # It still writes to the disk, and counts in a slot of the metrics that another service may get.
        closed = asyncio.get_running_loop().run_in_executor(None, service.collector.close, FLUSH_S)
        closed.add_done_callback(lambda _: self._on_retired(retiring.number))
