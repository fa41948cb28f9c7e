"""The Open Inference Protocol v2 over HTTP: its routes and its errors; infer requests are a dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stoker import __version__
from stoker.errors import MethodNotAllowed, NotFound, NotReady
from stoker.gateway.describing.model_config import describe_tensors, model_config, platform
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.encodings import compress_body
from stoker.gateway.http.requests import requester_of
from stoker.gateway.http.responses import (
    error_answer,
    error_body,
    respond_or_refuse,
)
from stoker.gateway.protocols.access import check_metadata_access
from stoker.gateway.protocols.endpoint import DialectEndpoint, check_posted
from stoker.gateway.protocols.generate import GenerateEndpoint
from stoker.gateway.protocols.infer import InferDialect
from stoker.gateway.protocols.live_settings import LOGGING, TRACE, LiveSettingsApi
from stoker.gateway.protocols.repository import REPOSITORY, RepositoryApi, statistics
from stoker.gateway.protocols.shared_memory import (
    CUDA_SHARED_MEMORY,
    SYSTEM_SHARED_MEMORY,
    CudaMemoryApi,
    SharedMemoryApi,
)
from stoker.gateway.scoring.service import Service
from stoker.settings.versions import ON_DEMAND
from stoker.wire.datatypes import DATATYPES

if TYPE_CHECKING:
    from starlette.types import Scope

    from stoker.gateway.scoring.call import Dialect
    from stoker.keys.callers import CallerTerms

_EXTENSIONS: Final = (
    "classification",
    "model_configuration",
    REPOSITORY,
    "model_repository(unload_dependents)",
    "schedule_policy",
    "sequence",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "generate",
    TRACE,
    LOGGING,
)
"""The extensions that are always supported; see the server metadata."""

_Handler = Callable[[Request], Awaitable[Response]]


def server_metadata(gateway: Gateway) -> dict[str, Any]:
    """Return the server's name and extensions; CUDA's shared memory is among them if the driver reports a GPU."""
    extensions = list(_EXTENSIONS)
    if gateway.regions is not None:
        extensions.append(SYSTEM_SHARED_MEMORY)
        if gateway.metrics.totals().gpus():
            extensions.append(CUDA_SHARED_MEMORY)
    return {"name": "stoker", "version": __version__, "extensions": extensions}


def model_metadata(gateway: Gateway, service: Service) -> dict[str, Any]:
    """Return a model's metadata, as JSON has it."""
    tensors = describe_tensors(service.signature)
    sides = ((), ()) if tensors is None else (tensors.inputs, tensors.outputs)
    inputs, outputs = (
        [{"name": info.name, "datatype": DATATYPES[info.dtype], "shape": list(info.shape)} for info in side]
        for side in sides
    )
    isolation = None if service.signature is None else service.signature.isolation
    parameters = {} if isolation is None else {"batching": msgspec.structs.asdict(isolation)}
    if labels := {info.name: list(info.labels) for side in sides for info in side if info.labels}:
        parameters["labels"] = labels
    return {
        "name": service.name,
        "versions": gateway.directory.models[service.name].served,
        "platform": platform(service.facts.framework),
        "inputs": inputs,
        "outputs": outputs,
        **({"parameters": parameters} if parameters else {}),
    }


def oip_routes(gateway: Gateway) -> list[Route]:
    """Return the routes below `/v2`; the last one matches all paths that no other does."""
    routes = _Routes(gateway)
    models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    return [
        _get("/v2", routes.server),
        _get("/v2/", routes.server),
        _get("/v2/health/live", routes.live),
        _get("/v2/health/ready", routes.ready),
        _get("/v2/models", routes.models),
        _get("/v2/models/stats", routes.statistics),
        *(_get(path + "/stats", routes.statistics) for path in models),
        *_repository_routes(RepositoryApi(gateway)),
        *_shared_memory_routes("/v2/systemsharedmemory", SharedMemoryApi(gateway)),
        *_shared_memory_routes("/v2/cudasharedmemory", CudaMemoryApi(gateway)),
        *_live_settings_routes(LiveSettingsApi(gateway)),
        *(_get(path, routes.metadata) for path in models),
        *(_get(path + "/config", routes.config) for path in models),
        *(_get(path + "/ready", routes.model_ready) for path in models),
        *(
            Route(path + "/infer", DialectEndpoint(gateway, routes.find, error_answer, compress_body))
            for path in models
        ),
        *(
            Route(path + rest, GenerateEndpoint(gateway, routes.find_script, streams=streams))
            for path in models
            for rest, streams in (("/generate", False), ("/generate_stream", True))
        ),
        _any("/v2/{rest:path}", _unknown),
    ]


