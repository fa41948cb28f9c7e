"""TorchServe's management API: register, scale, describe and unregister models, and choose the default version.

Built on the loads and unloads of the model repository extension. A worker is a replica: a device process of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.errors import Forbidden, InvalidInput, MalformedBody, quoted
from stoker.gateway.http.requests import requester_of
from stoker.gateway.http.responses import respond_or_refuse
from stoker.gateway.protocols.access import administration_of, check_metadata_access
from stoker.gateway.protocols.torchserve import error_answer, find_version, number_of_version, to_json
from stoker.settings.choices import Adjustments

if TYPE_CHECKING:
    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.http.requests import Requester
    from stoker.gateway.scoring.service import Service

_Given = Mapping[str, str]

_BOUNDS: Final = {
    "batch_size": (1, 65536),
    "max_batch_delay": (0, 60_000),
    "initial_workers": (1, 64),
    "min_worker": (1, 64),
    "max_worker": (1, 64),
    "limit": (1, 1000),
    "next_page_token": (0, 1 << 31),
}
_INSTEAD: Final = {
    "handler": "the archive names its handler",
    "runtime": "the model decides what runs it",
    "response_timeout": "set timeout_ms of the server or the model",
    "startup_timeout": "set load_timeout_s of the server",
    "queue_timeout": "set timeout_ms of the server or the model",
    "s3_sse_kms": "models are not downloaded",
    "number_gpu": "set device of the model",
    "timeout": "requests of old workers are always answered",
    "customized": "handlers describe nothing",
}
"""Parameters of TorchServe that are refused, and what there is instead."""
_SUFFIXES: Final = (".mar", ".tar.gz", ".tgz", ".onnx", ".pt2", ".pt", ".pth", ".pkl", ".joblib")
_PAGE: Final = 100


class Management:
    """Carries out requests; changes need the admin key, and are answered when they have been made."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def register(self, requester: Requester, given: _Given) -> str:
        """Load a model by the name of its file or folder among those that the server serves, or registered."""
        administration = self._check(requester)
        numbers = _numbers(
            given, ("batch_size", "max_batch_delay", "initial_workers"), ("url", "model_name", "synchronous")
        )
        name = _name_of_file(given.get("url", ""))
        if given.get("model_name", name) != name:
            raise InvalidInput(
                f"model_name cannot be {quoted(given['model_name'])}: a model has the name of its file, {name}"
            )
        await administration.load(
            name,
            adjustments=Adjustments(
                max_batch_rows=numbers.get("batch_size"),
                max_delay_ms=numbers.get("max_batch_delay"),
                replicas=numbers.get("initial_workers"),
            ),
        )
        service = self._gateway.directory.find(name)
        workers = _workers(service)
        return f'Model "{name}" Version: {service.version} registered with {workers} initial workers'

    async def scale(self, requester: Requester, name: str, version: str | None, given: _Given) -> str:
        """Load a model with another number of replicas."""
        administration = self._check(requester)
        numbers = _numbers(given, ("min_worker", "max_worker"), ("synchronous",))
        workers = numbers.get("min_worker", numbers.get("max_worker", 1))
        if numbers.get("max_worker", workers) != workers:
            raise InvalidInput(
                "max_worker has to be min_worker: the number of workers does not follow the load, stoker autoscale "
                "changes that of servers"
            )
        service = find_version(self._gateway, name, version)
        served = self._gateway.directory.models[name].served
        if version is not None and served != [service.version]:
            raise InvalidInput(
                f"all versions of a model have as many workers: scale {name} without a version "
                f"(served: {', '.join(served)})"
            )
        deployment = service.facts.deployment
        before = Adjustments() if deployment is None else deployment.adjustments
        await administration.load(
            name,
            versions=tuple(map(int, served)),
            adjustments=dataclasses.replace(before, replicas=workers),
        )
        of_version = "" if version is None else f", version: {version}"
        return f"Workers scaled to {workers} for model: {name}{of_version}"

    async def set_default(self, requester: Requester, name: str, version: str) -> str:
        """Make a served version the default."""
        administration = self._check(requester)
        service = find_version(self._gateway, name, version)
        await administration.set_default(name, int(service.version))
        return f'Default version successfully updated for model "{name}" to "{service.version}"'

    async def unregister(self, requester: Requester, name: str, version: str | None) -> str:
        """Unload a model, or one of its versions, once its last requests are answered."""
        administration = self._check(requester)
        number = None if version is None else number_of_version(self._gateway, name, version)
        if number is None:
            find_version(self._gateway, name, None)
        await administration.unload(name, version=None if number is None else int(number))
        return f'Model "{name}" unregistered'

    async def models(self, requester: Requester, given: _Given) -> dict[str, Any]:
        """List the served models that the caller may use, by page."""
        caller = check_metadata_access(self._gateway, requester)
        numbers = _numbers(given, ("limit", "next_page_token"), ())
        begin, limit = numbers.get("next_page_token", 0), numbers.get("limit", _PAGE)
        names = sorted(filter(caller.may_ask, self._gateway.directory.services))
        page = names[begin : begin + limit]
        listed: dict[str, Any] = {"models": [{"modelName": name, "modelUrl": name} for name in page]}
        if begin + limit < len(names):
            listed["nextPageToken"] = str(begin + limit)
        return listed

    async def describe(
        self, requester: Requester, name: str, version: str | None, given: _Given
    ) -> list[dict[str, Any]]:
        """Describe the default version of a model, the one of a number, or with `all` those that are served."""
        _numbers(given, (), ())
        services: Iterable[Service]
        if version == "all":
            find_version(self._gateway, name, None)
            services = self._gateway.directory.models[name].services
        else:
            services = (find_version(self._gateway, name, version),)
        check_metadata_access(self._gateway, requester, services := tuple(services))
        self._gateway.flush_metrics()
        return [self._describe(service) for service in services]

    def _describe(self, service: Service) -> dict[str, Any]:
        deployment, workers = service.facts.deployment, _workers(service)
        status = self._gateway.directory.models[service.name].versions[service.version].status
        ready, metrics = len(service.exchanges), self._gateway.metrics
        busy_s = metrics.busy_s().items()
        on_gpu = any(device != "cpu" and kept_s[status.slot] for device, kept_s in busy_s)
        return {
            "modelName": service.name,
            "modelVersion": service.version,
            "modelUrl": service.name,
            "runtime": service.facts.framework,
            "minWorkers": workers,
            "maxWorkers": workers,
            "batchSize": 1 if deployment is None else deployment.max_batch_rows,
            "maxBatchDelay": 0 if deployment is None else deployment.max_delay_ms,
            "loadedAtStartup": deployment is None or deployment.adjustments == Adjustments(),
            "workers": [
                {
                    "id": str(number),
                    "status": "READY" if number < ready else "UNLOADED",
                    "gpu": on_gpu,
                }
                for number in range(workers)
            ],
            "jobQueueStatus": {"pendingRequests": metrics.totals().model(status.slot).queue_rows},
        }

    def _check(self, requester: Requester) -> Administration:
        administration = administration_of(self._gateway, "management")
        administration.access.check_loading(requester)
        return administration


