"""The standard health service, `grpc.health.v1.Health`: of the server as a whole, and of each model by its name."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stoker.echo import quoted
from stoker.errors import NotReady
from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.messages import SERVICE

__all__ = ["Health"]

_Status: Final = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc has no types
    """Says what is true now; the service of the package itself has to be told of every change."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._changed = asyncio.Event()
        self._closed = False
        gateway.on_readiness.append(self._look_again)

    def close(self) -> None:
        """End what is being watched."""
        self._closed = True
        self._look_again()

    def _look_again(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # the protocol's name
        """Answer with the present status; NOT_FOUND for an unknown name."""
        status = self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no model {quoted(request.service)}.")
        return _Status(status=status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802  # the protocol's name
        """Send the status now and whenever it has changed; UNAVAILABLE at the end of the server."""
        told = None
        while not self._closed:
            changed = self._changed
            status = self._status(request.service)
            if status != told:
                await context.write(_Status(status=status))
                told = status
            await changed.wait()
        context.set_code(grpc.StatusCode.UNAVAILABLE)
        context.set_details("The server is shutting down.")

    def _status(self, name: str) -> int:
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
