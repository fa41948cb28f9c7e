"""The model repository extension of the Open Inference Protocol: the index, loading and unloading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response

from stoker.echo import cut, quoted
from stoker.errors import BodyTooLarge, Forbidden, MalformedBody, NotFound, NotSupported
from stoker.gateway.protocols.metadata_access import check_metadata_access
from stoker.settings.takeover import Canary
from stoker.versions import read_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway

__all__ = ["RepositoryApi", "check_unload_parameters", "version_policy", "versions_to_load"]

_MAX_BODY_BYTES: Final = 1 << 20
_CONFIG_KEYS: Final = {"name", "version_policy"}


class RepositoryApi:
    """The handlers of `/v2/repository/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def index(self, request: Request) -> Response:
        """List all models with their versions."""
        check_metadata_access(self._gateway, _authorization(request))
        content = await _content(request)
        ready = content.get("ready", False)
        if not isinstance(ready, bool):
            raise MalformedBody("Invalid value for 'ready': expected a boolean")
        return JSONResponse(await self._administration().index(ready=ready))

    async def events(self, request: Request) -> Response:
        """List what has happened to versions lately, of all models or of one."""
        check_metadata_access(self._gateway, _authorization(request))
        return JSONResponse(list(await self._administration().events(request.path_params.get("name"))))

    async def load(self, request: Request) -> Response:
        """Load a model, or one version beside the others."""
        administration = self._allowed(request)
        name, version = request.path_params["name"], _version(request)
        parameters = _parameters(await _content(request))
        versions = versions_to_load(name, parameters, takes_config=version is None)
        await administration.load(name, version=version, versions=versions)
        return Response()

    async def unload(self, request: Request) -> Response:
        """Unload a model, or one version of it."""
        administration = self._allowed(request)
        name, version = request.path_params["name"], _version(request)
        check_unload_parameters(name, _parameters(await _content(request)))
        await administration.unload(name, version=version)
        return Response()

    async def canary(self, request: Request) -> Response:
        """Send the requests of a model that name no version to its versions by other weights."""
        administration = self._administration()
        administration.access.check(_authorization(request), from_page="origin" in request.headers)
        name, content = request.path_params["name"], await _content(request)
        try:
            canary = Canary.from_json(content)
        except ValueError as error:
            raise MalformedBody(f"failed to shift '{cut(name)}': its weights {cut(str(error))}") from None
        await administration.shift(name, canary)
        return Response()

    async def named(self, _: Request) -> Response:
        """Refuse the name of a repository: there is one, and it has none."""
        raise NotSupported("named repositories are not supported: leave the name out")

    def _allowed(self, request: Request) -> Administration:
        administration = self._administration()
        administration.access.check_loading(_authorization(request), from_page="origin" in request.headers)
        return administration

    def _administration(self) -> Administration:
        if self._gateway.administration is None:
            raise NotSupported("model_repository extension is not supported")
        return self._gateway.administration


def versions_to_load(
    name: str, parameters: Mapping[str, Any], *, takes_config: bool = True
) -> str | tuple[int, ...] | None:
    """Return which versions the parameters of a load ask for; None if they do not say.

    Args:
        name: Name of the model.
        parameters: The parameters by name.
        takes_config: Whether a configuration may be among them.

    Raises:
        Forbidden: There are files.
        MalformedBody: One is unknown, or malformed.
    """
    versions = None
    for key, value in parameters.items():
        if key.startswith("file:"):
            raise Forbidden("files cannot be uploaded: put the model into the repository, and load it then")
        if key != "config" or not takes_config:
            raise MalformedBody(f"failed to load '{cut(name)}', the parameter '{cut(key)}' is not known")
        if not isinstance(value, str):
            raise MalformedBody(
                f"failed to load '{cut(name)}', the parameter 'config' has to be a text of JSON"
            )
        versions = version_policy(name, value)
    return versions


def check_unload_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of an unload that are unknown, or malformed.

    Raises:
        MalformedBody: One is.
    """
    for key, value in parameters.items():
        # No model depends on another one, so both answers to this mean the same.
        if key != "unload_dependents":
            raise MalformedBody(f"failed to unload '{cut(name)}', the parameter '{cut(key)}' is not known")
        if not isinstance(value, bool):
            raise MalformedBody(f"failed to unload '{cut(name)}', 'unload_dependents' has to be a boolean")


def version_policy(name: str, config: str) -> str | tuple[int, ...] | None:
    """Return which versions a model configuration asks for; None if it does not say.

    Args:
        name: Name of the model.
        config: The configuration, Triton's `ModelConfig` as JSON.

    Raises:
        MalformedBody: It is malformed, or would change what a load does not.
    """
    problem = f"failed to load '{cut(name)}', "
    try:
        values = json.loads(config)
    except (ValueError, RecursionError):
        raise MalformedBody(problem + "its config is not JSON") from None
    if not isinstance(values, dict):
        raise MalformedBody(problem + "its config is not an object")
    unknown = sorted(set(values) - _CONFIG_KEYS)
    if unknown:
        shown = cut(", ".join(map(cut, unknown[:100])))
        raise MalformedBody(
            f"{problem}config cannot change {shown}, only version_policy; the rest is in the "
            "server's settings"
        )
    if values.get("name", name) != name:
        raise MalformedBody(problem + f"its config is that of another model: {quoted(values['name'])}")
    policy = values.get("version_policy")
    if policy is None:
        return None
    match policy:
        case {"latest": {"num_versions": count}, **rest} if not rest:
            wanted: Any = f"latest:{count}"
        case {"latest": {} as latest, **rest} if not latest and not rest:
            wanted = "latest"
        case {"all": {} as every, **rest} if not every and not rest:
            wanted = "all"
        case {"specific": {"versions": list() as numbers}, **rest} if not rest:
            wanted = numbers
        case _:
            raise MalformedBody(problem + "its version_policy has to be latest, all or specific")
    try:
        return read_versions(wanted)
    except ValueError as error:
        raise MalformedBody(f"{problem}its version_policy {error}") from None


def _authorization(request: Request) -> bytes:
    return request.headers.get("authorization", "").encode("latin-1")


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


async def _content(request: Request) -> dict[str, Any]:
    """The JSON object of a request; an empty body is an empty one."""
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
