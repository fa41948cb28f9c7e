"""The system shared memory extension of the Open Inference Protocol over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from stoker.errors import MalformedBody
from stoker.gateway.http.asgi import authorization_of
from stoker.gateway.protocols.region_access import regions_to_change, regions_to_see
from stoker.gateway.protocols.repository_api import json_content

if TYPE_CHECKING:
    from starlette.requests import Request

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.regions.regions import Regions

__all__ = ["SharedMemoryApi"]


class SharedMemoryApi:
    """The handlers of `/v2/systemsharedmemory/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def status(self, request: Request) -> Response:
        """List the registered regions, or one of them."""
        regions = regions_to_see(self._gateway, authorization_of(request), _address(request))
        return JSONResponse(regions.status(request.path_params.get("region")))

    async def register(self, request: Request) -> Response:
        """Register a region."""
        regions, content = self._regions(request), await json_content(request)
        key, offset, size = content.get("key"), content.get("offset", 0), content.get("byte_size")
        if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
            raise MalformedBody("a region needs 'key', a text, and 'byte_size' and 'offset', integers")
        regions.register(request.path_params["region"], key, offset, size)
        return Response()

    async def unregister(self, request: Request) -> Response:
        """Unregister a region, or all."""
        self._regions(request).unregister(request.path_params.get("region"))
        return Response()

    def _regions(self, request: Request) -> Regions:
        return regions_to_change(
            self._gateway, authorization_of(request), _address(request), from_page="origin" in request.headers
        )


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
