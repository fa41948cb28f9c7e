"""The state of one frontend: its services, and whether it is ready or draining."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from stoker.errors import NotReady, UnknownService, cut, quoted
from stoker.gateway.describing.swagger import Naming
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.http.request_ids import ids_of_refused
from stoker.gateway.http.requests import AllowedHosts, Cors
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.streams import ScriptStreams
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.metrics.history import Past
from stoker.metrics.journal import Journal
from stoker.metrics.load import LoadMeter
from stoker.metrics.memory import MetricMemory
from stoker.takeover.traffic_split import RoundRobin

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.gateway.administration import Administration
    from stoker.gateway.later.keeping import Later
    from stoker.gateway.regions.regions import Regions
    from stoker.gateway.rows.urgency import Quotas
    from stoker.gateway.scoring.call import Dialect
    from stoker.gateway.scoring.call_options import CallOptions
    from stoker.gateway.scoring.observers import Observers
    from stoker.settings.names import State
    from stoker.settings.traffic import Endpoint
    from stoker.takeover.traffic_split import Split

DEPLOYMENT_HEADER: Final = b"azureml-model-deployment"
"""Header that names a deployment, in a request and in the answer; as on Azure."""
_ALL: Final = 100


class Traffic:
    """Divides requests among an endpoint's deployments: each gets its share of any hundred requests, evenly spread.

    Each frontend divides its requests on its own.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._turns = RoundRobin(endpoint.shares)
        self._mirrors = dict.fromkeys(endpoint.mirrors, 0)

    @property
    def undivided(self) -> bool:
        """Whether there is only one deployment."""
        return len(self.endpoint.shares) == 1 and any(self.endpoint.shares.values())

    def next(self) -> str | None:
        """Return the deployment for the next request; None if none has a share."""
        return self._turns.next()

    def next_mirror(self) -> str | None:
        """Return the deployment that gets a copy of the next request; None for most requests."""
        for name, percent in self.endpoint.mirrors.items():
            self._mirrors[name] += percent
            if self._mirrors[name] >= _ALL:
                self._mirrors[name] -= _ALL
                return name
        return None


SERVICE_PATH = "/api/v1/service/"
_MAX_HEADS = 4096


class PlainHead(NamedTuple):
    """The meaning of the head (request line and headers) of a plain scoring request."""

    service: Service
    authorization: bytes
    body_bytes: int
    dialect: Dialect | None
    closes: bool
    options: CallOptions | None = None


