"""The directory of a frontend: finds services by the names of models, versions, labels and deployments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from stoker.errors import NotReady, UnknownService, cut, quoted
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gateway.traffic import DEPLOYMENT_HEADER

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.traffic import Traffic
    from stoker.settings.versions import State
    from stoker.takeover.traffic_split import Split

SERVICE_PATH: Final = "/api/v1/service/"


def service_path(name: str) -> str:
    """Return the percent-encoded path of a model before `/score` and `/swagger.json`."""
    return SERVICE_PATH + quote(name)


class ModelDirectory:
    """The models of a frontend.

    Attributes:
        services: The default version of each served model, by name. A request keeps the service that it began with,
            so replacing the entry here makes another version the default.
        models: All versions of all models, by name, including those that were unloaded.
        only: The model that is meant where a path names none: the only one that the server was started with.
        traffic: Divides the requests to an endpoint among its deployments; None where there is no endpoint.
        hides_names: Whether error messages name no models, because only callers with a key may know them.
    """

    def __init__(
        self, services: dict[str, Service], traffic: Traffic | None = None, *, hides_names: bool = True
    ) -> None:
        """Begin with these services, each the only version of its model; they count in slots in this order."""
        self.services = services
        self.models = {
            name: ServedModel.of(service, slot) for slot, (name, service) in enumerate(services.items())
        }
        self.only = next(iter(services)) if len(services) == 1 else None
        self.traffic = traffic
        self.hides_names = hides_names

    def route(self, name: str, model: ServedModel) -> bool:
        """Replace the versions of a model, or remove it without any; return whether a name means another service."""
        known, self.models[name] = self.models.get(name), model
        if known is not None and known.has_services_of(model):
            # Only states have changed.
            return False
        if not model.versions:
            del self.models[name]
        default = None if model.default is None else model.versions[model.default].service
        if default is None:
            self.services.pop(name, None)
        else:
            self.services[name] = default
        return True

    @property
    def all_services(self) -> Iterator[Service]:
        """The services of all versions of all models."""
        for model in self.models.values():
            yield from model.services

    def service(self, name: str | None, path: str = "/score") -> Service:
        """Find the default version of a model by name; None means the only model.

        Args:
            path: Path of the request, which an error names behind a model where several are served.

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
            names = self._listed(" with one of: ", self.services)
            raise UnknownService(f"Several services are here, use {SERVICE_PATH}<name>{path}{names}.")
        raise UnknownService("No service is here now: none is loaded.")

    def _listed(self, before: str, names: Iterable[str]) -> str:
        """Names of models for the end of a message; empty where only callers with a key may know them."""
        return "" if self.hides_names else before + ", ".join(names)

    def deployment(self, headers: Mapping[bytes, bytes], path: str = "/score") -> Service:
        """Find the service for a path that names no model: a deployment of the endpoint, or the only model."""
        if self.traffic is None:
            return self.service(None, path)
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
        waiting = [
            service.name
            for service in self.services.values()
            if not service.ready and service.on_demand is None
        ]
        if waiting:
            raise NotReady(f"Not ready yet: {', '.join(waiting)}.", retry_after_s=1)


def _check_loaded(shown: str, version: ServedVersion) -> None:
    """Raise NotReady for a version that is being loaded, or could not be; not for one that was unloaded."""
    status = version.status
    if status.state in ("START", "LOADING"):
        raise NotReady(f"Model {shown} is not ready: it is being loaded.", retry_after_s=1)
    if status.error:
        raise NotReady(f"Model {shown} is not ready, it could not be loaded: {status.reason}")
