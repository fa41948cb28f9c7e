"""The standard reflection service, `grpc.reflection.v1alpha`: callers without a `.proto` learn the messages here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from stoker.errors import MalformedBody, StokerError
from stoker.gateway.grpc.framing import Message
from stoker.gateway.grpc.messages import (
    HEALTH,
    POOL,
    REFLECTION,
    SERVICE,
    SERVING,
    ServerReflectionRequest,
    ServerReflectionResponse,
)
from stoker.gateway.grpc.statuses import Status
from stoker.gateway.grpc.streams import StreamedCall

__all__ = ["ReflectionCall"]

_SERVICES: Final = tuple(
    sorted((SERVICE, HEALTH, REFLECTION, f"{SERVING}.PredictionService", f"{SERVING}.ModelService"))
)


class ReflectionCall(StreamedCall):
    """A stream of questions about the services."""

    __slots__ = ()

    counts = False

    def hear(self, item: Message | StokerError) -> None:
        """Answer a question."""
        if isinstance(item, StokerError):
            self.refuse(item)
            return
        if item.hold is not None:
            item.hold.release()
        try:
            request = ServerReflectionRequest.FromString(item.content)
        except DecodeError as error:
            self.refuse(MalformedBody(f"the message cannot be read: {error}"))
            return
        self.send(_reflected(request).SerializeToString())


def _reflected(request: Any) -> Any:
    """Return the `ServerReflectionResponse` to a `ServerReflectionRequest`."""
    response = ServerReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request") or "file_by_filename"
    if kind == "list_services":
        for name in _SERVICES:
            response.list_services_response.service.add(name=name)
        return response
    find = _FILES.get(kind, _find_nothing)
    try:
        described = find(getattr(request, kind))
    except KeyError:
        response.error_response.error_code = Status.NOT_FOUND
        response.error_response.error_message = "not found"
        return response
    files: dict[str, Any] = {}
    _gather(described, files)
    for file in files.values():
        content = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(content)
        response.file_descriptor_response.file_descriptor_proto.append(content.SerializeToString())
    return response


_FILES: Final[dict[str, Callable[[str], Any]]] = {
    "file_by_filename": POOL.FindFileByName,
    "file_containing_symbol": POOL.FindFileContainingSymbol,
}


def _find_nothing(name: str) -> Any:
    """There are no extensions: proto3 has none."""
    raise KeyError(name)


def _gather(file: Any, found: dict[str, Any]) -> None:
    """Add a file, and those that it needs."""
    found[file.name] = file
    for needed in file.dependencies:
        if needed.name not in found:
            _gather(needed, found)