def _repository_routes(api: RepositoryApi) -> list[Route]:
    model = "/v2/repository/models/{name}"
    return [
        _post("/v2/repository/index", api.index),
        *(_get(path + "/events", api.events) for path in ("/v2/repository", model)),
        *(_post(path + "/load", api.load) for path in (model, model + "/versions/{version}")),
        *(_post(path + "/unload", api.unload) for path in (model, model + "/versions/{version}")),
        _post(model + "/canary", api.canary),
        _any("/v2/repository/{repository}/index", api.refuse_named),
        _any("/v2/repository/{repository}/models/{name}/load", api.refuse_named),
        _any("/v2/repository/{repository}/models/{name}/unload", api.refuse_named),
    ]


def _live_settings_routes(api: LiveSettingsApi) -> list[Route]:
    traces = ("/v2/trace/setting", "/v2/models/{name}/trace/setting")
    return [*(_any(path, api.traces) for path in traces), _any("/v2/logging", api.logs)]


def _shared_memory_routes(every: str, api: SharedMemoryApi | CudaMemoryApi) -> list[Route]:
    region = every + "/region/{region}"
    return [
        *(_get(path + "/status", api.status) for path in (every, region)),
        _post(region + "/register", api.register),
        *(_post(path + "/unregister", api.unregister) for path in (every, region)),
    ]


class _Routes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def find(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect]:
        """Find the service and the dialect for an infer request."""
        service, _ = self.find_script(scope, headers)
        regions, client = self._gateway.regions, scope.get("client")
        if regions is not None and not regions.serves(client[0] if client else ""):
            regions = None
        return service, InferDialect.of(scope["headers"], regions)

    def find_script(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, None]:
        """Find the service for a request, by weight if the model's requests are split."""
        check_posted(scope)
        service = self._service(scope["path_params"])
        if "version" not in scope["path_params"]:
            service = self._gateway.directory.choose_version(service, headers)
        return service, None

    async def server(self, request: Request) -> Response:
        self._check_access(request)
        return JSONResponse(server_metadata(self._gateway))

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        try:
            self._gateway.check_ready()
        except NotReady as error:
            # The message is in this protocol's field and in that of Azure's errors.
            content = {"ready": False, "error": str(error), **json.loads(error_body(error))}
            headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s else None
            return JSONResponse(content, error.status, headers)
        return JSONResponse({"ready": True})

    async def models(self, request: Request) -> Response:
        caller = self._check_access(request)
        return JSONResponse(
            {"models": [name for name in self._gateway.directory.services if caller.may_ask(name)]}
        )

    async def metadata(self, request: Request) -> Response:
        service = self._service(request.path_params)
        self._check_access(request, (service,))
        await service.learn_signature()
        return JSONResponse(model_metadata(self._gateway, service))

    async def config(self, request: Request) -> Response:
        service = self._service(request.path_params)
        self._check_access(request, (service,))
        await service.learn_signature()
        return JSONResponse(model_config(service, self._gateway.directory.models[service.name].served))

    async def statistics(self, request: Request) -> Response:
        parameters = request.path_params
        name = parameters.get("name", "")
        model = self._gateway.directory.models.get(name)
        caller = self._check_access(request, () if model is None else model.services)
        found = statistics(self._gateway, name or None, parameters.get("version"), caller=caller)
        return JSONResponse({"model_stats": found})

    async def model_ready(self, request: Request) -> Response:
        service = self._service(request.path_params)
        if not service.ready:
            why = "." if service.on_demand is None else f": it is {ON_DEMAND}."
            raise NotReady(f"Model '{service.name}' is not ready{why}", retry_after_s=1)
        return JSONResponse({"name": service.name, "ready": True})

    def _check_access(self, request: Request, services: Iterable[Service] = ()) -> CallerTerms:
        return check_metadata_access(self._gateway, requester_of(request), services)

    def _service(self, parameters: Mapping[str, Any]) -> Service:
        version = parameters.get("version")
        if version is not None and re.fullmatch("0[0-9]{1,17}", version):
            version = str(int(version))
        return self._gateway.directory.find(parameters["name"], version)


async def _unknown(_: Request) -> Response:
    raise NotFound("Not Found")


def _get(path: str, handler: _Handler) -> Route:
    return _any(path, handler, ("GET", "HEAD"))


def _post(path: str, handler: _Handler) -> Route:
    return _any(path, handler, ("POST",))


def _any(path: str, handler: _Handler, allowed: tuple[str, ...] = ()) -> Route:
    """Make a route for all methods, or those that are allowed, whose errors have this protocol's form."""

    async def respond(request: Request) -> Response:
        if allowed and request.method not in allowed:
            raise MethodNotAllowed("Method Not Allowed", allowed=allowed)
        return await handler(request)

    async def handle(request: Request) -> Response:
        return await respond_or_refuse(request, respond, error_answer)

    return Route(path, handle, methods=["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
