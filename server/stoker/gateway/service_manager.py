"""The services of a frontend by the numbers that the supervisor gives them: created, attached, routed, retired."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from stoker.gateway.assembly import assemble, assemble_pipeline
from stoker.gateway.attached_replicas import AttachedReplicas
from stoker.gateway.pipelines.service import PipelineLoadReports
from stoker.gateway.retiring_services import FLUSH_S, RetiringServices
from stoker.gateway.scoring.larger_rows import LargerRows
from stoker.gateway.scoring.load_reports import LoadReports
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gateway.sleeping_services import SleepingServices
from stoker.gateway.takeover.compared_versions import ComparedVersions
from stoker.metrics.layout import UNLOADED_SLOT
from stoker.takeover.traffic_split import Split

if TYPE_CHECKING:
    from stoker.control.frontend_messages import AttachReplica, PipelineRules, Route, ServerRules
    from stoker.deployment import Deployment
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.pipelines.service import PipelineService
    from stoker.metrics.memory import MetricPage
    from stoker.row_isolation import RowIsolation

logger = logging.getLogger(__name__)


class ServiceManager:
    """The services of a frontend, as the supervisor creates, attaches, routes and retires them.

    Attributes:
        services: By number, without those that retire.
        replicas: The device processes that are attached to them.
        compared: Compares versions.
        sleeping: Unloads models until the next request.
    """

    def __init__(
        self,
        gateway: Gateway,
        page: MetricPage,
        server: ServerRules,
        arriving: Callable[[Service], bool],
        on_retired: Callable[[int], object],
        on_outgrown: Callable[[int, int], object],
        on_slept: Callable[[int], object],
    ) -> None:
        """Create it without services; the functions are those of `RetiringServices` and the other parts."""
        self._gateway = gateway
        self._page = page
        self._server = server
        self.services: dict[int, Service] = {}
        self._pipelines: list[PipelineService] = []
        self.replicas = AttachedReplicas(gateway, on_outgrown)
        self.compared = ComparedVersions(self.services)
        self.sleeping = SleepingServices(gateway, page, self.services, self.replicas, on_slept)
        self._retiring = RetiringServices(self.replicas, arriving, on_retired)
        self._failing: WeakSet[Service] = WeakSet()

    def serve(self, deployment: Deployment) -> None:
        """Add a service; no request reaches it before `route` names it."""
        gateway = self._gateway
        service = assemble(
            deployment, self._page, self._server, journal=gateway.journal, quotas=gateway.quotas
        )
        if gateway.observers is not None:
            gateway.observers.observe(service)
        service.readiness = gateway.readiness
        service.replicas.larger_rows = LargerRows(self.replicas.request_larger)
        service.load_reports = LoadReports(gateway.metrics, deployment.slot)
        if deployment.on_demand:
            self.sleeping.add(service, deployment)
        self.services[deployment.number] = service
        self.compared.add(deployment)

    def join(self, rules: PipelineRules) -> None:
        """Add a pipeline of services; it is ready while the models of all its steps are."""
        gateway = self._gateway
        service = assemble_pipeline(
            rules,
            gateway.directory.models,
            self._page,
            self._server,
            journal=gateway.journal,
            quotas=gateway.quotas,
        )
        service.readiness = gateway.readiness
        service.load_reports = PipelineLoadReports(gateway.metrics, rules.slot, lambda: service.models)
        self._pipelines.append(service)
        # Subscribed before others: a pipeline must know its models' state before others read what is ready.
        gateway.readiness.subscribe(partial(self._refresh_pipeline, service, rules.slot))
        self._refresh_pipeline(service, rules.slot)

    def _refresh_pipeline(self, service: PipelineService, slot: int) -> None:
        """Join a pipeline again after the models of its steps may have changed."""
        changed = service.refresh()
        if self._gateway.observers is not None:
            self._gateway.observers.observe(service)
        if changed or service.name not in self._gateway.directory.models:
            self._gateway.route(service.name, service.served_model(slot))

    def route(self, route: Route) -> None:
        """Replace which versions a model's names mean."""
        versions = {
            str(version.version): ServedVersion(
                version.status, None if version.number is None else self.services.get(version.number)
            )
            for version in route.versions
        }
        for version in route.versions:
            service = None if version.number is None else self.services.get(version.number)
            if service is not None and service.on_demand is not None:
                service.on_demand.load_s = version.load_s
                if version.status.slot != UNLOADED_SLOT:
                    self.sleeping.move(service, version.status.slot)
        default = None if route.default is None else str(route.default)
        labels = {label: str(version) for label, version in route.labels.items()}
        known = self._gateway.directory.models.get(route.name)
        split = _split(route, None if known is None else known.split)
        self._gateway.route(route.name, ServedModel(versions, default, labels, split))
        self.compared.route_shadows(route.name, route.shadows)

    def attach(self, replica: AttachReplica, fds: Sequence[int]) -> bool:
        """Attach a replica, or again with larger rows; False if its service was retired. OSError changes nothing."""
        if not fds:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        arena_fd, doorbell_fd = fds
        service = self.services.get(replica.number)
        if service is None and replica.generation in self.replicas.exchanges:
            # A retiring service may still need larger rows to answer its last requests.
            service = self._retiring.find(replica.number)
        if service is None:
            os.close(arena_fd)
            os.close(doorbell_fd)
            return False
        self.replicas.attach(service, replica, arena_fd, doorbell_fd)
        return True

    def change_isolation(self, number: int, isolation: RowIsolation) -> None:
        """Replace the finding on whether a service's rows may share batches."""
        service = self.services.get(number)
        if service is not None and service.signature is not None:
            service.signature = dataclasses.replace(service.signature, isolation=isolation)

    def retire(self, number: int) -> None:
        """Retire a service that no route names any more; it leaves when its last request is answered."""
        self.compared.remove(number)
        self._retiring.add(number, self.services.pop(number, None))

    def sweep(self) -> None:
        """Fail late requests, flush counters, and remove idle services that retire; call this every few dozen ms."""
        now_ns = time.monotonic_ns()
        for service in self._all():
            if not service.is_dormant:
                self._sweep_service(service, now_ns)
        self.compared.sweep(now_ns, self._gateway.directory.models, self.replicas.has_state)
        self.sleeping.sweep(now_ns)
        self._retiring.sweep(now_ns)

    def _sweep_service(self, service: Service, now_ns: int) -> None:
        try:
            service.metrics.flush()
            service.sweep(now_ns)
            service.metrics.set_in_flight_rows(service.leased_rows)
        except Exception:
            # The other services must be swept all the same. The error would repeat many times a second, so it is
            # logged once.
            if service not in self._failing:
                logger.exception("looking after %s version %s failed", service.name, service.version)
            self._failing.add(service)

    def flush(self) -> None:
        """Write the times that were measured into the shared counters."""
        for service in self._all():
            service.metrics.flush()

    def close_collectors(self) -> None:
        """Write the collected requests; may block for seconds."""
        for service in self._all():
            if service.collector is not None:
                service.collector.close(FLUSH_S)

    def _all(self) -> Iterator[Service]:
        yield from self.services.values()
        yield from self._pipelines
        yield from self._retiring


def _split(route: Route, known: Split | None) -> Split | None:
    """The weights by which a model's requests are divided; the present object is kept if they are the same."""
    if not route.shares or list(route.shares) == [str(route.default)]:
        return None
    header = b"authorization" if route.by == "key" else route.by.encode("latin-1")
    split = Split(route.shares, header)
    return known if known is not None and split.equals(known) else split
