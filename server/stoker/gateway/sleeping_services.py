"""Services of models that are loaded on demand: they stay while their models are unloaded (decision 63)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from stoker.gateway.retiring_services import LeavingService
from stoker.gateway.scoring.load_reports import LoadReports
from stoker.gateway.scoring.on_demand import HeldBodies, NeverLoaded, OnDemand
from stoker.gateway.scoring.service import Service
from stoker.metrics.layout import UNLOADED_SLOT

if TYPE_CHECKING:
    from stoker.deployment import Deployment
    from stoker.gateway.attached_replicas import AttachedReplicas
    from stoker.gateway.gateway import Gateway
    from stoker.metrics.memory import MetricPage

_LEASE_NS: Final = 5_000_000_000
"""How long an unload waits for requests that the model was loaded for and that have not reached it."""


class SleepingServices:
    """Loads models for requests that wait, and unloads them until the next request."""

    def __init__(
        self,
        gateway: Gateway,
        page: MetricPage,
        services: Mapping[int, Service],
        replicas: AttachedReplicas,
        on_slept: Callable[[int], object],
    ) -> None:
        """Look after these services, a mapping that changes.

        Args:
            on_slept: Called with the number of a service whose model is unloaded until it is requested again.
        """
        self._gateway = gateway
        self._page = page
        self._services = services
        self._replicas = replicas
        self._on_slept = on_slept
        self._waiting_bodies = HeldBodies()
        self._leaving: list[LeavingService] = []
        """Services whose models are being unloaded, while their last requests run."""
        self._owing: dict[int, int] = {}
        """By number the models that are unloaded once the requests that they were loaded for are served, or then."""

    def add(self, service: Service, deployment: Deployment) -> None:
        """Let the requests to a service wait while its model is not loaded, and have it loaded."""
        administration = self._gateway.administration
        assert administration is not None, "every frontend has one"
        service.on_demand = OnDemand(
            deployment.name,
            # Not the method of a subclass: the requests that wait have been admitted.
            partial(Service.submit, service),
            partial(administration.wake, deployment.name, deployment.version),
            self._waiting_bodies,
            slot=deployment.slot,
            note_wait=self._page.note_wait,
        )
        service.dialect = NeverLoaded()

    def move(self, service: Service, slot: int) -> None:
        """Let a service count in another slot of the metrics."""
        assert service.on_demand is not None, "others keep theirs"
        if slot != service.on_demand.slot:
            service.on_demand.slot = slot
            self._page.move_model(service.metrics, slot)
            service.load_reports = LoadReports(self._gateway.metrics, slot)

    def sleep(self, number: int) -> None:
        """Unload a model until it is requested again; `on_slept` is called when its last request is answered."""
        service = self._services.get(number)
        if service is None or service.on_demand is None:
            self._on_slept(number)
            return
        # No load is undone before it has served the requests that waited for it; without exchanges, it serves none.
        self._owing[number] = time.monotonic_ns() + (_LEASE_NS if service.exchanges else 0)
        if service.exchanges:
            service.on_demand.when_served(partial(self._unload, number))
        else:
            self._unload(number)

    def sweep(self, now_ns: int) -> None:
        """Go on with unloads whose requests are answered, or take too long."""
        for number, until_ns in list(self._owing.items()):
            if now_ns >= until_ns:
                self._unload(number)
        for leaving in list(self._leaving):
            if leaving.service.has_left or now_ns >= leaving.until_ns:
                self._leaving.remove(leaving)
                self._fall_asleep(leaving)

    def _unload(self, number: int) -> None:
        if self._owing.pop(number, None) is None:
            return
        service = self._services.get(number)
        if service is None or service.on_demand is None:
            self._on_slept(number)
            return
        service.sleep()
        leaving = LeavingService.from_now(number, service)
        if service.has_left:
            # Another model's load waits for the memory.
            self._fall_asleep(leaving)
        else:
            self._leaving.append(leaving)

    def _fall_asleep(self, leaving: LeavingService) -> None:
        """Close the connections between a service and its unloaded model."""
        service = leaving.service
        assert service.on_demand is not None, "others are retired"
        self._replicas.forget(service.on_demand.leaving)
        if service.replicas.cache is not None:
            service.replicas.cache.clear()
        leaving.close_exchanges()
        self.move(service, UNLOADED_SLOT)
        self._on_slept(leaving.number)
