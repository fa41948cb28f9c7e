"""Tensors in shared memory of callers, on the host or on a GPU: its authorization and the handlers over HTTP."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stoker.errors import Forbidden, MalformedBody, NotFound, NotSupported, Unauthorized, cut
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.requests import Requester, requester_of
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.protocols.access import check_caller, check_metadata_access
from stoker.gateway.protocols.repository import json_content
from stoker.gateway.regions.table import CudaLocation
from stoker.gpu.cuda_ipc import HANDLE_BYTES

if TYPE_CHECKING:
    from stoker.gateway.regions.regions import Regions

SYSTEM_SHARED_MEMORY = "system_shared_memory"
CUDA_SHARED_MEMORY = "cuda_shared_memory"
"""The extensions' names."""


def regions_to_list(gateway: Gateway, requester: Requester) -> Regions:
    """Return the regions for a caller who lists them."""
    regions = _regions(gateway, requester, SYSTEM_SHARED_MEMORY)
    check_metadata_access(gateway, requester)
    return regions


def regions_to_change(
    gateway: Gateway, requester: Requester, extension: str = SYSTEM_SHARED_MEMORY
) -> Regions:
    """Return the regions for a caller who registers or unregisters."""
    regions = _regions(gateway, requester, extension)
    if requester.from_page:
        raise Forbidden("Pages may not register shared memory.")
    if not regions.needs_admin:
        check_caller(gateway, requester)
        return regions
    administration = gateway.administration
    if administration is None or administration.access.refusal:
        raise Forbidden("Shared memory cannot be registered here: start the server with STOKER_ADMIN_KEY.")
    if not administration.access.callers.allows(requester.authorization):
        raise Unauthorized(
            "Registering shared memory needs the admin key ('stoker keys show admin'): send "
            f"{requester.sent_as.format('key')}."
        )
    return regions


def _regions(gateway: Gateway, requester: Requester, extension: str) -> Regions:
    if gateway.regions is None:
        raise NotSupported(f"{extension} extension is not supported")
    gateway.regions.check_peer(requester.address)
    return gateway.regions


class SharedMemoryApi:
    """The handlers of `/v2/systemsharedmemory/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def status(self, request: Request) -> Response:
        """List the registered regions, or one of them."""
        regions = regions_to_list(self._gateway, requester_of(request))
        return JSONResponse(regions.status(request.path_params.get("region")))

    async def register(self, request: Request) -> Response:
        """Register a region."""
        regions = regions_to_change(self._gateway, requester_of(request))
        content = await json_content(request)
        key, offset, size = content.get("key"), content.get("offset", 0), content.get("byte_size")
        if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
            raise MalformedBody("a region needs 'key', a text, and 'byte_size' and 'offset', integers")
        regions.register(request.path_params["region"], key, offset, size)
        return Response()

    async def unregister(self, request: Request) -> Response:
        """Unregister a region, or all."""
        regions_to_change(self._gateway, requester_of(request)).unregister(request.path_params.get("region"))
        return Response()


# The extension for memory on GPUs. Clients request the status and unregister all regions before they know whether the
# server supports this: if it does not, both succeed, with nothing registered.
_MOST_DEVICES: Final = 1 << 16


def cuda_status(gateway: Gateway, requester: Requester, name: str | None) -> list[dict[str, Any]]:
    """Return the regions on GPUs, or one of them, in the form of the protocol."""
    check_metadata_access(gateway, requester)
    if gateway.regions is not None and gateway.regions.serves(requester.address):
        return gateway.regions.status(name, CudaLocation)
    if name is not None:
        raise NotFound(f"Unable to find cuda shared memory region: '{cut(name)}'")
    return []


async def register(regions: Regions, name: str, handle: bytes, device_id: int, size_bytes: int) -> None:
    """Register a region on a GPU, given CUDA's IPC handle of the allocation."""
    if len(handle) != HANDLE_BYTES or not 0 <= device_id < _MOST_DEVICES:
        raise MalformedBody(
            f"a CUDA region needs a 'raw_handle' of {HANDLE_BYTES} bytes, and the number of a GPU as 'device_id'"
        )
    regions.check_new(name, size_bytes)
    location = CudaLocation(base64.b64encode(handle).decode(), device_id)
    # The first region in a process creates the CUDA context, which takes tenths of a second.
    regions.register_cuda(name, await run_in_thread(regions.cuda.open, location, size_bytes))


def unregister_cuda(gateway: Gateway, requester: Requester, name: str | None) -> None:
    """Unregister a region on a GPU, or all; as in Triton, a region that is not registered is no error."""
    if cuda_status(gateway, requester, None):
        regions_to_change(gateway, requester, CUDA_SHARED_MEMORY).unregister(name, CudaLocation)


class CudaMemoryApi:
    """The handlers of `/v2/cudasharedmemory/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def status(self, request: Request) -> Response:
        """List all regions, or one."""
        name = request.path_params.get("region")
        return JSONResponse(cuda_status(self._gateway, requester_of(request), name))

    async def register(self, request: Request) -> Response:
        """Register a region."""
        regions = regions_to_change(self._gateway, requester_of(request), CUDA_SHARED_MEMORY)
        content = await json_content(request)
        device_id, size_bytes = content.get("device_id", 0), content.get("byte_size")
        if type(device_id) is not int or type(size_bytes) is not int:
            raise MalformedBody("a CUDA region needs 'device_id' and 'byte_size', integers")
        handle = _handle(content.get("raw_handle"))
        await register(regions, request.path_params["region"], handle, device_id, size_bytes)
        return Response()

    async def unregister(self, request: Request) -> Response:
        """Unregister a region, or all."""
        unregister_cuda(self._gateway, requester_of(request), request.path_params.get("region"))
        return Response()


def _handle(given: Any) -> bytes:
    encoded = given.get("b64") if isinstance(given, dict) else None
    if isinstance(encoded, str):
        try:
            # Triton's C++ client, which perf_analyzer uses, sends Base64 with line breaks.
            return base64.b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError):
            pass
    raise MalformedBody("a CUDA region needs a 'raw_handle', an object whose 'b64' is the handle in Base64")
