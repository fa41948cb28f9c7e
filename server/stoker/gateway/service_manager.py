"""The services of a frontend by the numbers that the supervisor gives them: created, attached, routed, retired."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from stoker.arena import Arena
from stoker.gateway.assembly import assemble, assemble_pipeline
from stoker.gateway.pipelines.service import PipelineLoadReports
from stoker.gateway.rows.cache import CachedExchange
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.rows.sequences import SequenceExchange, SequenceReplicas
from stoker.gateway.rows.ticket import Exchange
from stoker.gateway.scoring.larger_rows import LargerRows
from stoker.gateway.scoring.load_reports import LoadReports
from stoker.gateway.scoring.on_demand import HeldBodies, NeverLoaded, OnDemand
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gateway.takeover import Samples, Shadow, compare_versions, sample_of_file
from stoker.metrics.layout import UNLOADED_SLOT
from stoker.settings.traffic import PARITY_TOLERANCE
from stoker.takeover.comparison import Comparison
from stoker.takeover.traffic_split import Split

if TYPE_CHECKING:
    from stoker.control.frontend_messages import AttachReplica, Compare, PipelineRules, Route, ServerRules
    from stoker.deployment import Deployment
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.pipelines.service import PipelineService
    from stoker.metrics.memory import MetricPage
    from stoker.row_isolation import RowIsolation

logger = logging.getLogger(__name__)

_FLUSH_S: Final = 4.0
_PATIENCE_NS: Final = 30_000_000_000
_LEASE_NS: Final = 5_000_000_000
"""How long a model that is to be unloaded waits for requests that it was loaded for, and that have not come to it."""


@dataclass(slots=True)
class _Retiring:
    """A service that gets no new requests; `until_ns` is when its last requests are failed."""

    number: int
    service: Service
    until_ns: int


class ServiceManager:
    """The services of a frontend, as the supervisor creates, attaches, routes and retires them."""

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
        """Create it without services.

        Args:
            arriving: Whether the body of a request for a service is being received, including bodies that the
                service does not count itself.
            on_retired: Called with the number of a service that has been retired completely.
            on_outgrown: Called with the generation of a replica whose answers do not fit its rows, and the bytes
                that they should have; to be answered with an `AttachReplica` that has such rows.
            on_slept: Called with the number of a service whose model is unloaded until it is asked for again.
        """
        self._gateway = gateway
        self._page = page
        self._server = server
        self._arriving = arriving
        self._on_retired = on_retired
        self._on_outgrown = on_outgrown
        self._on_slept = on_slept
        self._held = HeldBodies()
        self._leaving: list[_Retiring] = []
        """Services whose models are unloaded until they are asked for again, while their last requests run."""
        self._owing: dict[int, int] = {}
        """By number the models that are to be unloaded once those who waited for them are served, or then."""
        self.services: dict[int, Service] = {}
        self._pipelines: list[PipelineService] = []
        self._retiring: list[_Retiring] = []
        self._failing: WeakSet[Service] = WeakSet()
        self._samples: dict[int, Samples] = {}
        """Sampled requests by the number of their service, kept for comparing versions."""
        self._deployments: dict[int, Deployment] = {}
        self._shadows: dict[str, dict[str, Shadow]] = {}
        """By model the shadow version, which gets copies of the requests to the others."""
        self._replicas: WeakKeyDictionary[Service, SequenceReplicas] = WeakKeyDictionary()
        """Exchanges of models with state."""
        self.exchanges: dict[int, ArenaExchange] = {}
        """By generation, which each load of a replica has its own of."""

    def serve(self, deployment: Deployment) -> None:
        """Add a service; no request reaches it before `route` names it."""
        gateway = self._gateway
        service = assemble(
            deployment, self._page, self._server, journal=gateway.journal, quotas=gateway.quotas
        )
        if gateway.observers is not None:
            gateway.observers.observe(service)
        service.draining, service.closes = self._gateway.draining, self._gateway.closes
        service.replicas.larger_rows = LargerRows(self.request_larger)
        service.load_reports = LoadReports(self._gateway.metrics, deployment.slot)
        if deployment.on_demand:
            self._load_on_demand(service, deployment)
        self.services[deployment.number] = service
        self._deployments[deployment.number] = deployment
        if deployment.parity.mode != "off":
            self._samples[deployment.number] = Samples()

    def _load_on_demand(self, service: Service, deployment: Deployment) -> None:
        """Let the requests to a service wait while its model is not loaded, and have it loaded."""
        administration = self._gateway.administration
        assert administration is not None, "every frontend has one"
        service.on_demand = OnDemand(
            deployment.name,
            # Not the method of a subclass: what waits has been admitted.
            partial(Service.submit, service),
            partial(administration.wake, deployment.name, deployment.version),
            self._held,
            slot=deployment.slot,
            note_wait=self._page.note_wait,
        )
        service.dialect = NeverLoaded()

    def join(self, rules: PipelineRules) -> None:
        """Add a pipeline of services; it is ready while the models of all its steps are."""
        gateway = self._gateway
        service = assemble_pipeline(
            rules, gateway.models, self._page, self._server, journal=gateway.journal, quotas=gateway.quotas
        )
        service.draining, service.closes = gateway.draining, gateway.closes
        service.load_reports = PipelineLoadReports(gateway.metrics, rules.slot, lambda: service.models)
        self._pipelines.append(service)
        # First in the list: a pipeline must know its models' state before others read what is ready.
        gateway.on_readiness.append(partial(self._refresh_pipeline, service, rules.slot))
        self._refresh_pipeline(service, rules.slot)

    def _refresh_pipeline(self, service: PipelineService, slot: int) -> None:
        """Join a pipeline again after the models of its steps may have changed."""
        changed = service.refresh()
        if self._gateway.observers is not None:
            self._gateway.observers.observe(service)
        if changed or service.name not in self._gateway.models:
            self._gateway.route(service.name, service.served_model(slot))

    async def compare(self, question: Compare) -> Comparison:
        """Run the sampled requests of a version, or the one in a file, through it and another version."""
        old, new = self.services.get(question.old), self.services.get(question.new)
        if old is None or new is None:
            return Comparison()
        deployment = self._deployments[question.new]
        samples = self._samples.get(question.old) or Samples(0)
        if question.sample is not None:
            contents = await sample_of_file(old, question.sample, deployment.image)
        else:
            contents = samples.contents
        with samples.pause(time.monotonic_ns):
            return await compare_versions(old, new, contents, deployment.parity.tolerance)

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
                    self._move(service, version.status.slot)
        default = None if route.default is None else str(route.default)
        labels = {label: str(version) for label, version in route.labels.items()}
        known = self._gateway.models.get(route.name)
        split = _split(route, None if known is None else known.split)
        self._gateway.route(route.name, ServedModel(versions, default, labels, split))
        before = self._shadows.pop(route.name, {})
        if route.shadows:
            self._shadows[route.name] = {
                number: before[number]
                if number in before and before[number].percent == percent
                else Shadow(percent)
                for number, percent in route.shadows.items()
            }

    def _move(self, service: Service, slot: int) -> None:
        """Let a service count in another slot of the metrics."""
        assert service.on_demand is not None, "others keep theirs"
        if slot != service.on_demand.slot:
            service.on_demand.slot = slot
            self._page.move_model(service.metrics, slot)
            service.load_reports = LoadReports(self._gateway.metrics, slot)

    def sleep(self, number: int) -> None:
        """Unload a model until it is asked for again; `on_slept` is called when its last request is answered."""
        service = self.services.get(number)
        if service is None or service.on_demand is None:
            self._on_slept(number)
            return
        # No load is undone before it has served those who waited for it; without exchanges, it serves nobody.
        self._owing[number] = time.monotonic_ns() + (_LEASE_NS if service.exchanges else 0)
        if service.exchanges:
            service.on_demand.when_served(partial(self._let_sleep, number))
        else:
            self._let_sleep(number)

    def _let_sleep(self, number: int) -> None:
        if self._owing.pop(number, None) is None:
            return
        service = self.services.get(number)
        if service is None or service.on_demand is None:
            self._on_slept(number)
            return
        service.sleep()
        leaving = _Retiring(number, service, time.monotonic_ns() + service.limits.timeout_ns + _PATIENCE_NS)
        if service.has_left:
            # A load waits for its memory.
            self._fall_asleep(leaving)
        else:
            self._leaving.append(leaving)

    def attach(self, replica: AttachReplica, fds: Sequence[int]) -> bool:
        """Attach a replica, or again with larger rows; False if its service was retired. OSError changes nothing."""
        if not fds:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        arena_fd, doorbell_fd = fds
        number, generation = replica.number, replica.generation
        service = self.services.get(number)
        if service is None and generation in self.exchanges:
            # A retiring service may still need larger rows to answer its last requests.
            service = next((one.service for one in self._retiring if one.number == number), None)
        if service is None:
            os.close(arena_fd)
            os.close(doorbell_fd)
            return False
        exchange = self._open_exchange(service, replica, arena_fd, doorbell_fd)
        outgrown = self.exchanges.get(generation)
        leaving = [] if service.on_demand is None else service.on_demand.leaving
        if outgrown is not None and outgrown in leaving:
            # The model is being unloaded, and its last requests need larger rows.
            leaving[leaving.index(outgrown)] = exchange
        else:
            direct = service.dialect.direct
            service.attach(exchange)
            if direct and not service.dialect.direct:
                # Before the model was known to read heads, the fast path took requests without them.
                self._gateway.clear_heads()
        if self._gateway.observers is not None:
            self._gateway.observers.observe(service)
        if outgrown is not None:
            service.replace(outgrown, exchange)
        self.exchanges[generation] = exchange
        self._gateway.notify_readiness()
        return True

    def detach(self, generation: int) -> None:
        """Record that a replica has ended."""
        exchange = self.exchanges.get(generation)
        if exchange is not None:
            exchange.disconnect()

    def change_isolation(self, number: int, isolation: RowIsolation) -> None:
        """Replace the finding on whether a service's rows may share batches."""
        service = self.services.get(number)
        if service is not None and service.signature is not None:
            service.signature = dataclasses.replace(service.signature, isolation=isolation)

    def retire(self, number: int) -> None:
        """Retire a service that no route names any more; `on_retired` is called when its last request is answered."""
        service = self.services.pop(number, None)
        self._deployments.pop(number, None)
        self._samples.pop(number, None)
        if service is None:
            self._on_retired(number)
            return
        until_ns = time.monotonic_ns() + service.limits.timeout_ns + _PATIENCE_NS
        self._retiring.append(_Retiring(number, service, until_ns))

    def sweep(self) -> None:
        """Fail late requests, flush counters, and remove idle services that retire; call this every few dozen ms."""
        now_ns = time.monotonic_ns()
        for service in self._all():
            if service.is_dormant:
                continue
            try:
                service.metrics.flush()
                service.sweep(now_ns)
                service.metrics.set_in_flight_rows(service.leased_rows)
            except Exception:
                # The other services must be swept all the same. The error would repeat many times a second, so it
                # is logged once.
                if service not in self._failing:
                    logger.exception("looking after %s version %s failed", service.name, service.version)
                self._failing.add(service)
        for number, samples in self._samples.items():
            samples.collect(self.services[number].exchanges, now_ns)
        for name, shadows in self._shadows.items():
            self._copy(name, shadows)
        for number, until_ns in list(self._owing.items()):
            if now_ns >= until_ns:
                self._let_sleep(number)
        for leaving in list(self._leaving):
            if leaving.service.has_left or now_ns >= leaving.until_ns:
                self._leaving.remove(leaving)
                self._fall_asleep(leaving)
        for retiring in list(self._retiring):
            service = retiring.service
            if (service.idle and not self._arriving(service)) or now_ns >= retiring.until_ns:
                self._retiring.remove(retiring)
                self._dismiss(retiring)

    def _fall_asleep(self, leaving: _Retiring) -> None:
        """Close what connects a service with its unloaded model."""
        service = leaving.service
        assert service.on_demand is not None, "others are retired"
        for generation, exchange in list(self.exchanges.items()):
            if exchange in service.on_demand.leaving:
                del self.exchanges[generation]
        service.leave_exchanges()
        if service.replicas.cache is not None:
            service.replicas.cache.clear()
        service.metrics.flush()
        service.metrics.set_in_flight_rows(0)
        self._move(service, UNLOADED_SLOT)
        self._on_slept(leaving.number)

    def _copy(self, name: str, shadows: Mapping[str, Shadow]) -> None:
        """Run copies of requests on the shadow versions."""
        model = self._gateway.models[name]
        mains = [service for service in model.services if service.version not in shadows]
        tolerances = {
            one.version: one.parity.tolerance for one in self._deployments.values() if one.name == name
        }
        for number, shadow in shadows.items():
            service = model.versions[number].service
            # A copy of a request cannot continue a sequence.
            if service is not None and service not in self._replicas:
                shadow.copy_requests(mains, service, tolerances.get(int(number), PARITY_TOLERANCE))

    def flush(self) -> None:
        """Write the times that were measured into the shared counters."""
        for service in self._all():
            service.metrics.flush()

    def close_collectors(self) -> None:
        """Write what was collected; may block for seconds."""
        for service in self._all():
            if service.collector is not None:
                service.collector.close(_FLUSH_S)

    def _open_exchange(
        self, service: Service, replica: AttachReplica, arena_fd: int, doorbell_fd: int
    ) -> ArenaExchange:
        """Map the arena and watch the doorbell; takes ownership of both descriptors, also if this fails."""

        def on_lost(exchange: Exchange) -> None:
            service.detach(exchange)
            if service.replicas.cache is not None:
                service.replicas.cache.clear()
            self._gateway.notify_readiness()
            if self.exchanges.get(replica.generation) is exchange:
                del self.exchanges[replica.generation]
            logger.warning(
                "a device process of %s has ended; its requests run again elsewhere or get errors",
                service.name,
            )

        doorbell = socket.socket(fileno=doorbell_fd)
        try:
            # The mapping keeps a descriptor of its own.
            arena = Arena(arena_fd, replica.signature, replica.capacity_rows)
            loop = asyncio.get_running_loop()
            kind: Callable[..., ArenaExchange] = ArenaExchange
            if replica.signature.sequences:
                replicas = self._replicas.setdefault(service, SequenceReplicas(replica.places))
                kind = partial(SequenceExchange, replicas=replicas, place=replica.place)
            elif service.replicas.cache is not None:
                kind = partial(CachedExchange, cache=service.replicas.cache, metrics=service.metrics)
            return kind(
                arena,
                doorbell,
                clock_ns=time.monotonic_ns,
                on_lost=on_lost,
                loop=loop,
                by_target=service.limits.by_target,
            )
        except OSError:
            doorbell.close()
            raise
        finally:
            os.close(arena_fd)

    def _all(self) -> Iterator[Service]:
        yield from self.services.values()
        yield from self._pipelines
        yield from (retiring.service for retiring in self._retiring)

    def request_larger(self, exchange: Exchange, answer_bytes: int) -> None:
        """Ask for a replica with larger rows, in the place of one whose answers do not fit."""
        generation = next(number for number, known in self.exchanges.items() if known is exchange)
        self._on_outgrown(generation, answer_bytes)

    def _dismiss(self, retiring: _Retiring) -> None:
        service = retiring.service
        for generation, exchange in list(self.exchanges.items()):
            if exchange in service.exchanges:
                del self.exchanges[generation]
        service.leave_exchanges()
        service.metrics.flush()
        service.metrics.set_in_flight_rows(0)
        if service.collector is None:
            self._on_retired(retiring.number)
            return
        # It still writes to the disk, and counts in a slot of the metrics that another service may get.
        closed = asyncio.get_running_loop().run_in_executor(None, service.collector.close, _FLUSH_S)
        closed.add_done_callback(lambda _: self._on_retired(retiring.number))


def _split(route: Route, known: Split | None) -> Split | None:
    """The weights by which a model's requests are divided; the present object is kept if they are the same."""
    if not route.shares or list(route.shares) == [str(route.default)]:
        return None
    header = b"authorization" if route.by == "key" else route.by.encode("latin-1")
    split = Split(route.shares, header)
    return known if known is not None and split.equals(known) else split
