"""The standard health service, `grpc.health.v1.Health`: of the server as a whole, and of each model by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from stoker.echo import quoted
from stoker.errors import MalformedBody, NotReady, StokerError, UnknownService
from stoker.gateway.grpc.calls import Line, Method, RpcCall, closing
from stoker.gateway.grpc.messages import SERVICE, HealthCheckRequest, HealthCheckResponse
from stoker.gateway.grpc.unary import UnaryCall

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.heads import CallHead
    from stoker.wire.http2.stream import Stream

__all__ = ["Health", "WatchCall"]

_Status: Final = HealthCheckResponse


class Health:
    """Says what is true now, and tells those who watch when it has changed.

    Args:
        gateway: The frontend's services.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.watching: dict[WatchCall, None] = {}
        gateway.on_readiness.append(self._look_again)

    def _look_again(self) -> None:
        for call in list(self.watching):
            call.drained()

    async def check(self, request: Any, _: RpcCall) -> Any:
        """Answer with the present status.

        Raises:
            UnknownService: The name is unknown.
        """
        status = self.status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            raise UnknownService(f"There is no model {quoted(request.service)}.")
        return _Status(status=status)

    def status(self, name: str) -> int:
        """The status of a model by its name, or of the server."""
        if name in ("", SERVICE):
            try:
                self._gateway.check_ready()
            except NotReady:
                return _Status.NOT_SERVING  # type: ignore[no-any-return]
            return _Status.SERVING  # type: ignore[no-any-return]
        if name not in self._gateway.models:
            return _Status.SERVICE_UNKNOWN  # type: ignore[no-any-return]
        service = self._gateway.services.get(name)
        ready = service is not None and service.ready
        return _Status.SERVING if ready else _Status.NOT_SERVING  # type: ignore[no-any-return]


class WatchCall(UnaryCall):
    """A call that is told the status of a name, now and whenever it has changed. `Health` answers its method."""

    __slots__ = ("_name", "_told")

    counts = False

    def __init__(self, line: Line, stream: Stream, head: CallHead, method: Method) -> None:
        self._name = ""
        self._told: int | None = None
        super().__init__(line, stream, head, method)

    def run(self, content: bytes) -> None:
        """Begin to watch."""
        try:
            self._name = HealthCheckRequest.FromString(content).service
        except DecodeError as error:
            self.refuse(MalformedBody(f"the message cannot be read: {error}"))
            return
        self.watch_deadline()
        self._stream.tells_drained = True
        self.method.answer.watching[self] = None
        self.drained()

    def drained(self) -> None:
        """Tell the status if it is another one than was told; what the caller does not take is told when it does."""
        if self.done or self._stream.queued_bytes:
            return
        status = self.method.answer.status(self._name)
        if status != self._told:
            self._told = status
            self.send(_Status(status=status).SerializeToString())

    def close(self) -> None:
        """End, for the server does."""
        self.give_up(closing())

    def give_up(self, error: StokerError) -> None:
        """End with an error."""
        super().give_up(error)

    def _finish(self) -> None:
        super()._finish()
        self.method.answer.watching.pop(self, None)
