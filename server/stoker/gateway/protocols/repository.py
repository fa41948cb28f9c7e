"""The model repository and statistics extensions: the index, loading with its parameters, unloading, and counters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from starlette.responses import JSONResponse, Response

from stoker.errors import (
    BodyTooLarge,
    Forbidden,
    InvalidSettings,
    MalformedBody,
    NotFound,
    NotSupported,
    StokerError,
    UnknownService,
    cut,
    quoted,
)
from stoker.gateway.describing.model_config import model_config
from stoker.gateway.http.requests import requester_of
from stoker.gateway.protocols.access import administration_of, check_metadata_access
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.models.pbtxt_fields import InvalidField
from stoker.models.triton_load_request import ADJUSTED, adjustments_of
from stoker.settings.choices import Adjustments
from stoker.settings.traffic import Canary
from stoker.settings.versions import read_versions

if TYPE_CHECKING:
    from starlette.requests import Request

    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway
    from stoker.metrics.totals import ModelTotals

REPOSITORY: Final = "model_repository"
"""The extension's name."""

_TENSORS: Final = ("input", "output")
_DESCRIBES: Final = ("name", "platform", "backend", "model_transaction_policy", *_TENSORS)
"""Fields that describe the model's files, so a load cannot change them."""


class LoadParameters(Struct, frozen=True):
    """The parameters of a load request.

    Attributes:
        versions: The versions to serve; None for those of the settings.
    """

    versions: str | tuple[int, ...] | None = None
    adjustments: Adjustments = field(default_factory=Adjustments)


def read_load_parameters(
    gateway: Gateway, name: str, parameters: Mapping[str, Any], *, takes_config: bool = True
) -> LoadParameters:
    """Read the parameters of a load request."""
    requested = LoadParameters()
    for key, value in parameters.items():
        if key.startswith("file:"):
            raise Forbidden("files cannot be uploaded: put the model into the repository, and load it then")
        if key != "config" or not takes_config:
            raise MalformedBody(f"failed to load '{cut(name)}', the parameter '{cut(key)}' is not known")
        if not isinstance(value, str):
            raise MalformedBody(
                f"failed to load '{cut(name)}', the parameter 'config' has to be a text of JSON"
            )
        requested = read_config(name, value, _served_config(gateway, name))
    return requested


def read_config(name: str, config: str, served: Mapping[str, Any] | None = None) -> LoadParameters:
    """Read a model configuration.

    Args:
        served: The configuration of the served model; None if it is not served.
    """
    problem = f"failed to load '{cut(name)}', "
    try:
        values = json.loads(config)
    except (ValueError, RecursionError):
        raise MalformedBody(problem + "its config is not JSON") from None
    if not isinstance(values, dict):
        raise MalformedBody(problem + "its config is not an object")
    unknown = sorted(set(values).difference(_DESCRIBES, ADJUSTED, ("version_policy",)))
    if unknown:
        shown = cut(", ".join(map(cut, unknown[:100])))
        raise MalformedBody(
            f"{problem}config cannot change {shown}, only version_policy and {', '.join(ADJUSTED)}; the rest is in "
            "the server's settings"
        )
    if values.get("name", name) != name:
        raise MalformedBody(problem + f"its config is that of another model: {quoted(values['name'])}")
    for field_name in ("platform", "backend", *_TENSORS):
        if served is not None and _differs(values.get(field_name), served[field_name]):
            raise MalformedBody(f"{problem}config cannot change {field_name}, which follows from its files")
    try:
        return LoadParameters(_versions(values.get("version_policy")), adjustments_of(values, "its config"))
    except (ValueError, InvalidSettings) as error:
        raise MalformedBody(f"{problem}{cut(str(error))}") from None


def _served_config(gateway: Gateway, name: str) -> Mapping[str, Any] | None:
    """Return the configuration of the served model; None if its tensors are not known."""
    try:
        service = gateway.directory.find(name)
        return model_config(service, gateway.directory.models[service.name].served)
    except StokerError:
        return None


