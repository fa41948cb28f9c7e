"""The system shared memory extension over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.gateway.grpc.calls import BEARER_METADATA, RpcCall
from stoker.gateway.grpc.messages import message
from stoker.gateway.protocols.shared_memory import regions_to_change, regions_to_see

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.regions.regions import Regions

__all__ = ["SharedMemoryMethods"]

_StatusResponse = message("SystemSharedMemoryStatusResponse")
_RegisterResponse = message("SystemSharedMemoryRegisterResponse")
_UnregisterResponse = message("SystemSharedMemoryUnregisterResponse")


class SharedMemoryMethods:
    """What the same extension does over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `SystemSharedMemoryStatusRequest`; an empty name means all."""
        regions = regions_to_see(self._gateway, call.authorization, call.address, sent_as=BEARER_METADATA)
        answer = _StatusResponse()
        for entry in regions.status(request.name or None):
            told = answer.regions[entry["name"]]
            told.name, told.key, told.offset, told.byte_size = entry.values()
        return answer

    async def register(self, request: Any, call: RpcCall) -> Any:
        """Answer a `SystemSharedMemoryRegisterRequest`."""
        self._regions(call).register(request.name, request.key, request.offset, request.byte_size)
        return _RegisterResponse()

    async def unregister(self, request: Any, call: RpcCall) -> Any:
        """Answer a `SystemSharedMemoryUnregisterRequest`; an empty name means all."""
        self._regions(call).unregister(request.name or None)
        return _UnregisterResponse()

    def _regions(self, call: RpcCall) -> Regions:
        return regions_to_change(self._gateway, call.authorization, call.address, sent_as=BEARER_METADATA)