@dataclass
class Gateway:
    """The services of one frontend.

    Attributes:
        services: The default version of each served model, by name. A request keeps the service that it began with,
            so replacing the entry here makes another version the default.
        past: The counters of the last minutes, for the console; None where there is no console.
        journal: Records of remarkable requests, for the console; None where there is no console.
        keyless: Whether no service asks for keys; the console asks for none then either.
        draining: Set once, when the server shuts down: it is not ready from then on.
        closes: Set once, when connections are to end: each answer then closes its connection.
        cors: The origins that may read answers; None to send no CORS headers.
        trusts_proxy: Whether deadlines and tiers are taken from the headers of API gateways.
        traffic: Divides the requests to an endpoint among its deployments; None where there is no endpoint.
        hosts: The hosts that requests over HTTP may be for; None for any.
        management_port: The port with TorchServe's management API; 0 for none.
    """

    services: dict[str, Service]
    metrics: MetricMemory
    past: Past | None = None
    journal: Journal | None = None
    keyless: bool = False
    metrics_need_key: bool = False
    metadata_need_key: bool = True
    draining: bool = False
    closes: bool = False
    bodies: BodyBudget = field(default_factory=BodyBudget)
    cors: Cors | None = None
    naming: Naming = field(default_factory=Naming)
    tells_version: bool = True
    trusts_proxy: bool = False
    traffic: Traffic | None = None
    hosts: AllowedHosts | None = None
    management_port: int = 0
    administration: Administration | None = None
    """Loads and unloads models; set once by the frontend."""
    observers: Observers | None = None
    """Notified of answered requests (access log, traces); None if nobody is. Set once by the frontend."""
    quotas: Quotas | None = None
    """The quotas of callers and models with limits; None where nobody has a named key, and no model a limit."""
    regions: Regions | None = None
    """Shared memory of callers; None where it is off. Set once by the frontend."""
    later: Later | None = None
    """Keeps requests that are answered later; None where none are. Set once by the frontend."""
    streams: ScriptStreams | None = None
    """Where answers that come piece by piece arrive; None until the first request asks for one."""
    on_readiness: list[Callable[[], None]] = field(default_factory=list)
    """Called when models may have become ready or not ready; see `notify_readiness`."""
    default_lines: bytes = b""
    """Header lines of every answer, with the date: written by the fast path, and added by uvicorn."""
    heads: dict[bytes, PlainHead] = field(default_factory=dict)
    """The parsed heads of plain scoring requests by their bytes; see `cache_head`."""
    distant_heads: dict[bytes, PlainHead] = field(default_factory=dict)
    """The same for callers who may not use shared memory, where others may."""
    models: dict[str, ServedModel] = field(init=False)
    """All versions of all models, by name, including those that were unloaded."""
    only: str | None = field(init=False)
    """The model that is meant where a path names none: the only one that the server was started with."""
    routes: dict[bytes, Service] = field(init=False)
    """The exact request targets of scoring, for the fast path."""
    infer_routes: dict[bytes, Service] = field(init=False)
    """The same for infer requests of the Open Inference Protocol."""
    prediction_routes: dict[bytes, Service] = field(init=False)
    """The same for predictions of TorchServe's API."""

    load: LoadMeter = field(init=False)
    """Reads the load of the models, for the metrics."""

    def __post_init__(self) -> None:
        self.load = LoadMeter(self.metrics)
        self.models = {
            name: ServedModel.of(service, slot) for slot, (name, service) in enumerate(self.services.items())
        }
        self.only = next(iter(self.services)) if len(self.services) == 1 else None
        self._find_routes()

    def route(self, name: str, model: ServedModel) -> None:
        """Replace what is served of a model; a model without versions is removed."""
        known, self.models[name] = self.models.get(name), model
        if known is not None and known.has_services_of(model):
            # Only states have changed: all paths lead where they have led.
            self.notify_readiness()
            return
        if not model.versions:
            del self.models[name]
        default = None if model.default is None else model.versions[model.default].service
        if default is None:
            self.services.pop(name, None)
        else:
            self.services[name] = default
        self._find_routes()
        # The cached heads were resolved with the old routes.
        self.clear_heads()
        self.notify_readiness()

    def report_refusal(self, service: Service, headers: Mapping[bytes, bytes], error: StokerError) -> None:
        """Count a request that is refused before it is scored, and notify the observers."""
        service.count_refusal(error)
        if self.observers is not None:
            self.observers.record_refusal(service, ids_of_refused(headers), error)

    def _find_routes(self) -> None:
        # Where deployments or versions share a path, the app chooses among them.
        alone = {name: service for name, service in self.services.items() if self.models[name].split is None}
        self.routes = {f"{self.path(service)}/score".encode(): service for service in alone.values()}
        if self.only in alone and (self.traffic is None or self.traffic.undivided):
            self.routes[b"/score"] = alone[self.only]
        self.infer_routes, self.prediction_routes = {}, {}
        for name in self.services:
            path, prediction = f"/v2/models/{quote(name)}", f"/predictions/{quote(name)}"
            if name in alone:
                self.infer_routes[f"{path}/infer".encode()] = alone[name]
                self.prediction_routes[prediction.encode()] = alone[name]
            for version in self.models[name].services:
                self.infer_routes[f"{path}/versions/{version.version}/infer".encode()] = version
                self.prediction_routes[f"{prediction}/{version.version}".encode()] = version

    def path(self, service: Service) -> str:
        """The percent-encoded path of a service before `/score` and `/swagger.json`."""
        return SERVICE_PATH + quote(service.name)

    @property
    def all_services(self) -> Iterator[Service]:
        """The services of all versions of all models."""
        for model in self.models.values():
            yield from model.services

    def service(self, name: str | None) -> Service:
        """Find the default version of a model by name; None means the only model.

        Raises:
            UnknownService: No model is served under this name, or several are and none was named.
            NotReady: The model is being loaded for the first time, or could not be loaded.
        """
        if name is None and self.traffic is not None:
            name = self.traffic.endpoint.leading
        meant = self.only if name is None else name
        if meant is not None:
            if meant in self.services:
                return self.services[meant]
            model = self.models.get(meant)
            if model is not None and model.default is not None:
                _check_loaded(f"'{meant}'", model.versions[model.default])
        if name is not None:
            raise UnknownService(
                f"There is no service {quoted(name)}{self._listed('; served here: ', self.services)}."
            )
        if self.services:
            which = self._listed(" with one of: ", self.services)
            raise UnknownService(f"Several services are here, use {SERVICE_PATH}<name>/score{which}.")
        raise UnknownService("No service is here now: none is loaded.")

    def _listed(self, before: str, names: Iterable[str]) -> str:
        """Names of models for the end of a message; empty where only callers with a key may know them."""
        return "" if self.metadata_need_key else before + ", ".join(names)

    def deployment(self, headers: Mapping[bytes, bytes]) -> Service:
        """Find the service for a path that names no model: a deployment of the endpoint, or the only model."""
        if self.traffic is None:
            return self.service(None)
        shares, requested = self.traffic.endpoint.shares, headers.get(DEPLOYMENT_HEADER)
        if requested is not None:
            name = requested.decode("latin-1")
            if name not in shares:
                there = self._listed("; there are: ", shares)
                raise UnknownService(f"There is no deployment {quoted(name)} of the endpoint{there}.")
            return self.service(name)
        served = next((self.services[name] for name in shares if name in self.services), None)
        if served is not None and not served.access.allows(headers.get(b"authorization", b"")):
            # A request that will be refused must not use up a deployment's turn.
            return served
        chosen = self.traffic.next()
        if chosen is None:
            raise UnknownService(
                "No deployment has a share of the endpoint's requests; name one with the header "
                f"{DEPLOYMENT_HEADER.decode()}{self._listed(': ', shares)}."
            )
        if chosen not in self.services:
            raise NotReady(f"The deployment {chosen} is not served now.", retry_after_s=1)
        return self.services[chosen]

    def choose_version(self, service: Service, headers: Mapping[bytes, bytes]) -> Service:
        """Find the service for a request that names no version: by weights, or by a header that pins its caller."""
        split = self.split_of(service)
        # A request that will be refused must not use up a version's turn.
        if split is None or not service.access.allows(headers.get(b"authorization", b"")):
            return service
        number = split.next(headers.get(split.header, b""))
        return self.models[service.name].versions[number].service or service

    def split_of(self, service: Service) -> Split | None:
        """The weights of the versions of a service's model; None if it has none."""
        model = self.models.get(service.name)
        return None if model is None else model.split

    def mirror(self, headers: Mapping[bytes, bytes]) -> Service | None:
        """Find the deployment that gets a copy of a request, beside the one that answers it."""
        if self.traffic is None or DEPLOYMENT_HEADER in headers:
            return None
        name = self.traffic.next_mirror()
        return None if name is None else self.services.get(name)

    def find(self, name: str, version: str | None = None, label: str | None = None) -> Service:
        """Find a version of a model by the terms of the Open Inference Protocol.

        Args:
            version: Its number, or a label; None means what the label means, or the default.

        Raises:
            UnknownService: There is no such model, version or label, or it has been unloaded.
            NotReady: The version is being loaded for the first time, or could not be loaded.
        """
        model = self.models.get(name)
        number = version
        if model is not None and number is None:
            number = model.default if label is None else model.labels.get(label)
        elif model is not None and number is not None and number not in model.versions:
            # MLServer's versions may be texts, which are labels here.
            number = None if number.isdigit() else model.labels.get(number)
        served = None if model is None or number is None else model.versions.get(number)
        if served is not None and served.service is not None:
            return served.service
        shown = f"'{cut(name)}'"
        if version is not None or label is not None:
            shown += f" version {cut(version)}" if label is None else f" label {quoted(label)}"
        if served is not None:
            _check_loaded(shown, served)
        raise UnknownService(f"Request for unknown model: {shown} is not found")

    def model_versions(self, name: str) -> dict[str, State]:
        """The state of each version of a model by its number, ascending; empty if there is no such model."""
        model = self.models.get(name)
        return (
            {}
            if model is None
            else {number: version.status.shown_state for number, version in model.versions.items()}
        )

    def check_ready(self) -> None:
        """Raise NotReady, with the reason, unless every service can score."""
        if self.draining:
            raise NotReady("The server is shutting down.")
        waiting = [
            service.name
            for service in self.services.values()
            if not service.ready and service.on_demand is None
        ]
        if waiting:
            raise NotReady(f"Not ready yet: {', '.join(waiting)}.", retry_after_s=1)

    def heads_of(self, address: str) -> dict[bytes, PlainHead]:
        """The cached heads for connections from this address."""
        return self.heads if self.regions is None or self.regions.serves(address) else self.distant_heads

    @staticmethod
    def cache_head(heads: dict[bytes, PlainHead], head: bytes, meaning: PlainHead) -> None:
        """Keep the meaning of a head in the cache that `heads_of` has returned: clients repeat their heads."""
        if len(heads) >= _MAX_HEADS:
            heads.clear()
        heads[head] = meaning

    def clear_heads(self) -> None:
        """Forget all cached heads: they may mean something else now."""
        self.heads.clear()
        self.distant_heads.clear()

    def flush_metrics(self) -> None:
        """Write the times of all answers of this frontend into the shared counters, before these are read."""
        for service in self.all_services:
            service.metrics.flush()

    def start_draining(self, *, port_stays: bool = False) -> None:
        """Close connections with each answer, and turn readiness off, unless another server serves on this port."""
        self.closes = True
        self.draining = not port_stays
        for service in self.all_services:
            service.closes = True
            service.draining = self.draining
        self.notify_readiness()

    def open_streams(self) -> ScriptStreams:
        """Return the receiver of streamed answers; it is opened by the first call."""
        self.streams = self.streams or ScriptStreams()
        return self.streams

    def close(self) -> None:
        """Stop telling observers of requests, and stop receiving streamed answers."""
        if self.observers is not None:
            self.observers.close()
        if self.streams is not None:
            self.streams.close()

    def notify_readiness(self) -> None:
        """Call the listeners for readiness; to be called by whoever changes which models are ready."""
        for look_again in self.on_readiness:
            look_again()


def _check_loaded(shown: str, version: ServedVersion) -> None:
    """Raise NotReady for a version that is being loaded, or could not be; not for one that was unloaded."""
    status = version.status
    if status.state in ("START", "LOADING"):
        raise NotReady(f"Model {shown} is not ready: it is being loaded.", retry_after_s=1)
    if status.error:
        raise NotReady(f"Model {shown} is not ready, it could not be loaded: {status.reason}")