def _differs(given: Any, served: Any) -> bool:
    """Whether a configuration changes the value of a field."""
    if not given:
        return False
    if isinstance(served, str):
        return bool(given != served)
    return bool(_tensors(given) != _tensors(served))


def _tensors(infos: Any) -> Any:
    """Return name, type and shape of each tensor; protobuf's JSON writes sizes as strings."""
    if not isinstance(infos, list) or not all(isinstance(info, Mapping) for info in infos):
        return None
    return [
        (info.get("name"), info.get("data_type"), [str(size) for size in _as_list(info.get("dims"))])
        for info in infos
    ]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _versions(policy: Any) -> str | tuple[int, ...] | None:
    """Return the versions of a version policy; raises ValueError if it is invalid."""
    match policy:
        case None:
            return None
        case {"latest": {"num_versions": count}, **rest} if not rest:
            wanted: Any = f"latest:{count}"
        case {"latest": {} as latest, **rest} if not latest and not rest:
            wanted = "latest"
        case {"all": {} as every, **rest} if not every and not rest:
            wanted = "all"
        case {"specific": {"versions": list() as numbers}, **rest} if not rest:
            wanted = numbers
        case _:
            raise InvalidField("its version_policy has to be latest, all or specific")
    try:
        return read_versions(wanted)
    except ValueError as error:
        raise InvalidField(f"its version_policy {error}") from None


_MAX_BODY_BYTES: Final = 1 << 20


class RepositoryApi:
    """The handlers of `/v2/repository/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def index(self, request: Request) -> Response:
        """List the models that the caller may use, with their versions."""
        caller = check_metadata_access(self._gateway, requester_of(request))
        content = await json_content(request)
        ready = content.get("ready", False)
        if not isinstance(ready, bool):
            raise MalformedBody("Invalid value for 'ready': expected a boolean")
        return JSONResponse(await list_index(self._gateway, caller, ready=ready))

    async def events(self, request: Request) -> Response:
        """List the recent events of the versions of the models that the caller may use, or of one of them."""
        caller = check_metadata_access(self._gateway, requester_of(request))
        events = await administration_of(self._gateway, REPOSITORY).events(request.path_params.get("name"))
        return JSONResponse([event for event in events if caller.may_ask(event["model"])])

    async def load(self, request: Request) -> Response:
        """Load a model, or one version in addition to those that are served."""
        administration = self._check_loading(request)
        name, version = request.path_params["name"], _version(request)
        parameters = _parameters(await json_content(request))
        requested = read_load_parameters(self._gateway, name, parameters, takes_config=version is None)
        await administration.load(
            name, version=version, versions=requested.versions, adjustments=requested.adjustments
        )
        return Response()

    async def unload(self, request: Request) -> Response:
        """Unload a model, or one of its versions."""
        administration = self._check_loading(request)
        name, version = request.path_params["name"], _version(request)
        check_unload_parameters(name, _parameters(await json_content(request)))
        await administration.unload(name, version=version)
        return Response()

    async def canary(self, request: Request) -> Response:
        """Set the weights of a model's versions."""
        administration = administration_of(self._gateway, REPOSITORY)
        administration.access.check(requester_of(request))
        name, content = request.path_params["name"], await json_content(request)
        try:
            canary = Canary.from_json(content)
        except ValueError as error:
            raise MalformedBody(f"failed to shift '{cut(name)}': its weights {cut(str(error))}") from None
        await administration.shift(name, canary)
        return Response()

    async def refuse_named(self, _: Request) -> Response:
        """Refuse a request that names a repository: there is one only, and it has no name."""
        raise NotSupported("named repositories are not supported: leave the name out")

    def _check_loading(self, request: Request) -> Administration:
        administration = administration_of(self._gateway, REPOSITORY)
        administration.access.check_loading(requester_of(request))
        return administration


