"""The routes of MLflow's scoring server: `/invocations`, `/health`, `/version`; `/ping` is TorchServe's too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker import __version__
from stoker.errors import NotFound, StokerError
from stoker.gateway.http.responses import code_line, error_body
from stoker.gateway.model_directory import SERVICE_PATH
from stoker.gateway.protocols.endpoint import DialectEndpoint, find_service
from stoker.gateway.protocols.infer import signatures_of
from stoker.gateway.scoring.dialects import TensorDialect, submit_tensors, write_json
from stoker.wire.mlflow import decode_invocation, encode_invocation

if TYPE_CHECKING:
    from starlette.types import Scope

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, Dialect
    from stoker.gateway.scoring.service import Service
    from stoker.wire.script_requests import RequestHead


def mlflow_routes(gateway: Gateway) -> list[Route]:
    """Return the routes."""
    dialect, of_csv = _Invocations(), _Invocations(is_csv=True)

    def find(scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect | None]:
        service = find_service(gateway, scope, headers)
        if service.script is not None:
            # The script gets the body as from the scoring path.
            return service, None
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return service, of_csv if media_type == b"text/csv" else dialect

    async def health(_: Request) -> Response:
        gateway.check_ready()
        return Response("\n", media_type="application/json")

    async def version(_: Request) -> Response:
        if not gateway.settings.tells_version:
            raise NotFound("This server does not tell its version.")
        return Response(__version__, media_type="application/json")

    return [
        Route(
            "/invocations",
            DialectEndpoint(gateway, find, _error_answer, names_deployment=True),
            methods=["POST"],
        ),
        Route(
            SERVICE_PATH + "{name}/invocations",
            DialectEndpoint(gateway, find, _error_answer),
            methods=["POST"],
        ),
        Route("/health", health),
        Route("/version", version),
    ]


class _Invocations(TensorDialect):
    def __init__(self, *, is_csv: bool = False) -> None:
        super().__init__()
        self._is_csv = is_csv

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del head
        service = call.service
        invocation = decode_invocation(signatures_of(service)[0], body, is_csv=self._is_csv)
        call.write = partial(
            write_json, partial(encode_invocation, invocation, non_finite=service.facts.non_finite)
        )
        submit_tensors(call, exchange, invocation.predict.inputs)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        status, body = _error_answer(error)
        return status, code_line(error), body


def _error_answer(error: StokerError) -> tuple[int, bytes]:
    return error.status, error_body(error)