def _workers(service: Service) -> int:
    deployment = service.facts.deployment
    return len(service.exchanges) if deployment is None else len(deployment.devices)


def _name_of_file(url: str) -> str:
    if not url:
        raise MalformedBody('Parameter "url" is required')
    if "/" in url or "\\" in url or url.startswith("."):
        raise Forbidden(
            f"{quoted(url)} is not registered: url has to be the name of a file or folder in what the server serves; "
            "models are not downloaded"
        )
    suffix = next((suffix for suffix in _SUFFIXES if url.endswith(suffix)), "")
    return url.removesuffix(suffix)


def _numbers(given: _Given, numbers: Iterable[str], others: Iterable[str]) -> dict[str, int]:
    """Return the numbers among parameters, and refuse unknown ones."""
    found = {}
    for name, value in given.items():
        if name in _INSTEAD:
            raise InvalidInput(f"{name} cannot be set here: {_INSTEAD[name]}")
        if name in numbers:
            low, high = _BOUNDS[name]
            if not (value.isascii() and value.isdigit() and len(value) < 12 and low <= int(value) <= high):
                raise InvalidInput(
                    f"{name} has to be a whole number from {low} to {high}, not {quoted(value)}"
                )
            found[name] = int(value)
        elif name not in others:
            raise MalformedBody(f"the parameter {quoted(name)} is not known")
    if given.get("synchronous", "true").lower() not in ("true", "false"):
        raise InvalidInput(f"synchronous has to be true or false, not {quoted(given['synchronous'])}")
    return found


def management_routes(gateway: Gateway) -> list[Route]:
    """Return the routes, which only the management port has."""
    management = Management(gateway)

    async def collection(request: Request) -> Any:
        requester, given = requester_of(request), request.query_params
        if request.method == "POST":
            return {"status": await management.register(requester, given)}
        return await management.models(requester, given)

    async def model(request: Request) -> Any:
        requester, given = requester_of(request), request.query_params
        name, version = request.path_params["name"], request.path_params.get("version")
        if request.method == "PUT":
            return {"status": await management.scale(requester, name, version, given)}
        if request.method == "DELETE":
            return {"status": await management.unregister(requester, name, version)}
        return await management.describe(requester, name, version, given)

    async def default(request: Request) -> Any:
        path = request.path_params
        return {"status": await management.set_default(requester_of(request), path["name"], path["version"])}

    answer = partial(_answer, gateway)
    return [
        Route("/models", partial(answer, collection), methods=["GET", "POST"]),
        Route("/models/{name}", partial(answer, model), methods=["GET", "PUT", "DELETE"]),
        Route("/models/{name}/{version}", partial(answer, model), methods=["GET", "PUT", "DELETE"]),
        Route("/models/{name}/{version}/set-default", partial(answer, default), methods=["PUT"]),
    ]


async def _answer(
    gateway: Gateway, handle: Callable[[Request], Awaitable[Any]], request: Request
) -> Response:
    server = request.scope.get("server")
    if (
        not gateway.settings.management_port
        or server is None
        or server[1] != gateway.settings.management_port
    ):
        raise HTTPException(404)

    async def respond(request: Request) -> Response:
        return Response(to_json(await handle(request)), media_type="application/json")

    return await respond_or_refuse(request, respond, error_answer)