def check_unload_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Refuse unknown or malformed parameters of an unload request."""
    for key, value in parameters.items():
        # No model depends on another one here, so either value of this parameter means the same.
        if key != "unload_dependents":
            raise MalformedBody(f"failed to unload '{cut(name)}', the parameter '{cut(key)}' is not known")
        if not isinstance(value, bool):
            raise MalformedBody(f"failed to unload '{cut(name)}', 'unload_dependents' has to be a boolean")


def _version(request: Request) -> int | None:
    version = request.path_params.get("version")
    if version is None:
        return None
    if not version.isascii() or not version.isdigit() or len(version) > 18:
        raise NotFound(
            f"Request for unknown model: '{request.path_params['name']}' version {version} is not found"
        )
    return int(version)


def _parameters(content: Mapping[str, Any]) -> dict[str, Any]:
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise MalformedBody("'parameters' has to be an object")
    return parameters


async def json_content(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; an empty body counts as an empty object."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise BodyTooLarge("The body is larger than 1 MiB; files cannot be uploaded.")
    if not body.strip():
        return {}
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise MalformedBody("failed to parse the request JSON buffer") from None
    if not isinstance(content, dict):
        raise MalformedBody("the request has to be a JSON object")
    return content


async def list_index(gateway: Gateway, caller: CallerTerms, *, ready: bool) -> list[Mapping[str, str]]:
    """Return the models that the caller may use, with their versions; with `ready` the loaded ones."""
    entries = await administration_of(gateway, REPOSITORY).index(ready=ready)
    return [entry for entry in entries if caller.may_ask(entry["name"])]


def statistics(
    gateway: Gateway, name: str | None = None, version: str | None = None, *, caller: CallerTerms = DEFAULT
) -> list[dict[str, Any]]:
    """Return the statistics of the versions that are served, or of those that are named, even if unloaded.

    Args:
        caller: Without a name, only the models that the caller may use are listed.
    """
    if name is not None and name not in gateway.directory.models:
        raise UnknownService(f"Request for unknown model: '{cut(name)}' is not found")
    gateway.flush_metrics()
    totals = gateway.metrics.totals()
    found = [
        _model_statistics(model_name, number, totals.model(served.status.slot))
        for model_name, model in gateway.directory.models.items()
        if (caller.may_ask(model_name) if name is None else name == model_name)
        for number, served in model.versions.items()
        if served.has_counters and (served.service is not None if version is None else number == version)
    ]
    known = name is not None and version in gateway.directory.models[name].versions
    if version is not None and not known:
        raise UnknownService(f"Request for unknown model: '{name}' version {cut(version)} is not found")
    return found


def _model_statistics(name: str, version: str, totals: ModelTotals) -> dict[str, Any]:
    requests = totals.requests()
    succeeded = requests.pop(200)
    stages = totals.stage_ns()
    cache = totals.cache()
    batches = sum(totals.dispatches().values())
    return {
        "name": name,
        "version": version,
        "last_inference": totals.last_scored_ms,
        "inference_count": totals.rows,
        "execution_count": batches,
        "inference_stats": {
            "success": {"count": succeeded, "ns": stages["total"][1]},
            # The duration of refused requests is not measured.
            "fail": {"count": sum(requests.values()), "ns": 0},
            "queue": _per_request(succeeded, *stages["queue"]),
            "compute_input": _per_request(succeeded, *stages["parse"]),
            "compute_infer": _per_request(succeeded, totals.batch_rows().sum, totals.row_compute_ns),
            # Answers are written within the time of `success`, and this part is not measured separately.
            "compute_output": _per_request(succeeded, 0, 0),
            "cache_hit": {"count": cache.hits, "ns": cache.hit_ns},
            "cache_miss": {"count": cache.misses, "ns": cache.miss_ns},
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def _per_request(requests: int, count: float, ns: int) -> dict[str, int]:
    """Convert a mean, which may be per row, to requests: Triton's tools expect one count for all times."""
    return {"count": requests, "ns": round(ns * requests / count) if count else 0}
