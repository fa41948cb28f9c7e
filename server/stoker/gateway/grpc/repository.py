"""Statistics and the model repository: the methods beside health and inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from stoker.errors import NotSupported
from stoker.gateway.grpc.calls import BEARER_METADATA, RpcCall
from stoker.gateway.grpc.messages import message
from stoker.gateway.protocols.access import check_metadata_access
from stoker.gateway.protocols.repository import check_unload_parameters, load_wish, statistics

if TYPE_CHECKING:
    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway

__all__ = ["RepositoryMethods"]

_StatisticsResponse = message("ModelStatisticsResponse")
_IndexResponse = message("RepositoryIndexResponse")
_LoadResponse = message("RepositoryModelLoadResponse")
_UnloadResponse = message("RepositoryModelUnloadResponse")


class RepositoryMethods:
    """What the same extensions do over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def statistics(self, request: Any, call: RpcCall) -> Any:
        """Answer a `ModelStatisticsRequest`."""
        model = self._gateway.models.get(request.name)
        services = () if model is None else model.services
        check_metadata_access(self._gateway, call.authorization, services, sent_as=BEARER_METADATA)
        entries = statistics(self._gateway, request.name or None, request.version or None)
        return json_format.ParseDict({"model_stats": entries}, _StatisticsResponse())

    async def index(self, request: Any, call: RpcCall) -> Any:
        """Answer a `RepositoryIndexRequest`."""
        check_metadata_access(self._gateway, call.authorization, sent_as=BEARER_METADATA)
        _check_unnamed(request)
        entries = await self._administration().index(ready=request.ready)
        return _IndexResponse(models=entries)

    async def load(self, request: Any, call: RpcCall) -> Any:
        """Answer a `RepositoryModelLoadRequest` when the model is served."""
        administration = self._allowed(call)
        _check_unnamed(request)
        wish = load_wish(self._gateway, request.model_name, _parameters(request))
        await administration.load(request.model_name, versions=wish.versions, adjustments=wish.adjustments)
        return _LoadResponse()

    async def unload(self, request: Any, call: RpcCall) -> Any:
        """Answer a `RepositoryModelUnloadRequest` when the model's last requests have been answered."""
        administration = self._allowed(call)
        _check_unnamed(request)
        check_unload_parameters(request.model_name, _parameters(request))
        await administration.unload(request.model_name)
        return _UnloadResponse()

    def _allowed(self, call: RpcCall) -> Administration:
        administration = self._administration()
        administration.access.check_loading(call.authorization, from_page=False, sent_as=BEARER_METADATA)
        return administration

    def _administration(self) -> Administration:
        if self._gateway.administration is None:
            raise NotSupported("model_repository extension is not supported")
        return self._gateway.administration


def _check_unnamed(request: Any) -> None:
    if request.repository_name:
        raise NotSupported("named repositories are not supported: leave the name out")


def _parameters(request: Any) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in request.parameters.items()
    }
