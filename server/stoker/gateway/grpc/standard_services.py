"""The standard services of gRPC: health, of the server and of each model, and reflection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from stoker.errors import MalformedBody, NotReady, StokerError, UnknownService, quoted
from stoker.gateway.grpc.calls import CallConnection, Method, RpcCall, StreamedCall, UnaryCall, closing_error
from stoker.gateway.grpc.framing import Message
from stoker.gateway.grpc.messages import (
    HEALTH,
    INFERENCE_APIS,
    MANAGEMENT_APIS,
    POOL,
    REFLECTION,
    SERVICE,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
)
from stoker.gateway.grpc.metadata import Status

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.metadata import CallHead
    from stoker.wire.http2.streams import Stream

_HealthStatus: Final = HealthCheckResponse


class Health:
    """The health of the server and of each model, and the calls that watch it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.watching: dict[WatchCall, None] = {}
        gateway.readiness.subscribe(self._notify_watchers)

    def _notify_watchers(self) -> None:
        for call in list(self.watching):
            call.drained()

    async def check(self, request: Any, _: RpcCall) -> Any:
        """Answer with the current status."""
        status = self.status(request.service)
        if status == _HealthStatus.SERVICE_UNKNOWN:
            raise UnknownService(f"There is no model {quoted(request.service)}.")
        return _HealthStatus(status=status)

    def status(self, name: str) -> int:
        """Return the status of a model, or of the server."""
        if name in ("", SERVICE):
            try:
                self._gateway.check_ready()
            except NotReady:
                return _HealthStatus.NOT_SERVING  # type: ignore[no-any-return]
            return _HealthStatus.SERVING  # type: ignore[no-any-return]
        if name not in self._gateway.directory.models:
            return _HealthStatus.SERVICE_UNKNOWN  # type: ignore[no-any-return]
        service = self._gateway.directory.services.get(name)
        ready = service is not None and service.ready
        return _HealthStatus.SERVING if ready else _HealthStatus.NOT_SERVING  # type: ignore[no-any-return]


class WatchCall(UnaryCall):
    """A call that gets the status of a name, now and after each change; its method's `answer` is a `Health`."""

    __slots__ = ("_name", "_sent_status")

    counts = False

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        self._name = ""
        self._sent_status: int | None = None
        super().__init__(connection, stream, head, method)

    def run(self, content: bytes) -> None:
        """Begin to watch."""
        try:
            self._name = HealthCheckRequest.FromString(content).service
        except DecodeError as error:
            self.refuse(MalformedBody(f"the message cannot be read: {error}"))
            return
        self.watch_deadline()
        self._stream.notifies_drained = True
        self.method.answer.watching[self] = None
        self.drained()

    def drained(self) -> None:
        """Send the status if it has changed, once the caller has read the previous one."""
        if self.done or self._stream.queued_bytes:
            return
        status = self.method.answer.status(self._name)
        if status != self._sent_status:
            self._sent_status = status
            self.send(_HealthStatus(status=status).SerializeToString())

    def close(self) -> None:
        """End the call because the server stops."""
        self.fail(closing_error())

    def _finish(self) -> None:
        super()._finish()
        self.method.answer.watching.pop(self, None)


_SERVICES: Final = tuple(
    sorted(
        (
            SERVICE,
            HEALTH,
            REFLECTION,
            f"{SERVING}.PredictionService",
            f"{SERVING}.ModelService",
            INFERENCE_APIS,
            MANAGEMENT_APIS,
        )
    )
)


class ReflectionCall(StreamedCall):
    """A stream of questions about the services."""

    __slots__ = ()

    counts = False

    def handle(self, item: Message | StokerError) -> None:
        """Answer a question."""
        if isinstance(item, StokerError):
            self.refuse(item)
            return
        item.release()
        try:
            request = ServerReflectionRequest.FromString(item.content)
        except DecodeError as error:
            self.refuse(MalformedBody(f"the message cannot be read: {error}"))
            return
        self.send(_reflect(request).SerializeToString())


def _reflect(request: Any) -> Any:
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
    """Find no extensions: proto3 has none."""
    raise KeyError(name)


def _gather(file: Any, found: dict[str, Any]) -> None:
    """Add a file, and those that it needs."""
    found[file.name] = file
    for needed in file.dependencies:
        if needed.name not in found:
            _gather(needed, found)
