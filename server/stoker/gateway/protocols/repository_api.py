"""The model repository extension of the Open Inference Protocol: the index, loading and unloading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response

from stoker.echo import cut
from stoker.errors import BodyTooLarge, MalformedBody, NotFound, NotSupported
from stoker.gateway.http.requests import authorization_of
from stoker.gateway.protocols.load_wishes import load_wish
from stoker.gateway.protocols.metadata_access import check_metadata_access
from stoker.settings.takeover import Canary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway

__all__ = ["RepositoryApi", "check_unload_parameters", "json_content"]

_MAX_BODY_BYTES: Final = 1 << 20


class RepositoryApi:
    """The handlers of `/v2/repository/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def index(self, request: Request) -> Response:
        """List all models with their versions."""
        check_metadata_access(self._gateway, authorization_of(request))
        content = await json_content(request)
        ready = content.get("ready", False)
        if not isinstance(ready, bool):
            raise MalformedBody("Invalid value for 'ready': expected a boolean")
        return JSONResponse(await self._administration().index(ready=ready))

    async def events(self, request: Request) -> Response:
        """List the recent events of all models' versions, or of one model's."""
        check_metadata_access(self._gateway, authorization_of(request))
        return JSONResponse(list(await self._administration().events(request.path_params.get("name"))))

    async def load(self, request: Request) -> Response:
        """Load a model, or one version in addition to those that are served."""
        administration = self._allowed(request)
        name, version = request.path_params["name"], _version(request)
        parameters = _parameters(await json_content(request))
        wish = load_wish(self._gateway, name, parameters, takes_config=version is None)
        await administration.load(name, version=version, versions=wish.versions, adjustments=wish.adjustments)
        return Response()

    async def unload(self, request: Request) -> Response:
        """Unload a model, or one of its versions."""
        administration = self._allowed(request)
        name, version = request.path_params["name"], _version(request)
        check_unload_parameters(name, _parameters(await json_content(request)))
        await administration.unload(name, version=version)
        return Response()

    async def canary(self, request: Request) -> Response:
        """Set the weights of a model's versions."""
        administration = self._administration()
        administration.access.check(authorization_of(request), from_page="origin" in request.headers)
        name, content = request.path_params["name"], await json_content(request)
        try:
            canary = Canary.from_json(content)
        except ValueError as error:
            raise MalformedBody(f"failed to shift '{cut(name)}': its weights {cut(str(error))}") from None
        await administration.shift(name, canary)
        return Response()

    async def named(self, _: Request) -> Response:
        """Refuse a request that names a repository: there is one only, and it has no name."""
        raise NotSupported("named repositories are not supported: leave the name out")

    def _allowed(self, request: Request) -> Administration:
        administration = self._administration()
        administration.access.check_loading(authorization_of(request), from_page="origin" in request.headers)
        return administration

    def _administration(self) -> Administration:
        if self._gateway.administration is None:
            raise NotSupported("model_repository extension is not supported")
        return self._gateway.administration


def check_unload_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Refuse unknown or malformed parameters of an unload request.

    Raises:
        MalformedBody: A parameter is unknown or malformed.
    """
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
    """Return the JSON object of a request; an empty body counts as an empty object.

    Raises:
        BodyTooLarge: It is longer than 1 MiB.
        MalformedBody: It is not a JSON object.
    """
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
