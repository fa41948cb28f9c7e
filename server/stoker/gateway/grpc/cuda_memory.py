"""The CUDA shared memory extension over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.gateway.grpc.calls import BEARER_METADATA, RpcCall
from stoker.gateway.grpc.messages import message
from stoker.gateway.protocols.cuda_memory import CudaMemoryAccess, register

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway

__all__ = ["CudaMemoryMethods"]

_StatusResponse = message("CudaSharedMemoryStatusResponse")
_RegisterResponse = message("CudaSharedMemoryRegisterResponse")
_UnregisterResponse = message("CudaSharedMemoryUnregisterResponse")


class CudaMemoryMethods:
    """What the same extension does over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._memory = CudaMemoryAccess(gateway, BEARER_METADATA)

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryStatusRequest`; an empty name means all."""
        answer = _StatusResponse()
        for entry in self._memory.status(call.authorization, call.address, request.name or None):
            told = answer.regions[entry["name"]]
            told.name, told.device_id, told.byte_size = entry.values()
        return answer

    async def register(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryRegisterRequest`."""
        regions = self._memory.to_change(call.authorization, call.address)
        await register(regions, request.name, request.raw_handle, request.device_id, request.byte_size)
        return _RegisterResponse()

    async def unregister(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryUnregisterRequest`; an empty name means all."""
        self._memory.unregister(call.authorization, call.address, request.name or None)
        return _UnregisterResponse()
