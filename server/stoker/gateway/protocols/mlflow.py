"""The routes of MLflow's scoring server: `/invocations`, `/ping`, `/health`, `/version`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker import __version__
from stoker.errors import NotFound, StokerError, UnsupportedEncoding
from stoker.gateway.gateway import SERVICE_PATH
from stoker.gateway.http.answers import error_body
from stoker.gateway.protocols.endpoint import DialectEndpoint
from stoker.gateway.protocols.infer_dialect import signatures_of
from stoker.wire.mlflow import decode_invocation, encode_invocation

if TYPE_CHECKING:
    import numpy as np
    from starlette.types import Scope

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.dialect import Dialect
    from stoker.gateway.scoring.service import Service

__all__ = ["mlflow_routes"]

_JSON_TYPE: Final = b"content-type: application/json\r\n"


def mlflow_routes(gateway: Gateway) -> list[Route]:
    """Return the routes."""
    dialect = _Invocations()

    def find(scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect | None]:
        name = scope["path_params"].get("name")
        service = gateway.deployment(headers) if name is None else gateway.service(name)
        if service.script is not None:
            # It gets the body as it does from the scoring path.
            return service, None
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type == b"text/csv":
            raise UnsupportedEncoding(
                f"{service.name} takes arrays; send them as JSON (inputs or instances)."
            )
        return service, dialect

    async def ping(_: Request) -> Response:
        gateway.check_ready()
        return Response("\n", media_type="application/json")

    async def version(_: Request) -> Response:
        if not gateway.tells_version:
            raise NotFound("This server does not tell its version.")
        return Response(__version__, media_type="application/json")

    return [
        Route("/invocations", DialectEndpoint(gateway, find, _error_answer, signs=True), methods=["POST"]),
        Route(
            SERVICE_PATH + "{name}/invocations",
            DialectEndpoint(gateway, find, _error_answer),
            methods=["POST"],
        ),
        Route("/ping", ping),
        Route("/health", ping),
        Route("/version", version),
    ]


class _Invocations:
    """Requests in MLflow's formats to a model whose inputs are tensors."""

    def submit(self, service: Service, call: Call, exchange: Exchange, body: bytes) -> None:
        call.request = decode_invocation(signatures_of(service)[0], body)
        service.submit_tensors(call, exchange, call.request.predict.inputs)

    def answer(self, call: Call, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
        return _JSON_TYPE, encode_invocation(call.request, outputs, call.service.non_finite)

    def refusal(self, error: StokerError) -> tuple[int, bytes]:
        return _error_answer(error)


def _error_answer(error: StokerError) -> tuple[int, bytes]:
    return error.status, error_body(error)
