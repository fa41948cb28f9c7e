"""Tensors in shared memory of callers, on the host or on a GPU: who may register it, and the handlers over HTTP."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stoker.errors import Forbidden, MalformedBody, NotFound, NotSupported, Unauthorized, cut
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.requests import authorization_of
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.protocols.access import check_caller, check_metadata_access
from stoker.gateway.protocols.repository import json_content
from stoker.gateway.regions.table import CudaLocation
from stoker.gpu.cuda_ipc import HANDLE_BYTES
from stoker.keys.keyring import BEARER_HEADER

if TYPE_CHECKING:
    from stoker.gateway.regions.regions import Regions

SYSTEM_SHARED_MEMORY = "system_shared_memory"
CUDA_SHARED_MEMORY = "cuda_shared_memory"
"""The extensions' names."""


def regions_to_list(
    gateway: Gateway, authorization: bytes, address: str, *, sent_as: str = BEARER_HEADER
) -> Regions:
    """Return the regions for a caller who lists them."""
    regions = _regions(gateway, address, SYSTEM_SHARED_MEMORY)
    check_metadata_access(gateway, authorization, sent_as=sent_as)
    return regions


def regions_to_change(
    gateway: Gateway,
    authorization: bytes,
    address: str,
    *,
    from_page: bool = False,
    sent_as: str = BEARER_HEADER,
    extension: str = SYSTEM_SHARED_MEMORY,
) -> Regions:
    """Return the regions for a caller who registers or unregisters."""
    regions = _regions(gateway, address, extension)
    if from_page:
        raise Forbidden("Pages may not register shared memory.")
    if not regions.needs_admin:
        check_caller(gateway, authorization, sent_as=sent_as)
        return regions
    administration = gateway.administration
    if administration is None or administration.access.refusal:
        raise Forbidden("Shared memory cannot be registered here: start the server with STOKER_ADMIN_KEY.")
    if not administration.access.callers.allows(authorization):
        raise Unauthorized(
            f"Registering shared memory needs the admin key ('stoker keys show admin'): send {sent_as.format('key')}."
        )
    return regions


def _regions(gateway: Gateway, address: str, extension: str) -> Regions:
    if gateway.regions is None:
        raise NotSupported(f"{extension} extension is not supported")
    gateway.regions.check_peer(address)
    return gateway.regions


class SharedMemoryApi:
    """The handlers of `/v2/systemsharedmemory/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def status(self, request: Request) -> Response:
        """List the registered regions, or one of them."""
        regions = regions_to_list(self._gateway, *_key_and_address(request))
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
            self._gateway, *_key_and_address(request), from_page="origin" in request.headers
        )


_MOST_DEVICES: Final = 1 << 16


class CudaMemoryAccess:
    """The extension for memory on GPUs, independent of the transport.

    Clients request the status and unregister all regions before they know whether the server supports this: if it
    does not, both succeed, with nothing registered.
    """

    def __init__(self, gateway: Gateway, sent_as: str = BEARER_HEADER) -> None:
        self._gateway, self._sent_as = gateway, sent_as

    def status(self, authorization: bytes, address: str, name: str | None) -> list[dict[str, Any]]:
        """Return the registered regions, or one of them, in the form of the protocol."""
        check_metadata_access(self._gateway, authorization, sent_as=self._sent_as)
        regions = self._regions(address)
        if regions is not None:
            return regions.cuda_status(name)
        if name is not None:
            raise NotFound(f"Unable to find cuda shared memory region: '{cut(name)}'")
        return []

    def regions_to_change(self, authorization: bytes, address: str, *, from_page: bool = False) -> Regions:
        """Return the regions for a caller who registers or unregisters."""
        return regions_to_change(
            self._gateway,
            authorization,
            address,
            from_page=from_page,
            sent_as=self._sent_as,
            extension=CUDA_SHARED_MEMORY,
        )

    def unregister(
        self, authorization: bytes, address: str, name: str | None, *, from_page: bool = False
    ) -> None:
        """Unregister a region, or all; as in Triton, a region that is not registered is no error."""
        check_metadata_access(self._gateway, authorization, sent_as=self._sent_as)
        regions = self._regions(address)
        if regions is not None and regions.cuda_status(None):
            self.regions_to_change(authorization, address, from_page=from_page).unregister(name, CudaLocation)

    def _regions(self, address: str) -> Regions | None:
        """Return the regions for a caller; None if it may not use any."""
        regions = self._gateway.regions
        return None if regions is None or not regions.serves(address) else regions


async def register(regions: Regions, name: str, handle: bytes, device_id: int, size_bytes: int) -> None:
    """Register a region, given CUDA's IPC handle of the allocation."""
    if len(handle) != HANDLE_BYTES or not 0 <= device_id < _MOST_DEVICES:
        raise MalformedBody(
            f"a CUDA region needs a 'raw_handle' of {HANDLE_BYTES} bytes, and the number of a GPU as 'device_id'"
        )
    regions.check_new(name, size_bytes)
    location = CudaLocation(base64.b64encode(handle).decode(), device_id)
    # The first region in a process creates the CUDA context, which takes tenths of a second.
    regions.register_cuda(name, await run_in_thread(regions.cuda.open, location, size_bytes))


class CudaMemoryApi:
    """The handlers of `/v2/cudasharedmemory/...`."""

    def __init__(self, gateway: Gateway) -> None:
        self._memory = CudaMemoryAccess(gateway)

    async def status(self, request: Request) -> Response:
        """List all regions, or one."""
        return JSONResponse(
            self._memory.status(*_key_and_address(request), request.path_params.get("region"))
        )

    async def register(self, request: Request) -> Response:
        """Register a region."""
        regions = self._memory.regions_to_change(
            *_key_and_address(request), from_page="origin" in request.headers
        )
        content = await json_content(request)
        device_id, size_bytes = content.get("device_id", 0), content.get("byte_size")
        if type(device_id) is not int or type(size_bytes) is not int:
            raise MalformedBody("a CUDA region needs 'device_id' and 'byte_size', integers")
        handle = _handle(content.get("raw_handle"))
        await register(regions, request.path_params["region"], handle, device_id, size_bytes)
        return Response()

    async def unregister(self, request: Request) -> Response:
        """Unregister a region, or all."""
        name = request.path_params.get("region")
        self._memory.unregister(*_key_and_address(request), name, from_page="origin" in request.headers)
        return Response()


def _key_and_address(request: Request) -> tuple[bytes, str]:
    """Return the key and the address of the caller."""
    return authorization_of(request), request.client.host if request.client else ""


def _handle(given: Any) -> bytes:
    encoded = given.get("b64") if isinstance(given, dict) else None
    if isinstance(encoded, str):
        try:
            # Triton's C++ client, which perf_analyzer uses, sends Base64 with line breaks.
            return base64.b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError):
            pass
    raise MalformedBody("a CUDA region needs a 'raw_handle', an object whose 'b64' is the handle in Base64")
